// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/log.hpp"

#include <bit>
#include <cstdint>
#include <fmt/format.h>
#include <string_view>
#include <utility>

namespace elastrun {

/// Warnings that a hostile or broken peer can cause at will: the first ones are written, the others
/// counted, and written at every power of two.
class RateLimitedLog {
 public:
  explicit RateLimitedLog(std::string_view area) : area_(area) {}

  template <class... Args>
  void add(fmt::format_string<Args...> form, Args&&... args) {
    constexpr std::uint64_t kAll = 16;
    ++count_;
    if (count_ > kAll && !std::has_single_bit(count_)) return;
    const auto text = fmt::format(form, std::forward<Args>(args)...);
    if (count_ <= kAll) return log::warning(area_, "{}", text);
    log::warning(area_, "{} ({} such lines so far)", text, count_);
  }

 private:
  std::string_view area_;
  std::uint64_t count_ = 0;
};

}  // namespace elastrun
