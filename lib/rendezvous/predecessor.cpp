// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/predecessor.hpp"

#include "net/endpoint.hpp"

#include <array>
#include <fmt/format.h>
#include <fstream>
#include <unistd.h>
#include <utility>

namespace elastrun::rendezvous {
namespace {

// A connection that succeeds costs the store a greeting that never comes.
constexpr auto kBetweenQuestions = std::chrono::seconds(2);
constexpr auto kLimit = std::chrono::seconds(5);

}  // namespace

Predecessor::Predecessor(boost::asio::io_context& loop, Clock& clock)
    : clock_(clock), dialer_(loop, clock), again_(clock.make_alarm()) {}

void Predecessor::investigate(const NotedWorld& noted, std::function<void()> gone) {
  stop();
  if (noted.world.address.empty() || noted.world.port == 0) return;
  if (net::parse_address(noted.world.address).is_loopback() && noted.network != own_network()) {
    return;
  }
  store_ = {noted.world.address, noted.world.port};
  gone_ = std::move(gone);
  ask();
}

void Predecessor::stop() {
  dialer_.cancel();
  again_->disarm();
  gone_ = nullptr;
}

void Predecessor::ask() {
  dialer_.dial(store_, kLimit, [this](const Result<boost::asio::ip::tcp::socket>& socket) {
    if (socket || socket.error().code != Code::Closed) {
      return again_->arm(clock_.now() + kBetweenQuestions, [this] { ask(); });
    }
    if (const auto gone = std::exchange(gone_, {})) gone();
  });
}

std::string Predecessor::own_network() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::array<char, 64> space{};
  const ssize_t size = ::readlink("/proc/self/ns/net", space.data(), space.size());
  return fmt::format("{} {}", boot,
                     std::string_view(space.data(), static_cast<std::size_t>(size < 0 ? 0 : size)));
}

}  // namespace elastrun::rendezvous
