// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/unique_fd.hpp"
#include "log_tail.hpp"
#include "runs/run_registry.hpp"
#include "subcommands.hpp"

#include <compare>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::ctl {

/// The files of one attempt: attempt_N, or attempt_N.M where it was started again.
struct AttemptName {
  int attempt = 0, start = 0;
  auto operator<=>(const AttemptName&) const = default;
};
/// Nothing for another name. Pure.
std::optional<AttemptName> parse_attempt(std::string_view name);

/// Shows what the workers of one run write, attempt after attempt, and ends with the run.
/// inotify(7) says when something has happened: the writers are on this machine, so it also does
/// where the files are on a network's file system.
class LogFollower {
 public:
  /// `several`: whether lines need the rank of their worker in front.
  LogFollower(runs::ListedRun run, const LogsOptions& options, bool several);

  /// Fails with Io where the system refuses watches.
  Status watch();
  /// To be polled for reading: something happened, and the agent has ended.
  int events_fd() const { return events_.get(); }
  int agent_fd() const { return agent_.get(); }
  /// Takes the events and shows what is new. True once the run has ended and all of it was shown.
  bool advance();
  /// Shows what is there, to the end of each file.
  void finish();

 private:
  struct Attempt {
    std::map<std::string, LogTail> tails;  // by path
    bool complete = false;                 // another has followed: nothing more comes
  };

  bool take_events();
  void scan();
  void scan_attempt(const AttemptName& name, const std::string& path);
  void scan_rank(Attempt& attempt, const std::string& path, int local_rank,
                 std::optional<int> lines);
  void add_watch(const std::string& directory);
  int rank_of(const std::string& directory, int local_rank) const;
  void show();

  runs::ListedRun run_;
  const LogsOptions options_;
  const bool several_;
  UniqueFd events_, agent_;
  std::set<std::string> watched_;
  std::optional<AttemptName> first_;  // earlier ones are not shown
  std::map<AttemptName, Attempt> attempts_;
};

}  // namespace elastrun::ctl
