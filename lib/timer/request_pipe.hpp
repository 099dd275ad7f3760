// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "core/unique_fd.hpp"
#include "timer/torch_request.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace elastrun::timer {

/// A FIFO of our own, open at both ends. Its end removes it, and the folder that was made for it
/// alone. Making it may wait for the file system.
struct RequestPlace {
  std::string path, own_folder;  // own_folder empty: none
  UniqueFd reading, writing;
  bool made = false;

  RequestPlace() = default;
  RequestPlace(const RequestPlace&) = delete;
  RequestPlace& operator=(const RequestPlace&) = delete;
  ~RequestPlace();

  /// Returns what removes both, in place of the end, and may wait for the file system. If it is
  /// never called, both stay.
  std::function<void()> take_removal();

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
  /// How many have been heard.
  std::uint64_t lines() const { return lines_heard_; }

 private:
  void await_bytes();

  std::unique_ptr<RequestPlace> place_;
  boost::asio::posix::stream_descriptor reader_;
  const OnLine on_line_;
  RequestLines lines_;
  std::uint64_t lines_heard_ = 0;
  Lifetime lifetime_;  // completions may be queued when we go
};

}  // namespace elastrun::timer
