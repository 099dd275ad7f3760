// SPDX-License-Identifier: Apache-2.0
#include "core/codec.hpp"

#include "core/text.hpp"

#include <algorithm>

namespace elastrun {
namespace {

// How many bytes of the text need no more than that in JSON, where one becomes up to six.
std::size_t bytes_within(std::string_view text, std::size_t escaped) {
  std::size_t bytes = 0;
  for (; bytes < text.size(); ++bytes) {
    const char one = text[bytes];
    const bool is_short = std::string_view("\"\\\b\f\n\r\t").contains(one);
    const std::size_t needed = is_short ? 2 : static_cast<unsigned char>(one) < 0x20 ? 6 : 1;
    if (needed > escaped) break;
    escaped -= needed;
  }
  return bytes;
}

}  // namespace

std::string fit_text(std::string_view text, std::size_t longest) {
  // What becomes longer by its replacements ends beyond the cut.
  constexpr std::size_t kLongestCharacter = 4;
  const auto beginning = text.substr(0, longest + kLongestCharacter);
  std::string fit(cut(without_controls(beginning), longest));
  // JSON makes some characters longer: this bounds what goes over the wire.
  fit.resize(cut(fit, bytes_within(fit, 2 * longest)).size());
  return fit;
}

Codec::Codec(const json::value& from, std::string& unsound, Texts texts)
    : from_(&from), unsound_(&unsound), texts_(texts) {
  if (!from.is_object()) refuse("that is an object");
}

void Codec::refuse(std::string_view name) {
  if (unsound_->empty()) *unsound_ = name;
}

void Codec::operator()(std::string_view name, bool& value) {
  if (!reads()) return put(name, value);
  const json::value* const found = find(name);
  if (found == nullptr) return;
  found->is_bool() ? void(value = found->get_bool()) : refuse(name);
}

std::int64_t Codec::number(std::string_view name, std::int64_t value, std::int64_t low,
                           std::int64_t high) {
  if (!reads()) return put(name, value), value;
  const json::value* const found = find(name);
  if (found == nullptr) return value;
  boost::system::error_code error;
  const auto read = found->to_number<std::int64_t>(error);
  if (error || read < low || read > high) refuse(name);
  return error ? value : std::clamp(read, low, high);
}

void Codec::operator()(std::string_view name, double& value, double low, double high) {
  if (!reads()) return put(name, value);
  const json::value* const found = find(name);
  if (found == nullptr) return;
  boost::system::error_code error;
  const auto read = found->to_number<double>(error);
  if (error || !(read >= low && read <= high)) return refuse(name);
  value = read;
}

void Codec::operator()(std::string_view name, Duration& value, double longest) {
  // The reader takes a longer one for a mistake.
  double seconds = std::clamp(to_seconds(value), 0.0, longest);
  (*this)(name, seconds, 0, longest);
  if (reads()) value = from_seconds(seconds);
}

void Codec::milliseconds(std::string_view name, Duration& value, Duration longest) {
  using std::chrono::milliseconds;
  auto count = std::chrono::ceil<milliseconds>(value).count();
  (*this)(name, count, 0, std::chrono::duration_cast<milliseconds>(longest).count());
  if (reads()) value = milliseconds(count);
}

void Codec::operator()(std::string_view name, WallTime& value) {
  // Nanoseconds of more would not fit into 64 bits.
  constexpr double kLatest = 9e9;
  double seconds = to_seconds(value);
  (*this)(name, seconds, 0, kLatest);
  if (reads()) value = WallTime(from_seconds(seconds));
}

std::optional<std::string> Codec::text_in(std::string_view name, const json::value& value,
                                          std::size_t longest) {
  const json::string* const text = value.if_string();
  if (text != nullptr && texts_ == Texts::Whole) return std::string(*text);
  if (text != nullptr && text->size() <= longest) return without_controls(*text);
  refuse(name);
  return std::nullopt;
}

void Codec::operator()(std::string_view name, std::string& value, std::size_t longest) {
  if (!reads()) {
    // A text that is not fit would be refused by the other side, and its sender with it, each time
    // that it tries again. JSON is UTF-8 (RFC 8259, section 8.1).
    return put(name, texts_ == Texts::Whole ? valid_utf8(value) : fit_text(value, longest));
  }
  const json::value* const found = find(name);
  if (found == nullptr) return;
  if (auto text = text_in(name, *found, longest)) value = std::move(*text);
}

void Codec::operator()(std::string_view name, std::vector<std::string>& values, std::size_t most) {
  if (!reads()) {
    json::array array;
    for (const auto& value : values) array.emplace_back(fit_text(value, kLongestText));
    return put(name, std::move(array));
  }
  for (const json::value& one : elements(name)) {
    if (values.size() == most) break;
    if (auto text = text_in(name, one, kLongestText)) values.push_back(std::move(*text));
  }
}

void Codec::name(std::string_view name, std::string& value, std::size_t longest) {
  if (!reads()) return put(name, fit_text(value, longest));
  const json::value* const found = find(name);
  if (found == nullptr) return;
  (*this)(name, value, kLongestName);
  if (found->is_string() && found->get_string() != value) refuse(name);
}

void Codec::names(std::string_view name, std::vector<std::string>& values, std::size_t most,
                  std::size_t longest) {
  if (!reads()) {
    json::array array;
    for (const auto& value : values) array.emplace_back(fit_text(value, longest));
    return put(name, std::move(array));
  }
  for (const json::value& one : elements(name)) {
    auto text = text_in(name, one, kLongestName);
    if (values.size() == most || !text || one.get_string() != *text) return refuse(name);
    values.push_back(std::move(*text));
  }
}

std::size_t Codec::word_at(std::string_view name, std::size_t at,
                           std::span<const std::string_view> words) {
  if (!reads()) return put(name, words[at]), at;
  const json::value* const found = find(name);
  if (found == nullptr) return at;
  const json::string* const text = found->if_string();
  for (std::size_t i = 0; text != nullptr && i < words.size(); ++i) {
    if (*text == words[i]) return i;
  }
  refuse(name);
  return at;
}

const json::array& Codec::elements(std::string_view name) {
  static const json::array kNone;
  const json::value* const found = find(name);
  if (found == nullptr) return kNone;
  if (found->is_array()) return found->get_array();
  refuse(name);
  return kNone;
}

}  // namespace elastrun
