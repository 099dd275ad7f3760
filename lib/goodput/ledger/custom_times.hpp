// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

namespace elastrun::goodput {

/// What of the Custom bucket went to which of the names that scripts give: a breakdown beside the
/// ledger, pure, told how much the bucket holds. Names are the workers': beyond kMost, and where
/// there is none, time goes to kOther.
class CustomTimes {
 public:
  static constexpr std::size_t kMost = 32;
  static constexpr std::size_t kLongest = 64;  // bytes of a name
  static constexpr std::string_view kOther = "other";

  /// From here on the bucket, which holds `so_far`, grows for `name`, in small letters: recorders
  /// write capitals.
  void enter(std::string_view name, Duration so_far);
  /// By name; they add up to `so_far`. It may have fallen, by what turned out to be a hang.
  std::map<std::string, Duration> times(Duration so_far) const;

 private:
  std::map<std::string, Duration> times_;
  std::string name_;
  Duration entered_{};  // what the bucket held then
};

}  // namespace elastrun::goodput
