// SPDX-License-Identifier: Apache-2.0
#include "agent/files/run_files.hpp"

#include <functional>
#include <utility>

namespace elastrun::agent {

using files::Lane;

std::unique_ptr<RunFiles> RunFiles::make(Parts parts) {
  return std::unique_ptr<RunFiles>(new RunFiles(std::move(parts)));
}

RunFiles::RunFiles(Parts parts)
    : parts_(std::move(parts)),
      folders_({parts_.lanes[Lane::Folders], parts_.clock, parts_.layout, parts_.workers,
                parts_.near, parts_.channel_found}),
      gate_(std::bind_front(&LogFolders::prepare, &folders_), parts_.role),
      last_writes_(
          parts_.loop, parts_.clock, parts_.console,
          {&parts_.lanes[Lane::Logs], &parts_.lanes[Lane::Syncs], &parts_.lanes[Lane::Reports],
           &parts_.lanes[Lane::Errors], &parts_.lanes[Lane::Folders]},
          parts_.shutdown_timeout),
      store_drain_(parts_.loop, parts_.clock) {}

bool RunFiles::signalled(process::Demand demand) {
  using process::Demand;
  if (last_writes_.waiting()) {
    if (demand == Demand::Stop) last_writes_.shorten();
    if (demand == Demand::KillNow) last_writes_.give_up_now();
    return true;
  }
  if (!store_drain_.waiting()) return false;
  if (demand != Demand::Nothing) store_drain_.hear_signal(demand == Demand::KillNow);
  return true;
}

std::string RunFiles::settle(bool succeeded) {
  const auto& root = parts_.layout.temporary_root();
  const bool keeps = parts_.keeps_output;
  auto fate = logs::Fate::Kept;  // and named in the report
  if (!root.empty() && !(keeps && !succeeded)) {
    fate = folders_.settle(last_writes_, keeps, keeps || !succeeded);
  }
  if (fate != logs::Fate::Stays) parts_.guardian.forget(root);
  return fate == logs::Fate::Kept ? parts_.layout.run_directory() : std::string();
}

void RunFiles::finish(RoundStore& store, Duration store_needed) {
  last_writes_.give_up_on({&parts_.lanes[Lane::Folders]});  // nothing is lost there
  if (folders_.is_unanswered()) {
    last_writes_.lose({&parts_.lanes[Lane::Logs], &parts_.lanes[Lane::Syncs]});
  }
  last_writes_.wait(true);
  // After our own files, which are complete then, whatever ends this wait for workers of other
  // nodes. What it has logged itself is written by the wait that follows.
  store_drain_.wait(store, store_needed);
  last_writes_.wait(true);
}

}  // namespace elastrun::agent
