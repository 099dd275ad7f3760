// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/log.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <sys/socket.h>
#include <utility>

namespace elastrun::store {

/// A v4-mapped address as the IPv4 address that it is.
inline boost::asio::ip::address plain(const boost::asio::ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, address.to_v6());
}

inline std::string show(const boost::asio::ip::tcp::endpoint& endpoint) {
  const auto address = plain(endpoint.address());
  const std::string text = address.to_string();
  return fmt::format("{}:{}", address.is_v6() ? "[" + text + "]" : text, endpoint.port());
}

inline std::string show_peer(int fd) {
  boost::asio::ip::tcp::endpoint endpoint;
  auto size = static_cast<socklen_t>(endpoint.capacity());
  if (::getpeername(fd, endpoint.data(), &size) != 0) return "a peer that is already gone";
  return show(endpoint);
}

/// Warnings that a hostile or broken peer can cause at will: the first ones are written, the others
/// counted, and written at every power of two.
class Complaints {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> form, Args&&... args) {
    constexpr std::uint64_t kAll = 16;
    ++count_;
    const bool power_of_two = (count_ & (count_ - 1)) == 0;
    if (count_ > kAll && !power_of_two) return;
    const auto text = fmt::format(form, std::forward<Args>(args)...);
    if (count_ <= kAll) return log::warning("store", "{}", text);
    log::warning("store", "{} ({} complaints so far)", text, count_);
  }

 private:
  std::uint64_t count_ = 0;
};

}  // namespace elastrun::store
