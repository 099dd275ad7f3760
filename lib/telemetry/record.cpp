// SPDX-License-Identifier: Apache-2.0
#include "telemetry/record.hpp"

#include <algorithm>

namespace elastrun::telemetry {

const Value* Record::find(std::string_view attribute) const {
  const auto found = std::find_if(attributes.begin(), attributes.end(),
                                  [&](const Attribute& one) { return one.first == attribute; });
  return found == attributes.end() ? nullptr : &found->second;
}

}  // namespace elastrun::telemetry
