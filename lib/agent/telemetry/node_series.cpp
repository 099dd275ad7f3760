// SPDX-License-Identifier: Apache-2.0
#include "agent/telemetry/node_series.hpp"

#include "agent/telemetry/job_records.hpp"
#include "core/log.hpp"
#include "core/text.hpp"

#include <optional>

namespace elastrun::agent {
namespace {

using rendezvous::Cause;

// The longest name that DNS has (RFC 1035, without the length bytes).
constexpr std::size_t kLongestName = 253;

/// None: nothing that a node has done to the others.
std::optional<std::string_view> interruption(Cause::Kind kind) {
  switch (kind) {
    case Cause::Kind::WorkerFailed:
      return "worker_failed";
    case Cause::Kind::NodeLost:
      return "node_lost";
    case Cause::Kind::NodeLeft:
      return "node_left";
    case Cause::Kind::NodeJoined:
    case Cause::Kind::Closed:
    case Cause::Kind::CoordinatorLost:
    case Cause::Kind::Timeout:
    case Cause::Kind::Preempted:  // ordered, not suffered
      break;
  }
  return std::nullopt;
}

}  // namespace

NodeSeries::NodeSeries(telemetry::Registry& registry) {
  const auto observe = [&](telemetry::Kind kind, std::string name, std::string unit,
                           std::string help, std::vector<std::string> labels,
                           telemetry::Registry::Observer observer) {
    auto made = registry.observe(kind,
                                 {.name = std::move(name),
                                  .unit = std::move(unit),
                                  .help = std::move(help),
                                  .scope = std::string(JobRecords::kScope),
                                  .label_keys = std::move(labels)},
                                 std::move(observer));
    if (!made) return log::info("telemetry", "{}", made.error().text);
    observations_.push_back(std::move(*made));
  };
  observe(telemetry::Kind::Gauge, "elastrun.node.up", "",  // no ratio

          "Whether a node of the job is in its world.", {"node"}, [this](const Report& report) {
            for (const auto& [node, up] : up_) {
              if (here_) report(up ? 1 : 0, {node});
            }
          });
  observe(telemetry::Kind::Counter, "elastrun.node.interruptions", "{interruption}",
          "Restarts of the workers, by the node where the cause was.", {"node", "cause"},
          [this](const Report& report) {
            for (const auto& [key, count] : interruptions_) {
              if (here_) report(static_cast<double>(count), {key.first, std::string(key.second)});
            }
          });
}

void NodeSeries::round_ready(const rendezvous::Round& round, Duration) {
  here_ = round.group_rank == 0;  // only there all entries are complete
  if (!here_) return;
  addresses_.clear();
  // Those that have gone are told as 0 from now on, instead of not at all: people can write an
  // alert on that.
  for (auto& [node, up] : up_) up = false;
  for (const auto& member : round.members) {
    // Another node says it: no longer than a host name may be, and text.
    const auto& said = member.address.empty() ? member.id : member.address;
    const auto address = valid_utf8(cut(said, kLongestName));
    addresses_[member.id] = address;
    // On spot machines a long job meets ever new ones.
    if (up_.size() < kMost || up_.contains(address)) up_[address] = true;
  }
}

void NodeSeries::restarting(const rendezvous::Restart& order) {
  const auto cause = interruption(order.cause.kind);
  const auto known = addresses_.find(order.cause.node);
  if (!cause || known == addresses_.end() || !up_.contains(known->second)) return;
  ++interruptions_[{known->second, *cause}];
  if (order.cause.kind != Cause::Kind::WorkerFailed) up_[known->second] = false;
}

}  // namespace elastrun::agent
