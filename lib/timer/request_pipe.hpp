// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/file_io.hpp"
#include "core/lifetime.hpp"
#include "core/unique_fd.hpp"
#include "timer/watchdog.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::timer {

/// One line of torch's FileTimerClient, without its end: a JSON object with pid, scope_id,
/// expiration_time (seconds since the epoch by the wall clock; negative: released) and signal.
/// Other members mean nothing to us.
///
/// The expiration is turned into a deadline of the monotonic clock at once, so that a wall clock
/// that is set later neither kills nor spares anybody. One in the past has expired already.
/// Where a writer has died in the middle of its line, the request that follows on the same line
/// counts. Hostile until parsed: anything else fails with Protocol and one sentence. Pure.
Result<Request> parse_torch_request(std::string_view line, TimePoint now, WallTime wall);

/// The expired timers of each worker, by its pid: each a JSON text as torch's clients send them.
using ExpiredTexts = std::map<std::int64_t, std::vector<std::string>>;
using DebugInfoHook = std::function<void(const std::string& run_id, const ExpiredTexts& timers)>;

/// torch's hook of the same name: called when timers have expired, before anybody is reaped. Writes
/// them to the log at level info, or does what set_debug_info_hook() was given.
void log_debug_info_for_expired_timers(const std::string& run_id, const ExpiredTexts& timers);
/// For launchers of your own; empty: back to the log. It must not wait.
void set_debug_info_hook(DebugInfoHook hook);

/// A FIFO of our own, open at both ends.
struct RequestPlace : OwnName {
  UniqueFd reading, writing;

  /// At `path`, in place of a FIFO of our own user that an earlier agent has left there; if `path`
  /// is empty, in a new folder below $TMPDIR or /tmp. Fails with Io: anything else is there,
  /// another process reads that FIFO (the agent above this one), or no FIFO can be made.
  static Result<std::unique_ptr<RequestPlace>> make(const std::string& path);
};

/// The FIFO to which torch's FileTimerClients write their requests, a line each. Only our own user
/// can write to it (mode 0600). It is never waited for: a client that writes nothing, or half a
/// line, delays no other. One descriptor to write with is kept here, so that clients may come and
/// go.
class RequestPipe {
 public:
  using OnLine = std::function<void(std::string_view line)>;

  RequestPipe(boost::asio::io_context& loop, std::unique_ptr<RequestPlace> place, OnLine on_line);
  RequestPipe(const RequestPipe&) = delete;
  RequestPipe& operator=(const RequestPipe&) = delete;

  const std::string& path() const { return place_->path; }
  /// Empty: none was made.
  const std::string& own_folder() const { return place_->own_folder; }
  /// Ends reading and hands its place over.
  std::unique_ptr<RequestPlace> take_place();
  /// Reads what is there now, for callers that must know of every request before this moment.
  void catch_up();

 private:
  void await_bytes();

  std::unique_ptr<RequestPlace> place_;
  boost::asio::posix::stream_descriptor reader_;
  const OnLine on_line_;
  std::string line_;   // what has no end yet
  Lifetime lifetime_;  // completions may be queued when we go
};

}  // namespace elastrun::timer
