// SPDX-License-Identifier: Apache-2.0

#include "export/record_line.hpp"

#include "core/clock.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "telemetry/record.hpp"

#include <algorithm>
#include <array>
#include <boost/json/monotonic_resource.hpp>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace elastrun::exporter {

using telemetry::Record;
using telemetry::Value;

/// Takes tokens of JSON from the front of a line, which is ten times as fast as a tree of JSON.
/// What it does not take it leaves, and is not plain: escapes, exponents, other blanks than spaces.
class LineScanner {
 public:
  /// The clock of records holds no later time, in seconds since the epoch: in the year 2255.
  static constexpr std::int64_t kLatest = 9'000'000'000;

  explicit LineScanner(std::string_view line) : rest_(line) {}

  bool at_end() {
    skip_spaces();
    return rest_.empty();
  }
  bool take(char what) {
    skip_spaces();
    if (rest_.empty() || rest_.front() != what) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool take(std::string_view what) {
    skip_spaces();
    if (!rest_.starts_with(what)) return false;
    rest_.remove_prefix(what.size());
    return true;
  }
  /// `"name":`, with its quotes, or nothing of it.
  bool take_name(std::string_view quoted) {
    const auto before = rest_;
    if (take(quoted) && take(':')) return true;
    rest_ = before;
    return false;
  }

  std::optional<std::string_view> text() {
    if (!take('"')) return std::nullopt;
    const auto is_odd = [](char c) {
      return c == '"' || c == '\\' || static_cast<signed char>(c) < 0x20;
    };
    const auto end = std::ranges::find_if(rest_, is_odd);
    if (end == rest_.end() || *end != '"') return std::nullopt;
    const auto size = static_cast<std::size_t>(end - rest_.begin());
    const auto found = rest_.substr(0, size);
    rest_.remove_prefix(size + 1);
    return found;
  }

  /// An integer, or a fraction without an exponent.
  bool number(telemetry::Value& into) {
    skip_spaces();
    const bool negative = rest_.starts_with('-');
    const std::size_t first = negative ? 1 : 0;
    std::int64_t whole = 0;
    std::size_t size = digits_from(first, whole);
    const std::size_t digits = size - first;
    if (digits == 0 || digits > kMostDigits || (digits > 1 && rest_[first] == '0')) return false;
    const bool fraction = at(size) == '.';
    if (fraction) {
      const std::size_t begin = size + 1;
      std::int64_t ignored = 0;
      size = digits_from(begin, ignored);
      if (size == begin) return false;
    }
    if (at(size) == 'e' || at(size) == 'E') return false;
    const auto text = rest_.substr(0, size);
    rest_.remove_prefix(size);
    if (fraction) return read_real(text, into);
    into = negative ? -whole : whole;
    return true;
  }

  /// Seconds since the epoch with nine digits behind the point, as records are written, to the
  /// nanosecond, which a double does not hold. Other numbers it leaves.
  bool time(WallTime& into) {
    skip_spaces();
    constexpr std::size_t kWhole = 10, kAll = kWhole + 1 + 9;
    std::int64_t seconds = 0, rest = 0;
    if (at(0) == '0' || digits_from(0, seconds) != kWhole || at(kWhole) != '.') return false;
    if (digits_from(kWhole + 1, rest) != kAll || at(kAll) == 'e' || at(kAll) == 'E') return false;
    if (seconds >= kLatest) return false;
    into = WallTime(std::chrono::seconds(seconds) + std::chrono::nanoseconds(rest));
    rest_.remove_prefix(kAll);
    return true;
  }

  bool value(telemetry::Value& into) {
    skip_spaces();
    if (rest_.empty()) return false;
    switch (rest_.front()) {
      case '"':
        if (const auto found = text()) return into.emplace<std::string>(*found), true;
        return false;
      case 't':
        return into = true, take("true");
      case 'f':
        return into = false, take("false");
      case 'n':
        return into = std::monostate(), take("null");
      default:
        return number(into);
    }
  }

 private:
  static constexpr std::size_t kMostDigits = 18;  // what an integer holds, whatever they are

  void skip_spaces() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }
  char at(std::size_t place) const { return place < rest_.size() ? rest_[place] : '\0'; }
  /// Where they end; their number, if they are not more than kMostDigits.
  std::size_t digits_from(std::size_t place, std::int64_t& number) const {
    const std::size_t first = place;
    for (; at(place) >= '0' && at(place) <= '9'; ++place) {
      if (place - first < kMostDigits) number = 10 * number + (rest_[place] - '0');
    }
    return place;
  }
  static bool read_real(std::string_view text, telemetry::Value& into) {
    double number{};
    const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
    into = number;
    return result.ec == std::errc();
  }

