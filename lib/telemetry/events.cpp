// SPDX-License-Identifier: Apache-2.0
#include "telemetry/events.hpp"

#include "core/json.hpp"
#include "core/text.hpp"
#include "telemetry/record.hpp"

#include <cstdlib>
#include <fmt/format.h>
#include <map>
#include <unistd.h>

namespace elastrun::telemetry::events {
namespace {

std::string_view source_name(Source source) {
  return source == Source::Agent ? "AGENT" : "WORKER";
}

/// Turns records back into events for one handler.
class HandlerSink final : public Sink {
 public:
  explicit HandlerSink(std::shared_ptr<EventHandler> handler) : handler_(std::move(handler)) {}
  void consume(const Record& record) override {
    const auto since = record.stamp.wall.time_since_epoch();
    handler_->record(
        {record.name, record.scope.ends_with(".agent") ? Source::Agent : Source::Worker,
         std::chrono::duration_cast<std::chrono::milliseconds>(since).count(), record.attributes});
  }

 private:
  std::shared_ptr<EventHandler> handler_;
};

/// torchelastic's event logger has the level LOGLEVEL, or INFO, and records at INFO.
bool silenced_by_log_level() {
  const char* text = std::getenv("LOGLEVEL");
  if (text == nullptr) return false;
  const std::string level = to_lower(trim(text));
  // 20 is INFO in Python's logging.
  if (const auto number = parse_int(level)) return *number > 20;
  for (const char* name : {"warning", "warn", "error", "critical", "fatal"}) {
    if (level == name) return true;
  }
  return false;
}

using Registry = std::map<std::string, HandlerFactory, std::less<>>;

Registry& registry() {
  static Registry handlers = [] {
    const HandlerFactory null = [](const LineWriter&) {
      return std::make_shared<NullEventHandler>();
    };
    const HandlerFactory console = [](const LineWriter& write) -> std::shared_ptr<EventHandler> {
      if (silenced_by_log_level()) return std::make_shared<NullEventHandler>();
      return std::make_shared<ConsoleEventHandler>(write);
    };
    // torchelastic's names: "dynamic_rendezvous" is a logger of its rendezvous, which it sends
    // nowhere either.
    return Registry{{"null", null}, {"dynamic_rendezvous", null}, {"console", console}};
  }();
  return handlers;
}

Value value_or_null(const auto& optional) {
  return optional ? Value(*optional) : Value();
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

std::string Event::to_json() const {
  json::object data;
  for (const auto& [key, value] : metadata) data[key] = telemetry::to_json(value);
  json::object event;
  event["name"] = name;
  event["source"] = json::string_view(source_name(source));
  event["timestamp"] = timestamp;
  event["metadata"] = std::move(data);
  return python_json(event);
}

ConsoleEventHandler::ConsoleEventHandler(LineWriter write) : write_(std::move(write)) {
  if (write_) return;
  write_ = [](std::string_view line) {
    // One write(2) for a line: up to PIPE_BUF those of several processes do not mix in a pipe
    // (pipe(7)).
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  };
}

void ConsoleEventHandler::record(const Event& event) {
  write_(event.to_json() + "\n");
}

void register_handler(std::string name, HandlerFactory factory) {
  registry()[std::move(name)] = std::move(factory);
}

std::vector<std::string> handler_names() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : registry()) names.push_back(name);
  return names;
}

Result<std::shared_ptr<EventHandler>> find_handler(std::string_view name, LineWriter write) {
  const auto found = registry().find(name);
  if (found != registry().end()) return found->second(write);
  const auto known = handler_names();
  std::string text =
      fmt::format("unknown event log handler '{}'; known are {}", name, join(known, ", "));
  if (const auto guess = nearest(name, known)) text += fmt::format(" (did you mean {}?)", *guess);
  return fail(Code::Usage, std::move(text));
}

RouteId attach(Pipeline& pipeline, std::shared_ptr<EventHandler> handler, std::string scope) {
  return pipeline.route({std::move(scope), {}, Record::Kind::Event},
                        std::make_shared<HandlerSink>(std::move(handler)));
}

void record(Pipeline& pipeline, Event event, std::string_view prefix) {
  const auto scope = fmt::format("{}{}", prefix, to_lower(source_name(event.source)));
  if (!pipeline.wants(scope)) return;
  Stamp stamp{pipeline.clock().now(), pipeline.clock().wall()};
  // 0 is an event that was given no time: it is of now.
  if (event.timestamp != 0) stamp.wall = WallTime(std::chrono::milliseconds(event.timestamp));
  pipeline.emit(
      {Record::Kind::Event, stamp, scope, std::move(event.name), {}, std::move(event.metadata)});
}

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
