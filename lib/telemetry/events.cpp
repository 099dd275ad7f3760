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

}  // namespace elastrun::telemetry::events
