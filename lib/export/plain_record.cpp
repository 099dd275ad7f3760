// SPDX-License-Identifier: Apache-2.0
#include "export/plain_record.hpp"

#include "core/text.hpp"
#include "export/line_scanner.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

namespace elastrun::exporter {
namespace {

using telemetry::Record;
using telemetry::Value;

// Whether a name was there before is looked up one by one.
constexpr std::size_t kMostAttributes = 32;

bool read_attributes(LineScanner& line, std::vector<telemetry::Attribute>& attributes) {
  std::size_t count = 0;
  if (!line.take('{')) return false;
  do {
    const auto name = line.text();
    if (!name || !line.take(':') || count == kMostAttributes) return false;
    const auto seen = std::span(attributes).first(count);
    if (std::ranges::find(seen, *name, &telemetry::Attribute::first) != seen.end()) return false;
    if (count == attributes.size()) attributes.emplace_back();
    attributes[count].first = *name;
    if (!line.value(attributes[count].second)) return false;
    ++count;
  } while (line.take(','));
  attributes.resize(count);
  return line.take('}');
}

std::optional<double> as_real(const Value& value) {
  if (const auto* real = std::get_if<double>(&value)) return *real;
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  return std::nullopt;
}

bool read_kind(std::string_view name, Record::Kind& kind) {
  if (name != "event" && name != "sample") return false;
  kind = name == "event" ? Record::Kind::Event : Record::Kind::Sample;
  return true;
}

}  // namespace

bool read_plain_record(std::string_view text, Record& record) {
  LineScanner line(text);
  Value number;
  // Members in the order in which they are written, which is also that they are there once.
  if (!line.take('{') || !line.take_name("\"time\"")) return false;
  if (!line.time(record.stamp.wall)) {
    if (!line.number(number)) return false;
    const auto seconds = as_real(number);
    if (!seconds || !(std::abs(*seconds) < LineScanner::kLatest)) return false;
    record.stamp.wall = WallTime(from_seconds(*seconds));
  }
  const auto next = [&line](std::string_view quoted) {
    return line.take(',') && line.take_name(quoted);
  };
  if (!next("\"mono_ns\"") || !line.number(number)) return false;
  const auto* mono = std::get_if<std::int64_t>(&number);
  if (mono == nullptr || !next("\"kind\"")) return false;
  const auto kind = line.text();
  if (!kind || !read_kind(*kind, record.kind) || !next("\"scope\"")) return false;
  const auto scope = line.text();
  if (!scope || !next("\"name\"")) return false;
  const auto name = line.text();
  if (!name) return false;
  record.stamp.mono = TimePoint(Duration(*mono));
  record.scope = *scope;
  record.name = *name;
  record.value = std::monostate();
  bool more = line.take(',');
  if (more && line.take_name("\"value\"")) {
    if (!line.value(record.value)) return false;
    more = line.take(',');
  }
  if (!more) {
    record.attributes.clear();
  } else if (!line.take_name("\"attributes\"") || !read_attributes(line, record.attributes)) {
    return false;
  }
  return line.take('}') && line.at_end();
}

}  // namespace elastrun::exporter