  std::string_view rest_;
};

namespace {

constexpr std::array<std::string_view, 4> kKinds = {"event", "sample", "window", "span_end"};

/// JSON has no infinity and no NaN; a strict reader would refuse the whole line.
json::value finite(const Value& value) {
  const double* number = std::get_if<double>(&value);
  const bool odd = number != nullptr && !std::isfinite(*number);
  return odd ? json::value(nullptr) : telemetry::to_json(value);
}

void add(json::object& all, const std::vector<telemetry::Attribute>& members) {
  for (const auto& [name, value] : members) all[name] = finite(value);
}

/// A window without data says so, and its aggregates are null.
void add(json::object& all, const telemetry::Window& window) {
  all["start_ns"] = window.start.time_since_epoch().count();
  all["end_ns"] = window.end.time_since_epoch().count();
  all["index"] = window.index;
  all["count"] = window.count;
  all["dropped"] = window.dropped;
  if (window.no_data) all["no_data"] = true;
  if (!window.unit.empty()) all["unit"] = window.unit;
  if (!window.aggregates.empty()) add(all["aggregates"].emplace_object(), window.aggregates);
}

// Whether a name was there before is looked up one by one.
constexpr std::size_t kMostAttributes = 32;

bool read_attributes(LineScanner& line, std::vector<telemetry::Attribute>& attributes) {
  std::size_t count = 0;
  if (!line.take('{')) return false;
  do {
    const auto name = line.text();
    if (!name || !line.take(':') || count == kMostAttributes) return false;
    const auto seen = std::span(attributes).first(count);
    // False sends the line to from_json_line(), which decides what a name that is there twice
    // means.
    if (std::ranges::find(seen, *name, &telemetry::Attribute::first) != seen.end()) return false;
    if (count == attributes.size()) attributes.emplace_back();
    attributes[count].first = *name;
    if (!line.value(attributes[count].second)) return false;
    ++count;
  } while (line.take(','));
  // Only now, not at the start: the strings of the record before are used again, without an
  // allocation.
  attributes.resize(count);
  return line.take('}');
}

/// The log's own time of an entry, before its payload; if there is none, takes nothing.
bool take_log_time(LineScanner& line, Value& time) {
  auto payload = line;
  const bool logged = payload.take('{') && payload.take_name("\"log_time\"") &&
                      payload.number(time) && payload.take(',') && payload.take_name("\"payload\"");
  if (logged) line = payload;
  return logged;
}

}  // namespace

std::string to_json_line(const Record& record) {
  const auto since = record.stamp.wall.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  unsigned char room[2048];  // for most records
  json::monotonic_resource memory(room, sizeof room);
  json::object line(&memory);
  line["mono_ns"] = record.stamp.mono.time_since_epoch().count();
  line["kind"] = kKinds[static_cast<std::size_t>(record.kind)];
  line["scope"] = record.scope;
  line["name"] = record.name;
  if (!std::holds_alternative<std::monostate>(record.value)) line["value"] = finite(record.value);
  if (record.severity != telemetry::Severity::Info) line["severity"] = to_text(record.severity);
  if (record.id != 0) line["id"] = fmt::format("{:016x}", record.id);
  const bool labelled = record.meaning && !record.meaning->labels.empty();
  if (labelled || !record.attributes.empty()) {
    auto& attributes = line["attributes"].emplace_object();
    add(attributes, record.attributes);
    if (labelled)
      for (const auto& [name, value] : record.meaning->labels) attributes[name] = value;
  }
  // That of a sample is for those who keep sums.
  if (record.kind == Record::Kind::Window && record.window)
    add(line["window"].emplace_object(), *record.window);
  // By itself, since a double does not hold the nanoseconds.
  return fmt::format(R"({{"time":{}.{:09},)", seconds.count(), (since - seconds).count()) +
         python_json(line, ",", ":").substr(1);
}

