// SPDX-License-Identifier: Apache-2.0

#include "net/bytes.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <span>

namespace elastrun::net {
namespace {

unsigned char* octets(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}
const unsigned char* octets(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

std::string encode_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4, '\0');  // and the zero behind, which is written too
  EVP_EncodeBlock(octets(text), octets(bytes), static_cast<int>(bytes.size()));
  return text;
}

std::optional<std::string> decode_base64(std::string_view text) {
  std::string bytes(text.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(octets(bytes), octets(text), static_cast<int>(text.size()));
  const int padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  if (size < padding) return std::nullopt;
  bytes.resize(static_cast<std::size_t>(size - padding));
  // OpenSSL also takes blanks around it, padding within it, and other bits than zero where padding
  // stands. Here only one text means these bytes.
  if (encode_base64(bytes) != text) return std::nullopt;
  return bytes;
}

std::string format_hex(std::string_view bytes, std::size_t limit) {
  const auto* const first = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto shown = std::span(first, std::min(bytes.size(), limit));
  return fmt::format("{:02x}{}", fmt::join(shown, " "), bytes.size() > limit ? " ..." : "");
}

}  // namespace elastrun::net
