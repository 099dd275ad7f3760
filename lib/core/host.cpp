// SPDX-License-Identifier: Apache-2.0

#include "core/host.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <charconv>
#include <netinet/in.h>
#include <unistd.h>

namespace elastrun {
namespace {

struct Halves {
  std::string_view host;
  std::optional<std::string_view> port{};
};

/// Python's `[\w.-]*`, where any byte of a character beyond ASCII counts as a letter.
bool is_name(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return letter || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-' ||
           (static_cast<unsigned char>(c) & 0x80) != 0;
  });
}

/// Any of them: "::" is an address, too, the one to listen at. After % is an interface.
bool is_ipv6(std::string_view text) {
  const auto scope = text.find('%');
  in6_addr address;
  const std::string plain(text.substr(0, scope));
  return ::inet_pton(AF_INET6, plain.c_str(), &address) == 1 &&
         (scope == text.npos || is_name(text.substr(scope + 1)));
}

bool is_host(std::string_view text) {
  if (text.find(':') != text.npos) return is_ipv6(text);
  return !text.empty() && is_name(text);
}

std::optional<std::uint16_t> port_of(std::string_view text) {
  std::uint16_t port = 0;
  const bool digits = !text.empty() && text.size() <= 5;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (!digits || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return port;
}

Halves at_last_colon(std::string_view text) {
  const auto colon = text.rfind(':');
  return {text.substr(0, colon), text.substr(colon + 1)};
}

Halves halves_of(std::string_view text) {
  if (const auto close = text.find(']'); text.front() == '[' && close != text.npos) {
    const auto rest = text.substr(close + 1);
    if (rest.empty()) return {text.substr(1, close - 1)};
    // What follows an address in brackets can only be a port.
    return {text.substr(1, close - 1), rest.starts_with(':') ? rest.substr(1) : ""};
  }
  return text.find(':') == text.npos || is_ipv6(text) ? Halves{text} : at_last_colon(text);
}

}  // namespace

std::expected<HostPort, HostPortFault> parse_host_port(std::string_view text) {
  const std::string_view whole = trim(text);
  if (whole.empty()) return HostPort{"localhost", {}};
  const Halves halves = halves_of(whole);
  HostPort found{std::string(halves.host), {}};
  if (halves.port && !(found.port = port_of(*halves.port))) {
    return std::unexpected(HostPortFault::Port);
  }
  if (!is_host(halves.host)) return std::unexpected(HostPortFault::Host);
  return found;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

}  // namespace elastrun
