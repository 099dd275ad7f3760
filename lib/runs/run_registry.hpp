// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/unique_fd.hpp"
#include "runs/entry.hpp"

#include <string>
#include <vector>

/// The runs of this user on this machine: a directory with a file for each agent
/// (elastrun-protocol(7), RUN REGISTRY).
namespace elastrun::runs {

/// Where runs register, the preferred place first: ELASTRUN_RUNTIME_DIR alone if that is set; else
/// `elastrun` below XDG_RUNTIME_DIR and below /run/user/UID, then /tmp/elastrun-UID. A reader looks
/// in all of them: a job of cron has no XDG_RUNTIME_DIR, and /run/user/UID goes when its user logs
/// out.
std::vector<std::string> registry_places();
/// Whether ELASTRUN_RUNTIME_DIR names the place: then people rely on it.
bool is_place_named();
/// Whether all places are the system's own, which are on this machine and answer.
bool are_places_near();

/// Of those places that another user has taken, or can look into: runs are not registered and not
/// found there. Empty: there is none.
std::string trouble_of_places(const std::vector<std::string>& places);

/// The numbers by which others tell this process from a later one with the same pid. Fails with Io
/// where /proc cannot be read.
Status identify(RunEntry& entry);

/// This process's own entry. Destroying it removes the file.
class Registration {
 public:
  explicit Registration(std::vector<std::string> places) : places_(std::move(places)) {}
  ~Registration() { remove(); }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  /// Replaces the file at once, so that readers never see half of it. Uses the first place that can
  /// be written and is this user's alone. Fails with Io, and says why for each place.
  Status write(const RunEntry& entry);
  void remove();
  /// Where write() puts it if it can.
  std::string preferred_path(const RunEntry& entry) const;
  /// Empty while there is none.
  const std::string& path() const { return path_; }

 private:
  const std::vector<std::string> places_;
  std::string path_;
  UniqueFd lock_;  // held as long as the entry is there
};

struct ListedRun {
  RunEntry entry;
  std::string path;  // of its file
};
/// Whether that process still is the one that wrote the entry; also where one of that number lives
/// and nothing more can be told of it.
bool is_alive(const RunEntry& entry);
enum class Agents { Alive, Gone };
/// The runs whose agents are so, the oldest first. Removes the files of runs that have gone and can
/// have left nothing that one could find (dead_runs.hpp). Entries of another pid namespace (a
/// container that shares the directory), another boot or another machine are not listed; they are
/// removed when their lock is free, those of this boot a day later. No more than some hundred files
/// are opened at a time.
std::vector<ListedRun> list_runs(const std::vector<std::string>& places,
                                 Agents agents = Agents::Alive);
/// One file again; fails with Closed if the run has gone, with Protocol or Io if it is unreadable.
Result<RunEntry> read_run(const std::string& path);

}  // namespace elastrun::runs
