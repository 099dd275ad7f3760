// SPDX-License-Identifier: Apache-2.0
#include "store/output.hpp"

#include <algorithm>
#include <array>

namespace elastrun::store {
namespace {

// Capacity that an idle connection may keep: some answers to small GETs.
constexpr std::size_t kKeep = 256;
// From this much sent on, memory is given back while the rest still waits.
constexpr std::size_t kTrimFrom = 64u << 10;

iovec part(std::string_view bytes) {
  return {const_cast<char*>(bytes.data()), bytes.size()};  // iovec(3type) serves readv(2) as well
}

}  // namespace

void Output::put_value(const Value& value) {
  put_number<std::uint64_t>(value.view().size());
  // A large value is sent from the table's bytes: thousands of readers cost one copy.
  if (auto bytes = value.shared()) {
    shared_ += bytes->size();
    pieces_.push_back({own_.size(), std::move(bytes)});
  } else {
    put(value.view());
  }
}

std::size_t Output::gather(std::span<iovec> parts) const {
  std::size_t used = 0;
  std::size_t place = own_sent_;
  std::size_t skip = piece_sent_;
  // Two parts at most for each piece: the own bytes before it, and itself.
  for (std::size_t i = first_piece_; i < pieces_.size() && used + 2 <= parts.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (piece.after > place) {
      parts[used++] = part(std::string_view(own_).substr(place, piece.after - place));
      place = piece.after;
    }
    parts[used++] = part(std::string_view(*piece.bytes).substr(skip));
    skip = 0;
    // Without room for the next piece, what follows that must not go first.
    if (i + 1 < pieces_.size() && used + 2 > parts.size()) return used;
  }
  if (used < parts.size() && place < own_.size()) {
    parts[used++] = part(std::string_view(own_).substr(place));
  }
  return used;
}

void Output::sent(std::size_t count) {
  while (count > 0) {
    const bool piece_left = first_piece_ < pieces_.size();
    const auto own_end = piece_left ? pieces_[first_piece_].after : own_.size();
    const auto own = std::min(count, own_end - own_sent_);
    own_sent_ += own;
    count -= own;
    if (!piece_left || own_sent_ < own_end) continue;
    const auto shared = std::min(count, pieces_[first_piece_].bytes->size() - piece_sent_);
    piece_sent_ += shared;
    shared_ -= shared;
    count -= shared;
    if (piece_sent_ == pieces_[first_piece_].bytes->size()) {
      // A value that was replaced meanwhile goes from memory once its last peer has it.
      pieces_[first_piece_++].bytes.reset();
      piece_sent_ = 0;
    }
  }
  if (first_piece_ == pieces_.size() && own_sent_ == own_.size()) return emptied();
  trim();
}

/// Gives back what was sent, once that is more than what is left: a peer that always has something
/// to read would otherwise never let it go. Each byte is moved once on average.
void Output::trim() {
  const bool much = own_sent_ >= kTrimFrom || first_piece_ * sizeof(Piece) >= kTrimFrom;
  if (!much || own_sent_ < own_size() || first_piece_ < pieces_.size() - first_piece_) return;
  own_ = own_.substr(own_sent_);
  pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<std::ptrdiff_t>(first_piece_));
  for (Piece& piece : pieces_) piece.after -= own_sent_;
  own_sent_ = 0;
  first_piece_ = 0;
}

void Output::emptied() {
  own_sent_ = 0;
  first_piece_ = 0;
  // By swap: what is assigned {} is empty and keeps its memory.
  if (own_.capacity() > kKeep) {
    std::string().swap(own_);
  } else {
    own_.clear();
  }
  std::vector<Piece>().swap(pieces_);
}

std::string Output::take() {
  std::string all;
  std::array<iovec, 16> parts;
  while (!empty()) {
    const auto used = gather(parts);
    std::size_t size = 0;
    for (std::size_t i = 0; i < used; ++i) {
      all.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
      size += parts[i].iov_len;
    }
    sent(size);
  }
  return all;
}

}  // namespace elastrun::store
