// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace elastrun::files {

/// What waits to be written to one file, with its bounds. Pure: whoever uses it from two threads
/// locks.
///
/// Who fills it stops at `full` and goes on when half of that is left; so it holds `full` and the
/// last piece. What is written beyond that all the same, because it would be lost otherwise (the
/// last words of a worker), is taken up to `most`.
class Backlog {
 public:
  Backlog(std::size_t full, std::size_t most) : full_(full), most_(most) {}

  /// How many of the bytes were taken: the first ones.
  std::size_t add(std::string_view bytes) {
    const std::size_t room = most_ - std::min(most_, size());
    waiting_.append(bytes.substr(0, room));
    if (full()) was_full_ = true;
    return std::min(bytes.size(), room);
  }
  /// All that waits, in exchange for an empty buffer that is used again. It counts until done().
  void take(std::string& buffer) {
    buffer.clear();
    std::swap(buffer, waiting_);
    writing_ = buffer.size();
  }
  /// What was taken last is written or lost. True once after it has been full: there is room again.
  bool done() {
    writing_ = 0;
    if (waiting_.empty() && waiting_.capacity() > kKept) waiting_ = {};
    return size() <= full_ / 2 && std::exchange(was_full_, false);
  }

  bool full() const { return size() >= full_; }
  bool empty() const { return waiting_.empty(); }  // nothing to take
  std::size_t size() const { return waiting_.size() + writing_; }

 private:
  static constexpr std::size_t kKept = 256 << 10;  // an idle file keeps no more memory

  std::size_t full_, most_;
  std::string waiting_;
  std::size_t writing_ = 0;
  bool was_full_ = false;
};

}  // namespace elastrun::files
