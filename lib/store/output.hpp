// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "net/bytes.hpp"
#include "store/table.hpp"

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <sys/uio.h>
#include <vector>

namespace elastrun::store {

/// Bytes on their way to one peer: its own small ones, and large values shared with the store and
/// with other peers. Keeps a little memory when empty, so that a busy connection does not allocate
/// at every answer; otherwise at most about twice what is left to send.
class Output {
 public:
  void put(std::string_view bytes) { own_.append(bytes); }
  void put(char byte) { own_.push_back(byte); }
  template <std::integral T>
  requires(sizeof(T) > 1) void put_number(T number) { net::append(own_, number); }
  /// Length and bytes.
  void put_value(const Value& value);
  void put_text(std::string_view text) {
    put_number<std::uint64_t>(text.size());
    put(text);
  }

  bool empty() const { return own_.size() == own_sent_ && pieces_.empty(); }
  /// Bytes not sent yet, and those of them that are kept for this peer alone.
  std::size_t size() const { return own_size() + shared_; }
  std::size_t own_size() const { return own_.size() - own_sent_; }
  /// Bytes of memory that it holds itself, sent or not: for tests.
  std::size_t held() const { return own_.capacity() + pieces_.capacity() * sizeof(Piece); }

  /// Fills `parts` with what comes next; returns how many are used.
  std::size_t gather(std::span<iovec> parts) const;
  /// The first `count` bytes have been sent.
  void sent(std::size_t count);
  /// All that is waiting, as one string, which is then empty here: for tests and vectors.
  std::string take();

 private:
  struct Piece {
    std::size_t after = 0;  // place in own_ that comes before it
    std::shared_ptr<const std::string> bytes;
  };
  void emptied();
  void trim();

  std::string own_;
  std::size_t own_sent_ = 0;
  std::vector<Piece> pieces_;
  std::size_t first_piece_ = 0;
  std::size_t piece_sent_ = 0;
  std::size_t shared_ = 0;
};

}  // namespace elastrun::store
