// SPDX-License-Identifier: Apache-2.0
#include "net/bytes.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <span>

namespace elastrun::net {

std::string format_hex(std::string_view bytes, std::size_t limit) {
  const auto* const first = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto shown = std::span(first, std::min(bytes.size(), limit));
  return fmt::format("{:02x}{}", fmt::join(shown, " "), bytes.size() > limit ? " ..." : "");
}

}  // namespace elastrun::net
