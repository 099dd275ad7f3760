// SPDX-License-Identifier: Apache-2.0
#include "store/store.hpp"

#include "core/text.hpp"

#include <fmt/format.h>

namespace elastrun::store {

Error wait_timeout(Duration timeout, const std::vector<std::string>& keys) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  return {Code::Timeout, fmt::format("wait timeout after {}ms, keys: {}", ms, join(keys, ", "))};
}

}  // namespace elastrun::store
