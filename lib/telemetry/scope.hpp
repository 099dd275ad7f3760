// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace elastrun::telemetry {

/// Whether a scope, or what torchelastic calls a group, is one of this program's own, in which
/// workers report nothing.
constexpr bool is_own_scope(std::string_view scope) {
  return scope == "elastrun" || scope.starts_with("elastrun.");
}

}  // namespace elastrun::telemetry
