// SPDX-License-Identifier: Apache-2.0
// The events that torchrun records of agent and workers, key by key.
#include "core/json.hpp"
#include "telemetry/events.hpp"

#include <fmt/format.h>

namespace elastrun::telemetry::events {
namespace {

Value value_or_null(const std::optional<int>& number) {
  return number ? Value(static_cast<std::int64_t>(*number)) : Value();
}

Value value_or_null(const std::optional<std::string>& text) {
  return text ? Value(*text) : Value();
}

json::object inner_metadata(const AgentFacts& agent) {
  return {{"group_world_size", or_null(agent.group_world_size)},
          {"entry_point", agent.entry_point}};
}

/// The keys in torchrun's order; what is empty here is filled by the caller.
std::vector<Attribute> outer_metadata(std::string_view state, const AgentFacts& agent,
                                      const std::optional<std::string>& raw_error,
                                      const json::object& inner) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(agent.total_run_time);
  return {{"run_id", agent.run_id},
          {"global_rank", {}},
          {"group_rank", value_or_null(agent.group_rank)},
          {"worker_id", {}},
          {"role", agent.role},
          {"hostname", agent.hostname},
          {"state", std::string(state)},
          {"total_run_time", static_cast<std::int64_t>(seconds.count())},
          {"rdzv_backend", agent.rdzv_backend},
          {"raw_error", value_or_null(raw_error)},
          // A text and not an object: torchrun writes json.dumps of it into the outer one, and
          // readers parse it twice.
          {"metadata", python_json(inner)},
          {"agent_restarts", static_cast<std::int64_t>(agent.agent_restarts)}};
}

std::string status_name(std::string_view state) {
  return fmt::format("torchelastic.worker.status.{}", state);
}

}  // namespace

Event agent_event(std::string_view state, const AgentFacts& agent, std::optional<Duration> duration,
                  std::optional<std::string> raw_error) {
  auto metadata = outer_metadata(state, agent, raw_error, inner_metadata(agent));
  Value milliseconds;
  if (duration) milliseconds = std::chrono::duration<double, std::milli>(*duration).count();
  metadata.emplace_back("duration_ms", std::move(milliseconds));
  return {status_name(state), Source::Agent, 0, std::move(metadata)};
}

Event worker_event(std::string_view state, const AgentFacts& agent, const WorkerFacts& worker,
                   std::optional<std::string> raw_error) {
  auto inner = inner_metadata(agent);
  // Each a list of one, as torchrun writes them.
  inner["local_rank"] = json::array{worker.local_rank};
  inner["role_rank"] = json::array{worker.role_rank};
  inner["role_world_size"] = json::array{worker.role_world_size};
  inner["exit_code"] = json::array{or_null(worker.exit_code)};
  inner["worker_pid"] = json::array{worker.exit_code ? or_null(worker.pid) : json::value(nullptr)};
  auto metadata = outer_metadata(state, agent, raw_error, inner);
  // By place, in the order of outer_metadata: global_rank and worker_id.
  metadata[1].second = static_cast<std::int64_t>(worker.global_rank);
  if (worker.pid) metadata[3].second = fmt::to_string(*worker.pid);
  metadata.emplace_back("duration_ms", Value());
  return {status_name(state), Source::Worker, 0, std::move(metadata)};
}

Event watchdog_event(std::string_view name, const AgentFacts& agent,
                     const std::vector<std::pair<std::string, std::string>>& timer) {
  json::object inner{{"watchdog_event", name}};
  for (const auto& [key, value] : timer) inner[key] = value;
  return {std::string(name), Source::Agent, 0, outer_metadata("RUNNING", agent, {}, inner)};
}

}  // namespace elastrun::telemetry::events