Result<Record> from_json_line(std::string_view line) {
  const auto value = parse_json(line);
  if (!value) return std::unexpected(value.error());
  const json::value* time = find_member(*value, "time");
  const json::value* name = find_member(*value, "name");
  if (time == nullptr || !time->is_number() || name == nullptr || !name->is_string()) {
    return fail(Code::Protocol, "a record has a time and a name");
  }
  const auto kind = std::find(kKinds.begin(), kKinds.end(), member_text_or(*value, "kind", ""));
  if (kind == kKinds.end()) return fail(Code::Protocol, "a record of a kind that is not known");
  const double seconds = time->to_number<double>();
  // Nanoseconds of more would not fit into 64 bits. Written so that a NaN is refused, too.
  if (!(std::abs(seconds) < 9e9))
    return fail(Code::Protocol, "a record with a time that cannot be");
  Record record;
  record.kind = static_cast<Record::Kind>(kind - kKinds.begin());
  record.stamp.wall = WallTime(from_seconds(seconds));
  record.stamp.mono = TimePoint(Duration(member_int_or(*value, "mono_ns", 0)));
  record.scope = member_text_or(*value, "scope", "");
  record.name = std::string(name->get_string());
  if (const auto* found = find_member(*value, "value")) record.value = telemetry::to_value(*found);
  const json::value* attributes = find_member(*value, "attributes");
  if (attributes != nullptr && attributes->is_object()) {
    for (const auto& [key, member] : attributes->get_object()) {
      record.attributes.emplace_back(std::string(key), telemetry::to_value(member));
    }
  }
  return record;
}

bool read_plain_record(std::string_view text, Record& record) {
  LineScanner line(text);
  Value number;
  // Members in the order in which they are written, which is also that they are there once.
  if (!line.take('{') || !line.take_name("\"time\"")) return false;
  if (!line.time(record.stamp.wall)) {
    if (!line.number(number)) return false;
    const auto seconds = telemetry::as_real(number);
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
  if (!kind || (*kind != "event" && *kind != "sample") || !next("\"scope\"")) return false;
  const auto scope = line.text();
  if (!scope || !next("\"name\"")) return false;
  const auto name = line.text();
  if (!name) return false;
  record.kind = *kind == "event" ? Record::Kind::Event : Record::Kind::Sample;
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

bool read_plain_entry(std::string_view text, std::vector<telemetry::Attribute>& members,
                      double& log_time) {
  LineScanner line(text);
  Value time;
  const bool logged = take_log_time(line, time);
  if (!read_attributes(line, members) || (logged && !line.take('}')) || !line.at_end())
    return false;
  bool of_job = false;
  for (const auto& [name, value] : members) {
    if (name == "job_name") of_job = std::holds_alternative<std::string>(value);
    // A payload has to be an object, whatever stands beside it.
    if (!logged && name == "payload") return false;
    if (!logged && name == "log_time") time = value;
  }
  log_time = telemetry::as_real(time).value_or(std::nan(""));
  return of_job;
}

std::optional<PlainStep> read_plain_step(std::string_view text) {
  LineScanner line(text);
  Value log_time, count, start;
  const bool logged = take_log_time(line, log_time);
  if (!line.take('{') || !line.take_name("\"job_name\"")) return std::nullopt;
  const auto job = line.text();
  if (!job || !line.take(',') || !line.take_name("\"step_count\"") || !line.number(count) ||
      !line.take(',') || !line.take_name("\"step_start_time\"") || !line.number(start) ||
      !line.take('}') || (logged && !line.take('}')) || !line.at_end()) {
    return std::nullopt;
  }
  const auto* step = std::get_if<std::int64_t>(&count);
  if (step == nullptr) return std::nullopt;
  const double time = telemetry::as_real(start).value_or(0);
  return PlainStep{*job, *step, time, telemetry::as_real(log_time).value_or(std::nan(""))};
}

std::string series_name(const telemetry::Record& record) {
  const bool of_worker = record.find("rank") != nullptr;
  const bool of_device = record.find("hw.id") != nullptr && record.find("index") != nullptr;
  std::string name = record.name;
  const auto append = [&](const std::string& key, const std::string& text) {
    name.append("/").append(key).append("_").append(text);
  };
  for (const auto& [key, value] : record.attributes) {
    const auto* const text = std::get_if<std::string>(&value);
    // All workers of an agent have one role: in the name it would tell nothing.
    if (text == nullptr || (of_worker && key == "role")) continue;
    // The index tells the GPUs of a machine apart; with the id of 40 characters and the model, the
    // name of a curve would fill the screen.
    if (of_device && (key == "hw.id" || key == "hw.type" || key == "hw.model")) continue;
    append(key, *text);
  }
  if (record.meaning) {
    for (const auto& [key, value] : record.meaning->labels) append(key, value);
  }
  return name;
}

}  // namespace elastrun::exporter
