// SPDX-License-Identifier: Apache-2.0

#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <boost/uuid/random_generator.hpp>
#include <boost/uuid/uuid_io.hpp>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <fmt/format.h>
#include <numeric>
#include <sys/random.h>

namespace elastrun {
namespace {

constexpr char kEscape = '\x1b', kBell = '\a';

bool is_within(char c, char first, char last) {
  return first <= c && c <= last;
}

/// Removes characters of that range from the front.
void skip(std::string_view& text, char first, char last) {
  const auto other = std::ranges::find_if(text, [&](char c) { return !is_within(c, first, last); });
  text.remove_prefix(static_cast<std::size_t>(other - text.begin()));
}

void skip_one(std::string_view& text, char first, char last) {
  if (!text.empty() && is_within(text.front(), first, last)) text.remove_prefix(1);
}

/// To BEL, which ends a title in xterm, or ST; or to the end of the line.
void skip_string(std::string_view& text) {
  while (!text.empty() && text.front() != kBell && text.front() != '\n' &&
         !text.starts_with("\x1b\\")) {
    text.remove_prefix(1);
  }
  if (text.starts_with('\n')) return;
  text.remove_prefix(std::min<std::size_t>(text.size(), text.starts_with(kBell) ? 1 : 2));
}

/// A whole sequence whose ESC has been removed from the front of `text`.
void skip_sequence(std::string_view& text) {
  constexpr std::string_view kStrings = "]PX^_";  // OSC, DCS, SOS, PM, APC
  if (text.starts_with('[')) {
    text.remove_prefix(1);
    skip(text, '0', '?');      // parameters
    skip(text, ' ', '/');      // intermediates
    skip_one(text, '@', '~');  // the final
  } else if (!text.empty() && kStrings.contains(text.front())) {
    text.remove_prefix(1);
    skip_string(text);
  } else {
    skip(text, ' ', '/');
    skip_one(text, '0', '~');
  }
}

bool is_control(char32_t point) {
  // With the marks that turn the direction of text or break a line: no name may redraw a terminal.
  return point < 0x20 || (point >= 0x7F && point < 0xA0) || point == 0x061C || point == 0x200E ||
         point == 0x200F || (point >= 0x2028 && point <= 0x202E) ||
         (point >= 0x2066 && point <= 0x2069);
}

constexpr std::string_view kBlanks = " \t\r\n\v\f";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Python's digits: `_` only between two digits. Nothing if the text breaks that.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      plain += text[i];
    } else if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) {
      return std::nullopt;
    }
  }
  return plain;
}

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/// The name of a placeholder behind its dollar sign, and how long that is; empty: it is none.
std::pair<std::string_view, std::size_t> placeholder_in(std::string_view text) {
  const bool braces = text.starts_with('{');
  if (braces) text.remove_prefix(1);
  if (text.empty() || !is_name_start(text.front())) return {};
  const auto end =
      std::ranges::find_if_not(text, [](char c) { return is_name_start(c) || is_digit(c); });
  const auto name = text.substr(0, static_cast<std::size_t>(end - text.begin()));
  if (braces && !text.substr(name.size()).starts_with('}')) return {};
  return {name, name.size() + (braces ? 2 : 0)};
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// Levenshtein's distance, one row at a time.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

void fill_random(void* bytes, std::size_t size) {
  // Small requests to getrandom(2) are never interrupted and never short.
  if (::getrandom(bytes, size, 0) != static_cast<ssize_t>(size)) std::abort();
}

}  // namespace

std::string without_escapes(std::string_view text, std::string_view kept) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto plain = text.substr(0, text.find(kEscape));
    out += plain;
    text.remove_prefix(plain.size());
    if (text.empty()) break;
    text.remove_prefix(1);
    skip_sequence(text);
  }
  // Last: what stood on both sides of a sequence may be one character now.
  return without_controls(out, kept);
}

char32_t take_code_point(std::string_view& text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  // 0xC0 and 0xC1 could only begin overlong forms, 0xF5 what is beyond U+10FFFF (RFC 3629).
  const std::size_t size = first < 0x80   ? 1
                           : first < 0xC2 ? 0
                           : first < 0xE0 ? 2
                           : first < 0xF0 ? 3
                           : first < 0xF5 ? 4
                                          : 0;
  bool good = size != 0 && text.size() >= size;
  char32_t point = size == 1 ? first : first & (0x7Fu >> size);
  for (std::size_t i = 1; good && i < size; ++i) {
    good = (byte(i) & 0xC0) == 0x80;
    point = (point << 6) | (byte(i) & 0x3Fu);
  }
  // Neither overlong forms nor halves of surrogate pairs are UTF-8 (RFC 3629).
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  good =
      good && point >= kSmallest[size] && point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF);
  text.remove_prefix(good ? size : 1);
  return good ? point : 0xFFFD;
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::string_view before = text;
    const bool replaced = take_code_point(text) == 0xFFFD;
    out += replaced ? "\xEF\xBF\xBD" : before.substr(0, before.size() - text.size());
  }
  return out;
}

std::string without_controls(std::string_view text, std::string_view kept) {
  // Nearly every text is of these alone.
  const auto plain = [](char c) { return c >= ' ' && c <= '~'; };
  if (std::ranges::all_of(text, plain)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::string_view before = text;
    const char32_t point = take_code_point(text);
    if (point == 0xFFFD) out += "\xEF\xBF\xBD";
    const bool shown = !is_control(point) || kept.contains(before.front());
    if (point != 0xFFFD && shown) out += before.substr(0, before.size() - text.size());
  }
  return out;
}

