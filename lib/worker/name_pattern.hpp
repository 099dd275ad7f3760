// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace elastrun::worker {
namespace detail {
/// With `*` for any text and `?` for any byte. Where a text after a star does not fit, the last
/// star alone takes one more: no pattern takes longer than its length times that of the name.
inline bool fits(std::string_view pattern, std::string_view name) {
  std::size_t at = 0, star = pattern.npos, taken = 0;
  for (std::size_t i = 0; i < name.size();) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      taken = i;
    } else if (at < pattern.size() && (pattern[at] == '?' || pattern[at] == name[i])) {
      ++at, ++i;
    } else if (star != pattern.npos) {
      at = star + 1;
      i = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', at) == pattern.npos;
}
}  // namespace detail

}  // namespace elastrun::worker
