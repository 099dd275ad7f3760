// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "files/blocking_calls.hpp"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::logs {

/// The directories and files of one agent's run:
///
///     BASE/RUNID_xxxxxxxx/attempt_N/LOCAL_RANK/{stdout.log,stderr.log,error.json}
///     BASE/RUNID_xxxxxxxx/{agent.log,journal.jsonl,report.json}
/// BASE is --log-dir. Without one it is a new directory, elastrun_xxxxxxxx, which is removed at the
/// end unless it holds something of use: in the first of temporary_places() that can be used;
/// if nothing but small error files is expected and the user has named no place, in the memory file
/// system /dev/shm: making and removing a few directories on a disk takes as long as all else that
/// a launch does. With `/dev/null` there is nothing at all: all paths are empty, and all operations
/// succeed.
///
/// An attempt that starts again under the same number (the membership changed) becomes
/// `attempt_N.1`, `attempt_N.2`, ...: the logs of the earlier start stay.
class Layout {
 public:
  enum class Expected { ErrorFiles, Logs };

  /// Checks what can be checked before anything is started; makes nothing. Fails with Usage if BASE
  /// exists and is not a directory, or may not be written to.
  static Result<Layout> plan(std::string log_dir, std::string run_id,
                             Expected expected = Expected::Logs);

  /// From now on `announce` hears the path of a temporary root just before it is made: so that the
  /// guardian can remove it even when we are killed in that very moment.
  void announce_temporary_root(std::function<void(const std::string&)> announce) {
    announce_ = std::move(announce);
  }
  /// Makes the run's directory, with BASE where missing; true on the first call, afterwards it
  /// exists and nothing is done. Mode 0700: logs and error files are private.
  Status make_run();
  /// Logs once what people should know of what was made. On the thread of the loop; the others may
  /// be used on another.
  void say_remark();
  /// Makes the directory of the next start of workers, and the run's if need be: again where it was
  /// tidied away (tmpfiles.d(5) does so in /tmp, a logout may in /dev/shm). The path.
  Result<std::string> make_attempt(int restart_count);
  /// Makes the directory of one worker below the path that make_attempt gave.
  Result<std::string> make_rank(const std::string& attempt, int local_rank) const;

  bool is_null() const { return kind_ == Kind::Null; }
  bool is_temporary() const { return kind_ == Kind::Temporary; }
  /// True if the directory (with /dev/null: the temporary place) is on a file system of this
  /// machine, which always answers; unknown for a place named with --log-dir.
  bool is_local() const { return local_; }
  /// Empty before make_run.
  const std::string& run_directory() const { return run_; }
  /// The directory that settle() may remove; empty unless temporary and made.
  const std::string& temporary_root() const { return temporary_root_; }
  std::string journal() const { return in_run("journal.jsonl"); }
  std::string agent_log() const { return in_run("agent.log"); }
  std::string report() const { return in_run("report.json"); }

 private:
  enum class Kind { Given, Temporary, Null };
  Layout(Kind kind, std::string base, std::string run_id);
  std::string in_run(std::string_view name) const;
  std::vector<std::string> places() const;
  Result<std::string> make_temporary_root();

  // Set at construction
  Kind kind_;
  Expected expected_ = Expected::Logs;
  bool local_ = false;
  std::string base_;    // empty if temporary
  std::string run_id_;  // as a file name
  std::function<void(const std::string&)> announce_;
  // Change while running
  std::string temporary_root_;
  std::string run_;
  std::string remark_;         // empty: none
  std::map<int, int> starts_;  // by restart count
};

/// "RANK_DIRECTORY/error.json"; empty for an empty directory.
std::string error_file(const std::string& rank_directory);
/// The run id as part of a file name: at most 200 bytes, no `/` and no control characters.
std::string file_name_of(std::string_view run_id);

/// True if a log or error file below `directory` is not empty.
bool holds_something(const std::string& directory);
enum class Fate { Kept, Removed, Stays };
/// The end of a temporary root: removes it, unless `keep` and it holds something. It stays if that
/// is not possible, because no descriptor is left, say. An empty path does nothing.
Fate settle(const std::string& temporary_root, bool keep);

/// The launcher's log in the directory of the run, `agent.log`: while this lives, all lines from
/// level info on. At 10 MiB it becomes agent.1.log, that agent.2.log, and an older one goes.
///
/// The thread for files writes it. While the file system does not answer, up to 1,000 lines wait;
/// what comes then is counted, and the count is written. A file that cannot be written costs itself
/// and one warning.
class AgentLog {
 public:
  /// Borrows `calls`.
  AgentLog(files::BlockingCalls& calls, const std::string& path);
  ~AgentLog();
  AgentLog(const AgentLog&) = delete;
  AgentLog& operator=(const AgentLog&) = delete;

  static constexpr int kMostWaiting = 1000;
  static constexpr std::size_t kSize = 10 << 20;
  static constexpr std::size_t kOlderFiles = 2;

 private:
  class Sink;
  std::shared_ptr<Sink> sink_;
};

}  // namespace elastrun::logs
