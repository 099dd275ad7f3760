// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/endian/conversion.hpp>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// Integers and strings to and from bytes. Nothing here allocates by a length that came from
/// outside: strings are views into the bytes they were read from.
namespace elastrun::net {

/// The little-endian integer at `bytes`, which must have sizeof(T) of them.
template <std::integral T>
T load(const char* bytes) {
  return boost::endian::endian_load<T, sizeof(T), boost::endian::order::little>(
      reinterpret_cast<const unsigned char*>(bytes));
}

/// Writes `value` to `bytes`, which must have room for sizeof(T) of them.
template <std::integral T>
void save(char* bytes, T value) {
  boost::endian::endian_store<T, sizeof(T), boost::endian::order::little>(
      reinterpret_cast<unsigned char*>(bytes), value);
}

template <std::integral T>
void append(std::string& out, T value) {
  char bytes[sizeof value];
  save(bytes, value);
  out.append(bytes, sizeof value);
}

/// Reads front to back and never beyond the end: what is not wholly there is not read at all.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <std::integral T>
  std::optional<T> number() {
    if (rest_.size() < sizeof(T)) return std::nullopt;
    const T value = load<T>(rest_.data());
    rest_.remove_prefix(sizeof(T));
    return value;
  }

  std::optional<std::string_view> bytes(std::uint64_t count) {
    if (rest_.size() < count) return std::nullopt;
    const auto taken = rest_.substr(0, static_cast<std::size_t>(count));
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view rest() const { return rest_; }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

/// "00 ce f7 85 3c": the first `limit` bytes for a log line, "..." if there are more.
std::string format_hex(std::string_view bytes, std::size_t limit = 16);

/// RFC 4648, section 4, with padding.
std::string encode_base64(std::string_view bytes);
/// Nothing if the text is not base64 as above, without line ends.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace elastrun::net
