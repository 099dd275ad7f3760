// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/algorithm/hex.hpp>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

namespace elastrun::test {

/// The bytes of "00cef7853c" (any case, no blanks); nothing if that is no even run of hex digits.
inline std::optional<std::string> parse_hex(std::string_view digits) {
  std::string bytes;
  try {
    boost::algorithm::unhex(digits, std::back_inserter(bytes));
  } catch (const boost::algorithm::hex_decode_error&) {
    return std::nullopt;
  }
  return bytes;
}

}  // namespace elastrun::test
