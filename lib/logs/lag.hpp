// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace elastrun::logs {

/// Decides what becomes of output for a reader that may be slow or stuck. Pure.
/// Lines that a file has as well are left out, whole and counted, once waiting is over or too much
/// waits already; until the reader has caught up, so that there is one gap and not
/// many. What no file has is taken up to a larger bound. The agent's own lines have a separate
/// reserve, and the verdict has no bound.
class Lag {
 public:
  enum class Weight { Output, Own, Verdict };
  static constexpr std::size_t kFiled = 1 << 20;   // so much waits at most of what a file has
  static constexpr std::size_t kOutput = 4 << 20;  // and of what no file has
  static constexpr std::size_t kOwn = 5 << 20;     // and with what the agent says
  static constexpr std::size_t kCaughtUp = 64 << 10;
  struct Bounds {
    std::size_t filed = kFiled, output = kOutput, own = kOwn;
  };

  struct Gap {
    std::uint64_t filed = 0;  // lines that are in a file
    std::uint64_t lost = 0;   // lines that are nowhere
    bool empty() const { return filed == 0 && lost == 0; }
  };

  Lag() = default;
  explicit Lag(Bounds bounds) : bounds_(bounds) {}

  /// Ends the waiting: lines that a file has are left out from now on.
  void skip() { skipping_ = true; }
  bool skipping() const { return skipping_; }
  /// How many bytes of these whole lines, which a file has, may be added to so many that wait.
  std::size_t take_filed(std::string_view lines, std::size_t waiting);
  /// The same for what no file has.
  std::size_t take(std::string_view bytes, std::size_t waiting, Weight weight);
  /// Whether the reader has caught up with a gap, which is to be told then, or is to be told now
  /// because something follows that must not be left out (`now`). Gives it once.
  Gap gap_to_tell(std::size_t waiting, bool now);

 private:
  Bounds bounds_{};
  bool skipping_ = false;
  Gap gap_;
};

}  // namespace elastrun::logs
