// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "process/process_table.hpp"

#include <set>
#include <string>
#include <utility>

namespace elastrun::workers {

/// What the workers of a group leave behind when they have ended: a trainer below a shell script
/// that obeyed SIGTERM before it, an upload that a successful worker has begun. Says how long it
/// may go on, and when it is asked to end, named to people, and killed. Pure: it is shown what is
/// left, and gives orders.
class Leftovers {
 public:
  struct Left {
    bool groups_alive = false;        // something in a process group of a worker
    process::ProcessTable in_groups;  // that, as far as it could be read
    process::ProcessTable escaped;    // in other groups or sessions
  };
  struct Orders {
    bool over = false;          // nothing is left, or nothing is waited for any more
    bool kill = false;          // that is because it does not end: SIGKILL for all of it
    bool ask_groups = false;    // SIGTERM for the workers' groups
    process::ProcessTable ask;  // SIGTERM for each of these, once
    bool name = false;          // people should be told for what we wait
    TimePoint look_again{};     // unless one ends before
  };
  /// It may go on until `until`. `asked`: the groups have had a signal, so that then comes SIGKILL;
  /// otherwise SIGTERM, and SIGKILL after `last_grace`.
  Leftovers(TimePoint now, TimePoint until, bool asked, Duration last_grace);
  /// These have had a signal already and get no second one.
  void have_been_told(const process::ProcessTable& table);
  /// What was born at `start_time` (process::ProcessEntry) or later gets no signal but SIGKILL: it
  /// was begun because of the stop, such as the upload of a checkpoint, and has the whole time.
  void spare_born_since(std::uint64_t start_time) { spared_since_ = start_time; }
  /// The groups have been asked now; not later than `until` they are killed.
  void asked(TimePoint until);
  Orders look(TimePoint now, const Left& left);

  Duration time_left(TimePoint now) const { return until_ > now ? until_ - now : Duration::zero(); }

 private:
  process::ProcessTable newly_orphaned(const Left& left);

  TimePoint until_, name_at_;
  bool asked_;
  Duration last_grace_;
  Duration pause_;
  bool named_ = false;
  std::uint64_t spared_since_ = process::kNever;
  std::set<std::pair<pid_t, std::uint64_t>> told_;  // pid and start time
};

/// Something is left, and all of it runs as other users: what a script has started by sudo(8).
bool is_out_of_reach(const Leftovers::Left& left);

/// "4711 (python upload.py), 4712 (sh)": each with its command line as far as it is short, and no
/// more than a person reads.
std::string names_of(const Leftovers::Left& left);

}  // namespace elastrun::workers
