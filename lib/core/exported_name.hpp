// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace elastrun {

/// Gives a name of ours free: renames the entry that has it, as Prometheus renames a label that its
/// own would cover. "le" becomes "exported_le", with as many "exported_" as it takes.
template <class Value>
void make_room(std::vector<std::pair<std::string, Value>>& entries, const std::string& name) {
  using Entry = std::pair<std::string, Value>;
  const auto taken = std::ranges::find(entries, name, &Entry::first);
  if (taken == entries.end()) return;
  auto instead = "exported_" + name;
  while (std::ranges::find(entries, instead, &Entry::first) != entries.end())
    instead.insert(0, "exported_");
  taken->first = std::move(instead);
}

}  // namespace elastrun