std::string_view cut(std::string_view text, std::size_t size) {
  if (text.size() <= size) return text;
  constexpr std::size_t kLongestRest = 3;  // a character has at most three bytes behind its first
  std::size_t end = size;
  const auto is_rest = [&](std::size_t i) {
    return (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;
  };
  while (end > 0 && size - end < kLongestRest && is_rest(end)) --end;
  return text.substr(0, is_rest(end) ? size : end);
}

bool locale_is_utf8() {
  // In the order of setlocale(3).
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const auto locale = to_lower(value);
    return locale.contains("utf-8") || locale.contains("utf8");
  }
  return false;
}

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> pieces;
  for (;;) {
    const auto end = text.find(separator);
    pieces.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

std::string join(const std::vector<std::string>& pieces, std::string_view separator) {
  return fmt::format("{}", fmt::join(pieces, separator));
}

std::optional<std::string_view> find_variable(std::span<const std::string> entries,
                                              std::string_view name) {
  for (const auto& entry : entries) {
    if (entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name)) {
      return std::string_view(entry).substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

bool starts_with_ignoring_case(std::string_view text, std::string_view prefix) {
  return text.size() >= prefix.size() &&
         std::equal(prefix.begin(), prefix.end(), text.begin(),
                    [](char a, char b) { return lower(a) == lower(b); });
}

std::string to_lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return out;
}

std::string printable(std::string text) {
  return std::string(cut(without_controls(text), 500));
}

std::string escaped(std::string_view text, std::string_view what) {
  std::string out;
  for (const char c : text) {
    if (what.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string fill_template(std::string_view text,
                          std::initializer_list<std::pair<std::string_view, std::string>> values) {
  std::string out;
  while (!text.empty()) {
    const auto plain = text.substr(0, text.find('$'));
    out += plain;
    text.remove_prefix(plain.size());
    if (text.empty()) break;
    text.remove_prefix(1);
    const auto [name, size] = placeholder_in(text);
    const auto known = std::ranges::find(values, name, [](const auto& one) { return one.first; });
    if (known != values.end()) {
      out += known->second;
      text.remove_prefix(size);
      continue;
    }
    out += '$';
    if (text.starts_with('$')) text.remove_prefix(1);
  }
  return out;
}

std::optional<std::int64_t> parse_int(std::string_view text) {
  const auto plain = without_underscores(trim(text));
  if (!plain || plain->empty()) return std::nullopt;
  const char* first = plain->data();
  const char* last = first + plain->size();
  // from_chars() takes no plus sign, as Python's int() does.
  if (*first == '+' && plain->size() > 1 && is_digit(first[1])) ++first;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(first, last, value);
  if (error != std::errc{} || end != last) return std::nullopt;
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  const auto plain = without_underscores(trim(text));
  if (!plain || plain->empty()) return std::nullopt;
  const char* first = plain->data();
  const char* last = first + plain->size();
  // As above. What follows the plus must not be a sign, which from_chars() would take.
  if (*first == '+' && plain->size() > 1 && first[1] != '-' && first[1] != '+') ++first;
  double value = 0;
  const auto [end, error] = std::from_chars(first, last, value);
  // Infinity, or as good as zero: from_chars() does not say which.
  if (error == std::errc::result_out_of_range && end == last) return std::strtod(first, nullptr);
  if (error != std::errc{} || end != last) return std::nullopt;
  return value;
}

std::string format_duration(Duration duration) {
  const double seconds = to_seconds(duration);
  if (seconds < 0) return "-" + format_duration(std::max(-Duration::max(), duration) * -1);
  if (seconds < 0.001) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(seconds);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

std::string format_local_time(WallTime when) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(when).time_since_epoch().count();
  const std::time_t time = seconds;
  std::tm parts{};
  ::localtime_r(&time, &parts);
  std::array<char, 32> text{};
  const auto size = std::strftime(text.data(), text.size(), "%Y-%m-%d_%H:%M:%S", &parts);
  return {text.data(), size};
}

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  for (const char* unit : {"KiB", "MiB", "GiB"}) {
    if (value < 1024) return fmt::format("{:.1f} {}", value, unit);
    value /= 1024;
  }
  return fmt::format("{:.1f} TiB", value);
}

double to_seconds(WallTime when) {
  return to_seconds(Duration(when.time_since_epoch()));
}
double to_seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}
Duration from_seconds(double seconds) {
  constexpr double kMost = 9.2e9;
  // Files and other programs say any number, and a conversion that does not fit is undefined.
  const double bounded = std::isnan(seconds) ? 0 : std::clamp(seconds, -kMost, kMost);
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(bounded));
}

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& choices) {
  std::optional<std::string> best;
  // A third of the letters may be wrong: enough for a slip, too little for another word.
  std::size_t limit = word.size() / 3 + 1;
  for (const auto& choice : choices) {
    const std::size_t distance = edits(word, choice);
    if (distance < limit || (distance == limit && !best)) {
      best = choice;
      limit = distance;
    }
  }
  return best;
}

std::string random_text(std::size_t count) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::string text(count, '\0');
  fill_random(text.data(), count);
  for (char& c : text) c = kLetters[static_cast<unsigned char>(c) % kLetters.size()];
  return text;
}

std::string random_uuid() {
  return boost::uuids::to_string(boost::uuids::random_generator()());
}

}  // namespace elastrun
