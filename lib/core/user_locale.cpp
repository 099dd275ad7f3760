// SPDX-License-Identifier: Apache-2.0
#include "core/user_locale.hpp"

#include "core/text.hpp"

#include <cstdlib>

namespace elastrun {

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const auto locale = to_lower(value);
    return locale.contains("utf-8") || locale.contains("utf8");
  }
  return false;
}

}  // namespace elastrun
