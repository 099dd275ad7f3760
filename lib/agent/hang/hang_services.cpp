// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/hang_services.hpp"

namespace elastrun::agent {

HangServices::HangServices(RunContext& run, rendezvous::Session& session, WorkerChannel& channel)
    : guardian_(run.guardian),
      timers_(run, offers_),
      watch_(run, session),
      collector_(run, session, offers_, channel, watch_) {
  timers_.open_pipe();
  const auto folder = timers_.own_folder();
  if (!folder.empty()) guardian_.remember_directory(folder);
}

/// What a node last said may be as old as its looks are apart: it looks again before all are held
/// to have hung.
bool HangServices::took(const rendezvous::Push& push) {
  const auto* order = std::get_if<rendezvous::TakeStacks>(&push);
  if (order != nullptr && order->hang) watch_.look_now();
  return collector_.took(push);
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
