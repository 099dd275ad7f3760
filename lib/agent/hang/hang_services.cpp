// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/hang_services.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::agent {

std::unique_ptr<HangServices> HangServices::make(Parts parts) {
  std::unique_ptr<HangServices> made(new HangServices(parts));
  made->timers_.open_pipe();
  const auto folder = made->timers_.own_folder();
  // The guardian removes it if this agent is killed.
  if (!folder.empty()) made->guardian_.remember_directory(folder);
  return made;
}

HangServices::HangServices(const Parts& parts)
    : guardian_(parts.guardian),
      timers_({.loop = parts.loop,
               .clock = parts.clock,
               .launcher = parts.launcher,
               .post = parts.post,
               .offers = offers_,
               .worker_of = parts.worker_of,
               .catch_up = parts.catch_up,
               .run_id = parts.spec.run_id,
               .environment = parts.environment()}),
      watch_({.clock = parts.clock,
              .spec = parts.spec,
              .post = parts.post,
              .report = parts.report,
              .activity =
                  [this, activity = parts.activity] {
                    return std::max(activity(), timers_.last_request());
                  },
              .has_ended =
                  [worker_of = parts.worker_of](pid_t pid) {
                    const auto* worker = worker_of(pid);
                    return worker == nullptr || worker->exit.has_value();
                  }}),
      collector_({.loop = parts.loop,
                  .clock = parts.clock,
                  .launcher = parts.launcher,
                  .offers = offers_,
                  .worker_of = parts.worker_of,
                  .report = parts.report,
                  .answer = parts.answer,
                  .on_hang = [this](const auto& report) { watch_.hangs(report); },
                  .environment = parts.environment}) {}

/// What a node last said may be as old as its looks are apart: it looks again before all are held
/// to have hung.
rendezvous::Session::OnPush HangServices::before(rendezvous::Session::OnPush on_push) {
  return [this, next = collector_.before(std::move(on_push))](rendezvous::Push push) {
    const auto* order = std::get_if<rendezvous::TakeStacks>(&push);
    if (order != nullptr && order->hang) watch_.look_now();
    next(std::move(push));
  };
}

void HangServices::offered(pid_t sender, const workers::Worker& worker,
                           const workers::StacksOffered& offer) {
  offers_.heard(sender, offer);
  watch_.heard(worker.rank, offer);
}

void HangServices::worker_said(const workers::Worker& worker, const workers::Message& message) {
  watch_.heard(worker.rank, message);
}

void HangServices::end(JobResult& result, files::BlockingCalls& files) {
  result.expired_timers = timers_.expired();
  result.hangs = watch_.all();
  // The guardian removes the folder if its file system does not answer in time.
  timers_.close_pipe(files, [&guardian = guardian_, folder = timers_.own_folder()] {
    if (!folder.empty()) guardian.forget(folder);
  });
}

void HangServices::phase(Phase phase, TimePoint now) {
  timers_.phase(phase, now);
  watch_.phase(phase, now);
}

void HangServices::round_ready(const rendezvous::Round& round, Duration waited) {
  timers_.round_ready(round, waited);
  // Pids of the last group may be given away by now.
  offers_.forget();
  watch_.round_ready(round, waited);
}

void HangServices::started(const rendezvous::Round& round,
                           const std::vector<workers::Worker>& group, Duration took) {
  collector_.started(round, group, took);
  watch_.started(round, group, took);
}

void HangServices::stopped(const std::vector<workers::Worker>& group, Duration took) {
  collector_.stopped(group, took);
}

}  // namespace elastrun::agent
