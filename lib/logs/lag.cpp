// SPDX-License-Identifier: Apache-2.0
#include "logs/lag.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::logs {
namespace {

/// A line without its end counts, too.
std::uint64_t lines_in(std::string_view text) {
  const auto ends = static_cast<std::uint64_t>(std::ranges::count(text, '\n'));
  return ends + (!text.empty() && text.back() != '\n' ? 1 : 0);
}

std::size_t room_below(std::size_t bound, std::size_t waiting) {
  return bound - std::min(bound, waiting);
}

}  // namespace

std::size_t Lag::take_filed(std::string_view lines, std::size_t waiting) {
  std::size_t taken = lines.size();
  if (skipping_) {
    taken = 0;
  } else if (const auto room = room_below(bounds_.filed, waiting); room < lines.size()) {
    taken = lines.substr(0, room).rfind('\n') + 1;  // npos + 1 is 0
    // From here on nothing is taken until the reader has caught up: single lines out of the middle
    // of a flood would tell nothing.
    skipping_ = true;
  }
  gap_.filed += lines_in(lines.substr(taken));
  return taken;
}

std::size_t Lag::take(std::string_view bytes, std::size_t waiting, Weight weight) {
  // Always: what ended the job is the one thing that must be shown.
  if (weight == Weight::Verdict) return bytes.size();
  const auto room = room_below(weight == Weight::Own ? bounds_.own : bounds_.output, waiting);
  const auto taken = std::min(room, bytes.size());
  gap_.lost += lines_in(bytes.substr(taken));
  return taken;
}

Lag::Gap Lag::gap_to_tell(std::size_t waiting, bool now) {
  const bool caught_up = waiting <= kCaughtUp;
  if (!caught_up && !now) return {};
  // Not when it is only told in the end: then the reader still lags.
  if (caught_up) skipping_ = false;
  return std::exchange(gap_, {});
}

}  // namespace elastrun::logs
