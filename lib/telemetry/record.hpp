// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace elastrun::telemetry {

/// A value of an attribute. `monostate` is JSON's null.
using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string>;
using Attribute = std::pair<std::string, Value>;

/// When something happened: `mono` orders and measures, `wall` is for people and other machines.
struct Stamp {
  TimePoint mono;
  WallTime wall;
};

/// The one thing that travels the pipeline: born whole as an event, or made from cells as a sample
/// or a window (telemetry.md section 7). Sinks read it, nobody changes it.
struct Record {
  enum class Kind { Event, Sample, Window, SpanEnd } kind = Kind::Event;
  Stamp stamp;
  std::string scope;  // "elastrun.agent"; the metric group of torchelastic: "torchelastic"
  std::string name;   // "worker.ended"; "workers.default.run_total"
  Value value;        // of a Sample
  std::vector<Attribute> attributes;

  /// The attribute of that name, or null.
  const Value* find(std::string_view attribute) const;
};

}  // namespace elastrun::telemetry
