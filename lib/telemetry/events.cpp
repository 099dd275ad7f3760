// SPDX-License-Identifier: Apache-2.0
#include "telemetry/events.hpp"

#include "core/text.hpp"
#include "telemetry/record.hpp"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <map>
#include <unistd.h>

namespace elastrun::telemetry::events {
namespace {

std::string_view source_name(Source source) {
  return source == Source::Agent ? "AGENT" : "WORKER";
}

std::string_view state_name(NodeState state) {
  constexpr std::string_view kNames[] = {"INIT", "RUNNING", "SUCCEEDED", "FAILED"};
  return kNames[static_cast<std::size_t>(state)];
}

json::value rank_or_null(const std::optional<int>& number) {
  return number ? json::value(*number) : json::value(nullptr);
}

template <class T>
std::optional<T> found(const Record& record, std::string_view attribute) {
  const T* const wanted = std::get_if<T>(record.find(attribute));
  return wanted == nullptr ? std::nullopt : std::optional(*wanted);
}

RdzvEvent rdzv_event_of(const Record& record) {
  const auto text = [&](std::string_view key) {
    return found<std::string>(record, key).value_or("");
  };
  const auto number = [&](std::string_view key) -> std::optional<int> {
    const auto value = found<std::int64_t>(record, key);
    return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
  };
  // The number comes from a record that anybody may emit; outside of the enumeration it would read
  // past the names.
  const auto state = static_cast<NodeState>(std::clamp(number("node_state").value_or(1), 0, 3));
  return {record.name,
          text("run_id"),
          text("message"),
          text("hostname"),
          number("pid").value_or(0),
          state,
          text("master_endpoint"),
          number("rank"),
          number("local_id"),
          text("error_trace")};
}

/// Turns records back into events for one handler.
class HandlerSink final : public Sink {
 public:
  explicit HandlerSink(std::shared_ptr<EventHandler> handler) : handler_(std::move(handler)) {}
  void consume(const Record& record) override {
    if (record.scope == kRdzvScope) {
      handler_->record_rdzv(rdzv_event_of(record));
      return;
    }
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

Result<Event> Event::from_json(std::string_view text) {
  auto value = parse_json(text);
  if (!value) return std::unexpected(value.error());
  const json::value* data = find_member(*value, "metadata");
  const std::string source = member_text_or(*value, "source", "");
  if (find_member(*value, "name") == nullptr || (source != "AGENT" && source != "WORKER")) {
    return fail(Code::Protocol, "an event has a name and a source, AGENT or WORKER");
  }
  Event event{member_text_or(*value, "name", ""),
              source == "AGENT" ? Source::Agent : Source::Worker,
              member_int_or(*value, "timestamp", 0)};
  if (data != nullptr && data->is_object()) {
    for (const auto& [key, member] : data->get_object()) {
      event.metadata.emplace_back(std::string(key), to_value(member));
    }
  }
  return event;
}

std::string RdzvEvent::to_json() const {
  json::object event;
  event["name"] = name;
  event["run_id"] = run_id;
  event["message"] = message;
  event["hostname"] = hostname;
  event["pid"] = pid;
  event["node_state"] = json::string_view(state_name(node_state));
  event["master_endpoint"] = master_endpoint;
  event["rank"] = rank_or_null(rank);
  event["local_id"] = rank_or_null(local_id);
  event["error_trace"] = error_trace;
  return python_json(event);
}

ConsoleEventHandler::ConsoleEventHandler(std::function<void(std::string_view)> write)
    : write_(std::move(write)) {
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

void ConsoleEventHandler::record_rdzv(const RdzvEvent& event) {
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

void record_rdzv(Pipeline& pipeline, const RdzvEvent& event) {
  if (!pipeline.wants(kRdzvScope)) return;
  const auto number = [](const std::optional<int>& value) {
    return value ? Value(std::int64_t{*value}) : Value();
  };
  pipeline.event(std::string(kRdzvScope), event.name,
                 {{"run_id", event.run_id},
                  {"message", event.message},
                  {"hostname", event.hostname},
                  {"pid", std::int64_t{event.pid}},
                  {"node_state", static_cast<std::int64_t>(event.node_state)},
                  {"master_endpoint", event.master_endpoint},
                  {"rank", number(event.rank)},
                  {"local_id", number(event.local_id)},
                  {"error_trace", event.error_trace}});
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

}  // namespace elastrun::telemetry::events
