// SPDX-License-Identifier: Apache-2.0
#include "export/plain_record.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>

namespace elastrun::exporter {
namespace {

using telemetry::Record;
using telemetry::Value;

// Whether a name was there before is looked up one by one.
constexpr std::size_t kMostAttributes = 32;
constexpr std::int64_t kLatest = 9'000'000'000;  // seconds since the epoch, in the year 2255

/// Takes from the front of a line. What it does not take it leaves, and is not plain.
class Scanner {
 public:
  explicit Scanner(std::string_view line) : rest_(line) {}

  bool at_end() const { return rest_.empty(); }
  bool take(char what) {
    if (rest_.empty() || rest_.front() != what) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool take(std::string_view what) {
    if (!rest_.starts_with(what)) return false;
    rest_.remove_prefix(what.size());
    return true;
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
  bool number(Value& into) {
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
    constexpr std::size_t kWhole = 10, kAll = kWhole + 1 + 9;
    std::int64_t seconds = 0, rest = 0;
    if (at(0) == '0' || digits_from(0, seconds) != kWhole || at(kWhole) != '.') return false;
    if (digits_from(kWhole + 1, rest) != kAll || at(kAll) == 'e' || at(kAll) == 'E') return false;
    if (seconds >= kLatest) return false;
    into = WallTime(std::chrono::seconds(seconds) + std::chrono::nanoseconds(rest));
    rest_.remove_prefix(kAll);
    return true;
  }

  bool value(Value& into) {
    if (rest_.empty()) return false;
    switch (rest_.front()) {
      case '"':
        if (const auto found = text()) return into = std::string(*found), true;
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

  char at(std::size_t place) const { return place < rest_.size() ? rest_[place] : '\0'; }
  /// Where they end; their number, if they are not more than kMostDigits.
  std::size_t digits_from(std::size_t place, std::int64_t& number) const {
    const std::size_t first = place;
    for (; at(place) >= '0' && at(place) <= '9'; ++place) {
      if (place - first < kMostDigits) number = 10 * number + (rest_[place] - '0');
    }
    return place;
  }
  static bool read_real(std::string_view text, Value& into) {
    double number{};
    const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
    into = number;
    return result.ec == std::errc();
  }

  std::string_view rest_;
};

bool read_attributes(Scanner& line, std::vector<telemetry::Attribute>& attributes) {
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
  Scanner line(text);
  Value number;
  // Members in the order in which they are written, which is also that they are there once.
  if (!line.take("{\"time\":")) return false;
  if (!line.time(record.stamp.wall)) {
    if (!line.number(number)) return false;
    const auto seconds = as_real(number);
    if (!seconds || !(std::abs(*seconds) < kLatest)) return false;
    record.stamp.wall = WallTime(from_seconds(*seconds));
  }
  if (!line.take(",\"mono_ns\":") || !line.number(number)) return false;
  const auto* mono = std::get_if<std::int64_t>(&number);
  if (mono == nullptr || !line.take(",\"kind\":")) return false;
  const auto kind = line.text();
  if (!kind || !read_kind(*kind, record.kind) || !line.take(",\"scope\":")) return false;
  const auto scope = line.text();
  if (!scope || !line.take(",\"name\":")) return false;
  const auto name = line.text();
  if (!name) return false;
  record.stamp.mono = TimePoint(Duration(*mono));
  record.scope = *scope;
  record.name = *name;
  record.value = std::monostate();
  if (line.take(",\"value\":") && !line.value(record.value)) return false;
  if (!line.take(",\"attributes\":")) {
    record.attributes.clear();
  } else if (!read_attributes(line, record.attributes)) {
    return false;
  }
  return line.take('}') && line.at_end();
}

}  // namespace elastrun::exporter
