// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>

namespace elastrun {

/// A host, by name or number, and perhaps a port. IPv6 addresses are held without brackets.
struct HostPort {
  std::string host;
  std::optional<std::uint16_t> port;
  bool operator==(const HostPort&) const = default;
};

/// Which half of an endpoint is invalid. The caller words the error message.
enum class HostPortFault { Host, Port };

/// Reads an address as torchrun reads --rdzv-endpoint: "host", "host:port", "[v6]", "[v6]:port";
/// empty is localhost. Unlike torchrun it keeps the last group of a bare IPv6 address: "fe80::12"
/// is a host. If the whole text is no address, the last group is the port: "::1:29500".
std::expected<HostPort, HostPortFault> parse_host_port(std::string_view text);

/// Name of this machine as gethostname(2) has it: no name server is asked.
std::string host_name();

}  // namespace elastrun
