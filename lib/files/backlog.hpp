// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "files/buffer_pool.hpp"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace elastrun::files {

/// What waits to be written to one file, in pieces, with its bounds. Pure: users on two threads
/// lock.
///
/// Who fills it stops at `full` and goes on when half of that is left; so it holds `full` and what
/// came last. What is written beyond that all the same, because it would be lost otherwise (the
/// last words of a worker), is taken up to `most`.
class Backlog {
 public:
  static constexpr std::size_t kPiece = BufferPool::kBytes;
  /// Larger ones are not copied. So what waits takes at most twice the memory that it counts.
  static constexpr std::size_t kWorthSharing = kPiece / 2;
  using Piece = std::shared_ptr<const std::string>;

  Backlog(std::size_t full, std::size_t most) : full_(full), most_(most) {}

  /// How many of the bytes were taken: the first ones. They are copied.
  std::size_t add(std::string_view bytes) {
    const auto taken = bytes.substr(0, room());
    if (taken.empty()) return 0;
    if (!open_ || open_->size() + taken.size() > kPiece) {
      open_ = std::make_shared<std::string>();
      waiting_.push_back(open_);
    }
    open_->append(taken);
    count(taken.size());
    return taken.size();
  }
  /// The same for a buffer, which is shared if that is worth it and all of it may wait; do not
  /// change it then.
  std::size_t add(const Piece& buffer) {
    if (buffer->size() < kWorthSharing || buffer->size() > room()) {
      return add(std::string_view(*buffer));
    }
    open_.reset();
    waiting_.push_back(buffer);
    count(buffer->size());
    return buffer->size();
  }
  /// The oldest piece that waits; it counts until done(). Null: there is none.
  Piece take() {
    if (waiting_.empty()) return nullptr;
    auto piece = std::move(waiting_.front());
    waiting_.pop_front();
    if (piece == open_) open_.reset();
    writing_ = piece->size();
    return piece;
  }
  /// What was taken last is written or lost. True once after it has been full: there is room again.
  bool done() {
    size_ -= std::exchange(writing_, 0);
    return size_ <= full_ / 2 && std::exchange(was_full_, false);
  }

  bool full() const { return size_ >= full_; }
  bool empty() const { return waiting_.empty(); }  // nothing to take
  std::size_t size() const { return size_; }

 private:
  std::size_t room() const { return most_ - std::min(most_, size_); }
  void count(std::size_t bytes) {
    size_ += bytes;
    if (full()) was_full_ = true;
  }

  std::size_t full_, most_;
  std::deque<Piece> waiting_;
  std::shared_ptr<std::string> open_;  // the last of them, if more may be appended
  std::size_t size_ = 0;               // of what waits and is written
  std::size_t writing_ = 0;            // taken, and not yet done
  bool was_full_ = false;
};

}  // namespace elastrun::files
