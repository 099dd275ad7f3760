// SPDX-License-Identifier: Apache-2.0
#include "spec/listen_address.hpp"

#include "core/text.hpp"

#include <arpa/inet.h>
#include <charconv>
#include <fmt/format.h>
#include <optional>

namespace elastrun::spec {
namespace {

constexpr std::string_view kExpected =
    "expected PORT or ADDRESS:PORT, such as 9400 (this machine only), 0.0.0.0:9400 or [::]:9400 "
    "(everybody); port 0 takes one that is free";

std::optional<std::uint16_t> parse_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return port;
}

bool is_address(int family, const std::string& text) {
  in6_addr space{};
  return ::inet_pton(family, text.c_str(), &space) == 1;
}

}  // namespace

Answer<ListenAddress> parse_listen_address(std::string_view option, std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return std::unexpected(
        Refusal{fmt::format("{} {}: {}", option, printable(std::string(text)), why), 2, false,
                std::string(kExpected)});
  };
  ListenAddress at;
  const auto colon = text.rfind(':');
  const bool only_port = colon == text.npos;
  const auto port = parse_port(only_port ? text : text.substr(colon + 1));
  if (!port) return refuse("the port is a number from 0 to 65535");
  at.port = *port;
  if (only_port || colon == 0) return at;
  std::string host(text.substr(0, colon));
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (bracketed) host = host.substr(1, host.size() - 2);
  // The default of `at`, without a resolver: localhost is loopback (RFC 6761).
  if (host == "localhost") return at;
  // "::1:9400" is an address as a whole: where its port begins cannot be seen.
  if (!bracketed && host.contains(':')) return refuse("an IPv6 address stands in brackets");
  if (!is_address(bracketed ? AF_INET6 : AF_INET, host)) {
    return refuse(fmt::format("{} is not a numeric address", printable(host)));
  }
  at.address = std::move(host);
  return at;
}

}  // namespace elastrun::spec
