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

void HangServices::end(JobResult& result, files::BlockingCalls& files) {
  result.expired_timers = timers_.expired();
  result.hangs = watch_.all();
  // The guardian removes the folder if its file system does not answer in time.
  timers_.close_pipe(files, [&guardian = guardian_, folder = timers_.own_folder()] {
    if (!folder.empty()) guardian.forget(folder);
  });
}

}  // namespace elastrun::agent
