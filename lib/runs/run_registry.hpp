// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/unique_fd.hpp"
#include "process/process_table.hpp"

#include <boost/describe/class.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

/// The runs of this user on this machine: a directory with a file for each agent
/// (elastrun-protocol(7), RUN REGISTRY).
namespace elastrun::runs {

/// A worker that its agent has started.
struct RunWorker {
  int rank = 0, local_rank = 0;
  pid_t pid = 0;
  std::string directory;         // its files: stdout.log, stderr.log, error.json; empty: none
  std::uint64_t start_time = 0;  // as that of the run; 0: not known
  bool operator==(const RunWorker&) const = default;
};
BOOST_DESCRIBE_STRUCT(RunWorker, (), (rank, local_rank, pid, start_time, directory))

/// What an agent tells of its run to other programs of the same user on the same machine
/// (elastrun-protocol(7), RUN REGISTRY).
struct RunEntry {
  std::string run_id;
  std::string name;                 // what people call the job
  pid_t pid = 0;                    // of the agent
  std::uint64_t start_time = 0;     // of that process: process::ProcessEntry
  std::uint64_t pid_namespace = 0;  // inode of /proc/self/ns/pid: where those numbers hold
  std::string boot_id;              // of the machine: /proc/sys/kernel/random/boot_id
  std::string agent_id;             // ELASTRUN_AGENT_ID of all that it starts
  std::string entry_point;          // script or module as typed
  std::string phase;                // "running", ...
  WallTime started{}, phase_since{};
  int min_nodes = 1, max_nodes = 1;
  std::string rdzv_backend;
  std::string endpoint;  // where the coordinator can be asked; empty: there is none
  int attempt = 0, max_restarts = 0, restarts_left = 0;
  std::string run_directory;       // empty: none
  std::string channel;             // ELASTRUN_CHANNEL of the workers; empty: none
  bool keeps_output = false;       // --redirects or --tee: there are log files
  WallTime group_started{};        // of the workers below
  std::vector<RunWorker> workers;  // by local rank; empty: none runs
  bool operator==(const RunEntry&) const = default;
};
BOOST_DESCRIBE_STRUCT(RunEntry, (),
                      (run_id, name, pid, start_time, pid_namespace, boot_id, agent_id, entry_point,
                       phase, started, phase_since, min_nodes, max_nodes, rdzv_backend, endpoint,
                       attempt, max_restarts, restarts_left, run_directory, channel, keeps_output,
                       group_started, workers))

/// One line of JSON, with U+FFFD for invalid UTF-8: names and paths may hold any bytes. Pure.
std::string encode(const RunEntry& entry);
/// Fails with Protocol for an invalid entry. Missing members have their defaults, but for
/// run_id, pid and start_time. Pure.
Result<RunEntry> decode(std::string_view text);

/// What the name of an entry's file tells, so that most entries need not be read to know whether
/// they matter here: "PID-START_TIME-PID_NAMESPACE-BOOT.json".
struct FileName {
  pid_t pid = 0;
  std::uint64_t start_time = 0;
  std::uint64_t pid_namespace = 0;  // where those numbers hold
  std::string boot;                 // boot_prefix() of the machine's boot_id
  bool operator==(const FileName&) const = default;
};

/// The first word of a boot id: enough to tell one boot from others.
std::string boot_prefix(std::string_view boot_id);
std::string format_file_name(const FileName& name);
/// Nothing for any other name. Pure, as all of these.
std::optional<FileName> parse_file_name(std::string_view name);

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
/// have left nothing that one could find (DeadRun). Entries of another pid namespace (a
/// container that shares the directory), another boot or another machine are not listed; they are
/// removed when their lock is free, those of this boot a day later. No more than some hundred files
/// are opened at a time.
std::vector<ListedRun> list_runs(const std::vector<std::string>& places,
                                 Agents agents = Agents::Alive);
/// One file again; fails with Closed if the run has gone, with Protocol or Io if it is unreadable.
Result<RunEntry> read_run(const std::string& path);

/// A run of which agent and guardian were killed together, and what it has left: what had left the
/// workers' process groups, which the kernel kills (process::GroupDeathSignal), but not their
/// sessions.
struct DeadRun : ListedRun {
  /// Those that are the run's for certain: in the session of a worker that the entry names, not
  /// older than it, that session not led by a later process of the same number, and with the mark
  /// of the run's agent (ELASTRUN_AGENT_ID) in their environment. A process that has cleared its
  /// environment or made a new session is not certain, and not among them; nor is a job that a
  /// worker has submitted to a scheduler, whose environment has the mark, too.
  process::ProcessTable left{};
  /// More may be the run's: they hang in the kernel, so that their environment cannot be read now,
  /// or they are this process, its ancestors, or of its session.
  bool unsure = false;
  process::ProcessTable alive{};  // of `left`, after end_dead_runs
};
/// Those of this pid namespace that have left something for certain. Of the others the files are
/// removed, unless they are unsure: those are to be looked at again.
std::vector<DeadRun> list_dead_runs(const std::vector<std::string>& places);
/// Sends SIGKILL to all that these have left, and waits for their ends `limit` at most. Removes
/// their files, too, where nothing lives still.
std::vector<DeadRun> end_dead_runs(const std::vector<std::string>& places, Duration limit);

}  // namespace elastrun::runs
