// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace elastrun::goodput {

/// Which step of a start of the workers is safe, from the checkpoints that its ranks say are done.
/// Where only rank 0 says so, it speaks for all. Where several do, each may have saved its part: a
/// step is safe once all of them have it. Another rank alone may have saved anything. Pure.
class SafeStep {
 public:
  void start() { done_.clear(); }
  /// `rank` has saved `step`; the safe one, if there is one.
  std::optional<std::int64_t> done(std::int64_t rank, std::int64_t step);

 private:
  static constexpr std::size_t kMost = 65'536;  // ranks
  std::map<std::int64_t, std::int64_t> done_;
};

}  // namespace elastrun::goodput
