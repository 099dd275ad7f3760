// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace elastrun::logs {

/// The end of a stream, and when each part of it came: what a worker wrote last tells why it ended,
/// and the moment tells who was first. Memory is bounded, whatever comes.
class Tail {
 public:
  explicit Tail(std::size_t bytes) : bytes_(bytes) {}

  void add(std::string_view bytes, TimePoint now);
  /// The last bytes: at least as many as were asked for, at most twice that, or all there were.
  std::string_view text() const { return text_; }
  /// Whether that is all there was. If not, it may begin inside a line.
  bool is_whole() const { return total_ == text_.size(); }
  /// When the last occurrence of `text` came in. Nothing if it is not there, or so far back that
  /// its moment is forgotten.
  std::optional<TimePoint> seen_at(std::string_view text) const;

 private:
  struct Piece {
    std::uint64_t start;  // in bytes since the start of the stream
    TimePoint at;
  };
  const std::size_t bytes_;
  std::string text_;
  std::uint64_t total_ = 0;
  std::deque<Piece> pieces_;  // the latest, in order
};

}  // namespace elastrun::logs
