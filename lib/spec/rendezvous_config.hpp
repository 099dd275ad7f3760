// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace elastrun::spec {

/// The built-in values of --rdzv-backend.
namespace backend {
constexpr std::string_view kStatic = "static", kC10d = "c10d", kEtcd = "etcd", kEtcdV2 = "etcd-v2",
                           kFile = "file";
inline constexpr std::array kBuiltIn = {kStatic, kC10d, kEtcd, kEtcdV2, kFile};
}  // namespace backend

// Where the endpoint names none: torchrun's, torchrun's, etcd's.
constexpr std::uint16_t kC10dPort = 29400, kStaticPort = 29500, kEtcdPort = 2379;

/// Ports to try, first to last; 0-0: any free one.
struct PortRange {
  std::uint16_t first = 0, last = 0;
  bool operator==(const PortRange&) const = default;
};

/// Settings that the built-in rendezvous back ends read from --rdzv-conf, with the defaults.
/// elastrun(1) has a line for each; those that torchrun knows have its names and defaults. A new
/// key is a member here and a row in option_table.cpp. One that the coordinator obeys is a member
/// of rendezvous::Rules, too, which rules_of() fills.
struct RendezvousConfig {
  Duration join_timeout = std::chrono::seconds(600);
  Duration last_call_timeout = std::chrono::seconds(30);
  Duration close_timeout = std::chrono::seconds(30);
  Duration timeout = std::chrono::seconds(900);      // what join_timeout is, for static
  Duration read_timeout = std::chrono::seconds(60);  // of one attempt to reach the coordinator
  Duration keep_alive_interval = std::chrono::seconds(5);
  int keep_alive_max_attempt = 3;
  bool meets_in_file = false;     // store_type=file: c10d becomes the file back end
  std::optional<bool> is_host{};  // of c10d's coordinator; none: by the endpoint
  PortRange store_port{};         // of the workers' store
  std::string secret_file{};

  // Elected coordinators
  Duration lease_ttl = std::chrono::seconds(10);
  Duration isolation_timeout = std::chrono::seconds(120);
  PortRange coordinator_port{};
  std::string advertise{};  // the address for others; empty: --local-addr, or found out

  // etcd
  std::string etcd_prefix = "/elastrun";
  std::string protocol{};  // "https": TLS also where the endpoint does not say so
  std::string ca_cert{}, ssl_cert{}, ssl_cert_key{};
  std::string user{}, password{}, password_file{};
};

}  // namespace elastrun::spec
