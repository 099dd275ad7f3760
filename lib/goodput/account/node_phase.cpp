// SPDX-License-Identifier: Apache-2.0
#include "goodput/account/node_phase.hpp"

#include <algorithm>
#include <array>

namespace elastrun::goodput {
namespace {

constexpr std::array<std::string_view, 8> kPhases = {"joining",  "starting", "running", "settling",
                                                     "stopping", "waiting",  "barrier", "ended"};

}  // namespace

std::string_view phase_name(NodePhase phase) {
  return kPhases[static_cast<std::size_t>(phase)];
}

std::optional<NodePhase> phase_named(std::string_view name) {
  const auto found = std::ranges::find(kPhases, name);
  if (found == kPhases.end()) return std::nullopt;
  return static_cast<NodePhase>(found - kPhases.begin());
}

std::optional<NodePhase> phase_of(const telemetry::Record& record) {
  if (record.name != "phase") return std::nullopt;
  const auto* name = std::get_if<std::string>(record.find("phase"));
  return name == nullptr ? std::nullopt : phase_named(*name);
}

}  // namespace elastrun::goodput
