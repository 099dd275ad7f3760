// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::exporter {

/// Pieces of text that wait for somebody slow, with a bound of bytes: the oldest go first, counted.
/// Pure.
class PieceQueue {
 public:
  explicit PieceQueue(std::size_t most) : most_(most) {}

  void add(std::string piece) {
    bytes_ += piece.size();
    pieces_.push_back(std::move(piece));
    while (bytes_ > most_) {
      bytes_ -= pieces_.front().size();
      pieces_.pop_front();
      dropped_ += 1;
    }
  }
  /// The oldest, together at most so many bytes, but at least one.
  std::vector<std::string> take(std::size_t bytes) {
    std::vector<std::string> taken;
    std::size_t size = 0;
    while (!pieces_.empty() && (taken.empty() || size + pieces_.front().size() <= bytes)) {
      size += pieces_.front().size();
      taken.push_back(std::move(pieces_.front()));
      pieces_.pop_front();
    }
    bytes_ -= size;
    return taken;
  }
  bool empty() const { return pieces_.empty(); }
  std::size_t size() const { return pieces_.size(); }
  std::size_t bytes() const { return bytes_; }
  std::uint64_t dropped() const { return dropped_; }

 private:
  const std::size_t most_;
  std::deque<std::string> pieces_;
  std::size_t bytes_ = 0;
  std::uint64_t dropped_ = 0;
};

}  // namespace elastrun::exporter
