// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/override.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace elastrun::spec {

/// Where a server listens.
struct ListenAddress {
  std::string address = "127.0.0.1";  // a number, IPv6 without brackets
  std::uint16_t port = 0;             // 0: any that is free
  bool operator==(const ListenAddress&) const = default;
};

/// "9400" and ":9400" are on loopback, as "localhost:9400"; "0.0.0.0:9400" and "[::]:9400" for
/// everybody. Names are refused: one may have several addresses. Pure; `option` begins the text of
/// a refusal.
Answer<ListenAddress> parse_listen_address(std::string_view option, std::string_view text);

}  // namespace elastrun::spec
