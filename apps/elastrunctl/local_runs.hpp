// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/unique_fd.hpp"
#include "runs/run_registry.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::ctl {

/// All runs of this user on this machine. Says so on stderr where some may be missing.
std::vector<runs::ListedRun> runs_here();

/// The runs of one job: that whose name or run id is `job`, else the one whose agent has that pid,
/// else the only one whose name or run id begins so; an empty `job` means the only one there is.
/// Several runs of one job are several nodes on one machine. Fails with Rendezvous if there is
/// none, with Usage if there is more than one job, and names what there is. Pure.
Result<std::vector<runs::ListedRun>> runs_of(std::vector<runs::ListedRun> all,
                                             const std::string& job);

/// "4", "1 to 4".
std::string nodes_text(std::int64_t least, std::int64_t most);

/// Refuses a word that names neither a job of this machine nor an endpoint that answers, in 80
/// columns.
Error neither_here(const Error& here, const Error& there);

/// For people: one job in full, several with a line each. Pure.
std::string local_status_text(const std::vector<runs::ListedRun>& runs, WallTime now);

/// Lists what runs have left whose agent and guardian were killed together; empty: nothing. Pure
/// but for the command lines.
std::string dead_runs_text(const std::vector<runs::DeadRun>& dead);

/// Writes one line of JSON: {"runs":[...]}.
std::string local_status_json(const std::vector<runs::ListedRun>& runs);

/// One file of lines, read as it grows. With a label, which may be empty, it gives whole lines,
/// each with the label in front; without one the bytes as they are.
class LogTail {
 public:
  using Write = std::function<void(std::string_view)>;

  /// Begins `lines` lines before the end of what is there, or at the beginning. Fails with Io.
  static Result<LogTail> open(const std::string& path, std::optional<int> lines);

  void label(std::string label) { label_ = std::move(label); }
  /// Gives what has come since the last time.
  void read(const Write& write);
  /// Shows the rest, and a line end after an unfinished last line: nothing follows any more.
  void finish(const Write& write);

 private:
  explicit LogTail(UniqueFd file) : file_(std::move(file)) {}
  void give_lines(const Write& write);

  UniqueFd file_;
  std::optional<std::string> label_;
  std::string pending_;
};

}  // namespace elastrun::ctl
