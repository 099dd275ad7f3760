// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/log.hpp"
#include "net/endpoint.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <utility>

namespace elastrun::store {

inline std::string show(const boost::asio::ip::tcp::endpoint& endpoint) {
  return net::format_endpoint(net::plain(endpoint.address()).to_string(), endpoint.port());
}

inline std::string show_peer(int fd) {
  boost::asio::ip::tcp::endpoint endpoint;
  auto size = static_cast<socklen_t>(endpoint.capacity());
  if (::getpeername(fd, endpoint.data(), &size) != 0) return "a peer that is already gone";
  return show(endpoint);
}

/// Warnings that a hostile or broken peer can cause at will: the first ones are written, the others
/// counted, and written at every power of two.
class RateLimitedLog {
 public:
  explicit RateLimitedLog(std::string_view area = "store") : area_(area) {}

  template <class... Args>
  void add(fmt::format_string<Args...> form, Args&&... args) {
    constexpr std::uint64_t kAll = 16;
    ++count_;
    const bool power_of_two = (count_ & (count_ - 1)) == 0;
    if (count_ > kAll && !power_of_two) return;
    const auto text = fmt::format(form, std::forward<Args>(args)...);
    if (count_ <= kAll) return log::warning(area_, "{}", text);
    log::warning(area_, "{} ({} such lines so far)", text, count_);
  }

 private:
  std::string_view area_;
  std::uint64_t count_ = 0;
};

}  // namespace elastrun::store
