// SPDX-License-Identifier: Apache-2.0
#include "export/statsd.hpp"

#include "telemetry/value.hpp"

#include <cmath>
#include <fmt/format.h>

namespace elastrun::exporter {
namespace {

using telemetry::Aggregation;
using telemetry::Kind;
using telemetry::Point;
using telemetry::Value;

/// Letters, digits, `_` and `.`; others end a name, a value or a tag in one server or another.
std::string tame(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool kept = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '.';
    result += kept ? c : '_';
  }
  return result;
}

std::optional<double> gauge_of(const Value& value) {
  if (const auto* const whole = std::get_if<std::int64_t>(&value)) {
    return static_cast<double>(*whole);
  }
  const auto* const real = std::get_if<double>(&value);
  if (real == nullptr || !std::isfinite(*real)) return std::nullopt;
  return *real;
}

class Datagrams {
 public:
  explicit Datagrams(const StatsdOptions& options) : options_(options) {}

  void add(const Point& point) {
    std::string name = options_.prefix + tame(point.spec->name), tags;
    for (const auto& [key, value] : point.labels) {
      const std::string text = tame(telemetry::to_text(value));
      // Plain StatsD has no tags, so the values become parts of the name.
      if (!options_.tags) {
        name += "." + text;
      } else {
        tags += fmt::format("{}{}:{}", tags.empty() ? "|#" : ",", tame(key), text);
      }
    }
    switch (point.kind) {
      case Kind::Counter:
      case Kind::UpDown:
        // A server adds counters up, so a rise of nothing needs no datagram.
        if (const auto number = gauge_of(point.value); number && *number != 0) {
          line(fmt::format("{}:{}|c{}", name, *number, tags));
        }
        break;
      case Kind::Gauge:
        gauge(name, point.value, tags);
        break;
      case Kind::Stat:
      case Kind::Histogram:
        distribution(name, point, tags);
        break;
    }
  }
  std::vector<std::string> take() && {
    if (!open_.empty()) done_.push_back(std::move(open_));
    return std::move(done_);
  }

 private:
  void gauge(const std::string& name, const Value& value, const std::string& tags) {
    const auto number = gauge_of(value);
    if (!number) return;
    // A sign makes it a change; so a negative value starts from zero.
    if (std::signbit(*number)) line(fmt::format("{}:0|g{}", name, tags));
    line(fmt::format("{}:{}|g{}", name, *number, tags));
  }
  void distribution(const std::string& name, const Point& point, const std::string& tags) {
    if (point.summary.count == 0) return;
    line(fmt::format("{}.count:{}|c{}", name, point.summary.count, tags));
    for (const auto one : {Aggregation::Mean, Aggregation::Min, Aggregation::Max, Aggregation::P50,
                           Aggregation::P99}) {
      gauge(fmt::format("{}.{}", name, to_text(one)), point.summary.get(one), tags);
    }
  }
  void line(const std::string& text) {
    // It would be refused, or lost with one of its fragments.
    if (text.size() > options_.datagram) return;
    // Whole lines only: a datagram may be lost, or come after the next one, and each has to stand
    // alone.
    if (!open_.empty() && open_.size() + 1 + text.size() > options_.datagram) {
      done_.push_back(std::exchange(open_, {}));
    }
    if (!open_.empty()) open_ += '\n';
    open_ += text;
  }

  const StatsdOptions& options_;
  std::vector<std::string> done_;
  std::string open_;
};

}  // namespace

std::vector<std::string> statsd_datagrams(const telemetry::Snapshot& snapshot,
                                          const StatsdOptions& options) {
  Datagrams datagrams(options);
  for (const auto& point : snapshot.points) datagrams.add(point);
  return std::move(datagrams).take();
}

}  // namespace elastrun::exporter
