// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/discovery/previous_world_probe.hpp"

#include "core/read_file.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "net/endpoint.hpp"

#include <array>
#include <cerrno>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace elastrun::rendezvous {
namespace {

constexpr auto kBetweenProbes = std::chrono::seconds(2);

/// Binds to that port of all addresses, for a moment, and without SO_REUSEADDR: with it a port that
/// is held but not listened on would look free (socket(7)). One that was used until a minute ago
/// may still look held, which only costs time.
bool can_bind(const sockaddr* address, socklen_t size) {
  const UniqueFd fd(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd && ::bind(fd.get(), address, size) == 0;
}

bool is_free(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (!can_bind(reinterpret_cast<const sockaddr*>(&address), sizeof address)) return false;
  sockaddr_in6 address6{};
  address6.sin6_family = AF_INET6;
  address6.sin6_port = htons(port);
  if (can_bind(reinterpret_cast<const sockaddr*>(&address6), sizeof address6)) return true;
  return errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL;  // a machine without IPv6
}

}  // namespace

PreviousWorldProbe::PreviousWorldProbe(Clock& clock) : clock_(clock), again_(clock.make_alarm()) {}

void PreviousWorldProbe::probe(const RecordedWorld& recorded, std::function<void()> gone) {
  stop();
  const auto address = net::parse_address(recorded.world.address);
  const bool here =
      recorded.network == own_network() && (address.is_loopback() || net::is_own_address(address));
  if (!here || address.is_unspecified() || recorded.world.port == 0) return;
  port_ = recorded.world.port;
  gone_ = std::move(gone);
  // Not inside this call.
  again_->arm(clock_.now(), [this] { look(); });
}

void PreviousWorldProbe::stop() {
  again_->disarm();
  gone_ = nullptr;
}

void PreviousWorldProbe::look() {
  if (!is_free(port_)) {
    again_->arm(clock_.now() + kBetweenProbes, [this] { look(); });
  } else if (const auto gone = std::exchange(gone_, {})) {
    gone();
  }
}

std::string PreviousWorldProbe::own_network() {
  // The number of a network namespace alone repeats on other machines, and here after the next
  // boot.
  const auto id = read_kernel_file("/proc/sys/kernel/random/boot_id");
  const auto boot = trim(id);
  std::array<char, 64> space{};
  const ssize_t size = ::readlink("/proc/self/ns/net", space.data(), space.size());
  return fmt::format("{} {}", boot,
                     std::string_view(space.data(), static_cast<std::size_t>(size < 0 ? 0 : size)));
}

}  // namespace elastrun::rendezvous
