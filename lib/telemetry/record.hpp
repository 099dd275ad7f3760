// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/json.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace elastrun::worker {
class Sketch;
struct Summary;
}  // namespace elastrun::worker

namespace elastrun::telemetry {

using worker::Sketch, worker::Summary;

/// A value of an attribute. `monostate` is JSON's null.
using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string>;
using Attribute = std::pair<std::string, Value>;
/// The number that a value is; nothing for texts, flags and null.
std::optional<double> as_real(const Value& value);
/// For sources that write JSON.
json::value to_json(const Value& value);
/// A whole number that does not fit becomes a real one, arrays and objects JSON text.
Value to_value(const json::value& value);
/// As Python's str(): "None", "True", "3", "0.5", the text itself.
std::string to_text(const Value& value);

/// When something happened: `mono` orders and measures, `wall` is for people and other machines.
struct Stamp {
  TimePoint mono;
  WallTime wall;
};

/// How much a record matters, with OpenTelemetry's severity numbers.
enum class Severity : std::uint8_t {
  Trace = 1,
  Debug = 5,
  Info = 9,
  Warn = 13,
  Error = 17,
  Fatal = 21
};
/// "TRACE", "DEBUG", ...
std::string_view to_text(Severity severity);
/// "error", "WARNING", "critical", ...; none: an unknown one.
std::optional<Severity> severity_named(std::string_view name);

/// Whether a scope, or what torchelastic calls a group, is one of this program's own, in which
/// workers report nothing.
constexpr bool is_own_scope(std::string_view scope) {
  return scope == "elastrun" || scope.starts_with("elastrun.");
}

/// What a series did from `start` to `end`. In one window mean = sum / count holds.
struct Window {
  TimePoint start, end;
  std::int64_t index = 0;     // rises from window to window, by one or more
  std::uint64_t count = 0;    // values in the window
  std::uint64_t dropped = 0;  // refused because the window was full, or because not finite
  bool no_data = false;       // nothing was seen, which is not the same as zero
  std::string unit{};         // UCUM: "s", "By", "1", "{restart}"
  std::vector<Attribute> aggregates{};     // "mean" -> 0.5; null where there is none
  std::shared_ptr<const Sketch> sketch{};  // of histograms
};

/// What a series is, where who reports it says so.
struct Meaning {
  std::string unit{}, help{};  // UCUM; one sentence
  /// Beside the rank and what else the attributes of a record have. By name.
  std::vector<std::pair<std::string, std::string>> labels{};
  bool operator==(const Meaning&) const = default;
};

/// How much of what was put a sample tells: all of it, one of several that are summed up as well,
/// or those in sum, of which `summary` knows more than the last value.
enum class Detail : std::uint8_t { Whole, Each, Summed };

/// The one thing that travels the pipeline: born whole as an event, or made from series as a sample
/// or a window (telemetry.md section 7). Sinks read it, and never change it.
struct Record {
  enum class Kind { Event, Sample, Window, SpanEnd } kind = Kind::Event;
  Stamp stamp;
  std::string scope;  // "elastrun.agent"; the metric group of torchelastic: "torchelastic"
  std::string name;   // "worker.ended"; "workers.default.run_total"
  Value value;        // of a Sample
  std::vector<Attribute> attributes;
  Severity severity = Severity::Info;
  std::uint64_t id = 0;                      // 0: has none
  std::shared_ptr<const Window> window{};    // of a Window, whose attributes are its labels
  std::shared_ptr<const Summary> summary{};  // of a Sample that stands for several
  std::shared_ptr<const Meaning> meaning{};  // null: not said
  Detail detail = Detail::Whole;

  /// The attribute of that name, or null.
  const Value* find(std::string_view attribute) const;
  /// Empty unless there is one that is a text.
  std::string text(std::string_view attribute) const;
  /// Nothing unless there is one that is a whole number.
  std::optional<std::int64_t> whole(std::string_view attribute) const;
  /// True only if there is one that is `true`.
  bool is(std::string_view attribute) const;
};

}  // namespace elastrun::telemetry
