// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "telemetry/registry.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// The nodes of the job as series of the node that has rank 0: which are in the world, and which
/// of them have interrupted it. A fall of goodput can then be laid at the door of a machine.
class NodeSeries final : public Observer {
 public:
  /// Nodes are named by scripts and networks: others than the first ones are not told.
  static constexpr std::size_t kMost = 2000;
  explicit NodeSeries(telemetry::Registry& registry);

  void round_ready(const rendezvous::Round& round, Duration waited) override;
  void restarting(const rendezvous::Restart& order) override;
  void role_restarting(const rendezvous::Restart& order) override { restarting(order); }

 private:
  using Report = telemetry::Registry::Report;
  bool here_ = false;
  std::map<std::string, std::string> addresses_;  // by the id in this world
  std::map<std::string, bool> up_;                // by address
  std::map<std::pair<std::string, std::string_view>, std::int64_t> interruptions_;  // and cause
  std::vector<telemetry::Observation> observations_;
};

}  // namespace elastrun::agent
