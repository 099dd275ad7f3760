// SPDX-License-Identifier: Apache-2.0
#include "export/chrome_trace.hpp"

#include "core/json.hpp"
#include "core/text.hpp"
#include "export/record_line.hpp"
#include "telemetry/record.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace elastrun::exporter {
namespace {

using telemetry::Attribute;
using telemetry::Record;
using telemetry::Value;
using Phase = TraceEvent::Phase;

json::value plain(const Value& value) {
  const auto* const number = std::get_if<double>(&value);
  if (number != nullptr && !std::isfinite(*number)) return nullptr;
  const auto* const text = std::get_if<std::string>(&value);
  return text != nullptr ? json::value(json::string(valid_utf8(*text))) : telemetry::to_json(value);
}

double microseconds(Duration time) {
  return static_cast<double>(time.count()) / 1e3;
}

}  // namespace

std::string trace_line(const TraceEvent& event) {
  json::object line;
  line["name"] = valid_utf8(event.name);
  if (!event.category.empty()) line["cat"] = valid_utf8(event.category);
  line["ph"] = std::string(1, static_cast<char>(event.phase));
  // The format's unit is microseconds.
  line["ts"] = microseconds(event.time);
  if (event.phase == Phase::Complete) line["dur"] = microseconds(event.length);
  line["pid"] = event.process;
  line["tid"] = event.thread;
  // The scope of an instant: over all threads of its process, or on one.
  if (event.phase == Phase::Instant) line["s"] = event.thread == 0 ? "p" : "t";
  json::object& arguments = line["args"].emplace_object();
  for (const auto& [key, value] : event.arguments) arguments[valid_utf8(key)] = plain(value);
  // A comma behind each: the format lets the closing bracket be missing, so that a trace of a job
  // that was killed can be read.
  return json::serialize(line) + ",\n";
}

std::string trace_process(std::int64_t process, std::string_view name, int place) {
  const auto line = [&](const char* what, Attribute argument) {
    return trace_line({Phase::Metadata, what, "", {}, {}, process, 0, {std::move(argument)}});
  };
  return line("process_name", {"name", std::string(name)}) +
         line("process_sort_index", {"sort_index", std::int64_t{place}});
}

std::string trace_end() {
  auto text = trace_line({Phase::Metadata, "process_name", "", {}, {}, 0, 0, {{"name", "agent"}}});
  text.resize(text.size() - 2);  // the comma and the newline
  return text + "\n]\n";
}

std::optional<TraceEvent> trace_event_of(const Record& record) {
  TraceEvent event{Phase::Instant, record.name, record.scope};
  event.time = record.stamp.mono.time_since_epoch();
  // Process 0 of a trace is the agent.
  if (const auto rank = record.whole("rank")) event.process = *rank + 1;
  switch (record.kind) {
    case Record::Kind::Event:
      // The end of a span comes as the whole of it, too.
      if (record.text("span.phase") == "stop") return {};
      event.arguments = record.attributes;
      return event;
    case Record::Kind::SpanEnd: {
      const auto length = record.whole("duration_ns");
      if (!length || *length < 0) return std::nullopt;
      event.phase = Phase::Complete;
      event.length = Duration(*length);
      event.time -= event.length;  // a span is recorded when it ends
      event.arguments = record.attributes;
      return event;
    }
    case Record::Kind::Sample:
      if (!telemetry::as_real(record.value)) return std::nullopt;
      event.arguments = {{"value", record.value}};
      break;
    case Record::Kind::Window:
      if (record.window == nullptr || record.window->no_data) return std::nullopt;
      for (const auto& aggregate : record.window->aggregates) {
        if (telemetry::as_real(aggregate.second)) event.arguments.push_back(aggregate);
      }
      if (event.arguments.empty()) return std::nullopt;
      break;
  }
  event.phase = Phase::Counter;
  event.name = series_name(record);
  return event;
}

std::string TraceLines::of(const telemetry::Record& record) {
  auto event = trace_event_of(record);
  if (!event) return {};
  // Viewers keep times as doubles of microseconds: the fewer digits are before the point, the more
  // are left behind it.
  event->time = std::max(event->time - start_.time_since_epoch(), Duration::zero());
  std::string text;
  if (named_.insert(event->process).second) {
    const auto rank = event->process - 1;
    text = trace_process(event->process, rank < 0 ? "agent" : fmt::format("rank {}", rank),
                         static_cast<int>(std::clamp<std::int64_t>(event->process, 0, 1 << 30)));
  }
  return text + trace_line(*event);
}

}  // namespace elastrun::exporter
