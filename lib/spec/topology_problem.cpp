// SPDX-License-Identifier: Apache-2.0
// Apart from what an option becomes: the reader of messages needs no more of lib/spec than this.
#include "core/text.hpp"
#include "spec/topology_address.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::spec {
namespace {

// It travels with each join, and is printed.
constexpr std::size_t kLongestTopology = 256;
// The deepest fabrics have five. Each costs the coordinator a look at all nodes.
constexpr std::size_t kMostLevels = 16;

}  // namespace

std::string topology_problem(std::string_view address) {
  if (address.size() > kLongestTopology) {
    return fmt::format("it has {} bytes, more than {}", address.size(), kLongestTopology);
  }
  // Printable ASCII without spaces: what switches, racks and Kubernetes's labels are called.
  const auto bad = std::ranges::find_if(address, [](char one) { return one <= ' ' || one > '~'; });
  if (bad != address.end()) return "it has a byte that is not printable ASCII, or a space";
  const auto levels = split(address, '.');
  if (levels.size() > kMostLevels)
    return fmt::format("it has {} levels, more than {}", levels.size(), kMostLevels);
  return std::ranges::find(levels, "") == levels.end() ? "" : "one of its levels is empty";
}

}  // namespace elastrun::spec
