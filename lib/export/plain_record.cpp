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
    std::size_t size = rest_.starts_with('-') ? 1 : 0;
    const std::size_t first = size;
    size = digits_from(size);
    const std::size_t whole = size - first;
    if (whole == 0 || whole > 18 || (whole > 1 && rest_[first] == '0')) return false;
    const bool fraction = size < rest_.size() && rest_[size] == '.';
    if (fraction) {
      const std::size_t begin = size + 1;
      size = digits_from(begin);
      if (size == begin) return false;
    }
    if (size < rest_.size() && (rest_[size] == 'e' || rest_[size] == 'E')) return false;
    const auto text = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return fraction ? read<double>(text, into) : read<std::int64_t>(text, into);
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
  std::size_t digits_from(std::size_t at) const {
    while (at < rest_.size() && rest_[at] >= '0' && rest_[at] <= '9') ++at;
    return at;
  }
  template <typename Number>
  static bool read(std::string_view text, Value& into) {
    Number number{};
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
  if (!line.take("{\"time\":") || !line.number(number)) return false;
  const auto seconds = as_real(number);
  if (!seconds || !(std::abs(*seconds) < 9e9)) return false;
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
  record.stamp.wall = WallTime(from_seconds(*seconds));
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
