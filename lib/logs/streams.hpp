// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::logs {

/// The two output streams of one worker of one attempt: into files, through the agent to the
/// console (tee), straight to the console, or nowhere. `StreamFactory` makes it before the worker
/// starts; destroying it closes what is open and drops what was not read.
///
/// stderr always passes through the agent, so that the verdict can quote the last lines. A full
/// disk or a closed console costs output, never the worker: the agent reads the pipes to their end
/// whatever happens behind them.
class WorkerStreams {
 public:
  virtual ~WorkerStreams() = default;
  /// For the launch request; -1: the worker inherits the agent's.
  virtual int stdout_fd() const = 0;
  virtual int stderr_fd() const = 0;
  /// The worker has its copies: close ours and begin to read.
  virtual void started() = 0;
  /// Reads what is in the pipes now, inside the call; they go on being read. What a worker has
  /// written before it ended is known then, and its children can still write.
  virtual void catch_up() = 0;
  /// `on_drained` runs once on the loop when all that was written has been read and passed on.
  /// With `give_up_rest`, what is in the pipes now is read, without waiting for their end (a
  /// process that left the group may hold them open), and they are closed: who writes on gets
  /// SIGPIPE. May be called again, say with `give_up_rest` when a first call takes too long; then
  /// only the latest `on_drained` runs, once.
  virtual void drain(bool give_up_rest, std::function<void()> on_drained) = 0;
  /// The last lines seen on stderr, oldest first, at most `count`, each cut at 2,000 bytes. Where
  /// stdout and stderr go to one place untouched, what stdout wrote in between is among them.
  virtual std::vector<std::string> last_lines(std::size_t count) const = 0;
  /// Returns stdout's last lines if they are kept (StreamFactory::keep_stdout); else none.
  virtual std::vector<std::string> last_stdout_lines(std::size_t count) const {
    (void)count;
    return {};
  }
  /// True if stdout and stderr are mixed: the last lines may be of either.
  virtual bool mixes_streams() const = 0;
  /// True if all that stderr had is still known. If not, the first line that is may lack its start.
  virtual bool knows_all_lines() const = 0;
  /// When the last occurrence of `text` on stderr came in; "": its last bytes. Nothing if it did
  /// not, or long ago.
  virtual std::optional<TimePoint> seen_at(std::string_view text) const = 0;
  /// Path of the file a stream is written to; empty if none.
  virtual std::string stdout_path() const = 0;
  virtual std::string stderr_path() const = 0;
};

}  // namespace elastrun::logs
