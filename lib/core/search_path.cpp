// SPDX-License-Identifier: Apache-2.0
#include "core/search_path.hpp"

#include "core/text.hpp"

namespace elastrun {

std::vector<std::string> program_candidates(const std::string& name,
                                            std::optional<std::string_view> path) {
  if (name.contains('/')) return {name};
  std::vector<std::string> places;
  // Without PATH as confstr(_CS_PATH) says. An empty part of it is the current directory.
  for (const auto& folder : split(path.value_or("/bin:/usr/bin"), ':')) {
    places.push_back((folder.empty() ? "." : folder) + "/" + name);
  }
  return places;
}

}  // namespace elastrun
