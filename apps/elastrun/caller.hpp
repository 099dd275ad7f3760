// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"
#include "core/unique_fd.hpp"

#include <cstdint>
#include <string>

namespace elastrun {

/// A stream socket to the process that started this one, which is a Python program that drives it
/// as its agent (package elastrun.agent): one JSON text a line in each direction. What it says is
/// checked like all that comes from outside; a caller that does not read loses records, never the
/// result.
class Caller {
 public:
  /// The longest line, both ways.
  static constexpr std::size_t kLongestLine = 64U << 20;
  /// Takes the descriptor. Fails with Usage unless it is a connected socket.
  static Result<Caller> take(int descriptor);

  /// The next line. Waits without limit; fails with Closed at the end of the stream and with
  /// Protocol for what is too long or no JSON.
  Result<json::value> hear();
  /// At once or, where the socket is full, with a later line; of what has waited too long, the
  /// newest is lost.
  void tell(const json::value& line);
  /// All that waits and then this: takes as long as the caller reads, a minute without reading at
  /// most.
  Status tell_last(const json::value& line);

  int descriptor() const { return socket_.get(); }
  std::uint64_t lost() const { return lost_; }

 private:
  explicit Caller(UniqueFd socket) : socket_(std::move(socket)) {}
  bool write_some(bool waits);

  UniqueFd socket_;
  std::string heard_;    // not yet a line
  std::string waiting_;  // not yet written
  std::uint64_t lost_ = 0;
};

}  // namespace elastrun
