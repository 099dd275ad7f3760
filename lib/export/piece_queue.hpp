// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::exporter {

/// Pieces that wait for a slow receiver, bounded in bytes: drops the oldest first, and counts them.
/// `size_of` tells how many bytes one has. Pure.
template <class Piece, auto size_of>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t most) : most_(most) {}

  void add(Piece piece) {
    bytes_ += size_of(piece);
    pieces_.push_back(std::move(piece));
    while (bytes_ > most_) {
      bytes_ -= size_of(pieces_.front());
      pieces_.pop_front();
      dropped_ += 1;
    }
  }
  /// The oldest, together at most so many bytes, but at least one.
  std::vector<Piece> take(std::size_t bytes) {
    std::vector<Piece> taken;
    std::size_t size = 0;
    while (!pieces_.empty() && (taken.empty() || size + size_of(pieces_.front()) <= bytes)) {
      size += size_of(pieces_.front());
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
  std::deque<Piece> pieces_;
  std::size_t bytes_ = 0;
  std::uint64_t dropped_ = 0;
};

constexpr std::size_t size_of_text(const std::string& text) {
  return text.size();
}
using PieceQueue = BoundedQueue<std::string, size_of_text>;

}  // namespace elastrun::exporter
