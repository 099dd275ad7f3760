// SPDX-License-Identifier: Apache-2.0
#include "logs/tail.hpp"

#include <algorithm>

namespace elastrun::logs {
namespace {

constexpr std::size_t kMostPieces = 256;  // a traceback comes line by line, each a separate write

}  // namespace

void Tail::add(std::string_view bytes, TimePoint now) {
  pieces_.push_back({total_, now});
  if (pieces_.size() > kMostPieces) pieces_.pop_front();
  total_ += bytes.size();
  // After the total, which counts what is dropped here as well: seen_at() computes offsets in the
  // stream by it.
  if (bytes.size() > bytes_) bytes.remove_prefix(bytes.size() - bytes_);
  // Cut only when twice as long: each byte is then moved once on average.
  if (text_.size() + bytes.size() > 2 * bytes_) {
    text_.erase(0, text_.size() + bytes.size() - bytes_);
  }
  text_.append(bytes);
}

std::optional<TimePoint> Tail::seen_at(std::string_view text) const {
  // The last one: a message may have been logged before it became the error that ended the worker.
  const auto found = text_.rfind(text);
  if (found == std::string::npos) return std::nullopt;
  const auto offset = total_ - text_.size() + found;
  const auto next = std::ranges::upper_bound(pieces_, offset, {}, &Piece::start);
  if (next == pieces_.begin()) return std::nullopt;
  return std::prev(next)->at;
}

}  // namespace elastrun::logs
