// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "net/endpoint.hpp"

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::store {

/// Whom a server serves, and since when. While it is shut no request is read: a connection may
/// belong to a worker of another node that is a little ahead of us, or to a stranger, and which of
/// both is known only once it is open. Pure.
class Gate {
 public:
  /// A connection that came while it was shut, with what was read from it already.
  using Early = std::pair<boost::asio::ip::tcp::socket, std::string>;

  explicit Gate(bool shut) : shut_(shut) {}

  bool is_shut() const { return shut_; }
  /// Open for these addresses from now on; for all if there are none.
  void open(const std::vector<boost::asio::ip::address>& addresses) {
    shut_ = false;
    allowed_.clear();
    for (const auto& address : addresses) allowed_.insert(net::plain(address));
  }
  /// Shut again; those who waited are closed.
  void shut() {
    shut_ = true;
    early_.clear();
  }
  bool admits(const boost::asio::ip::address& address) const {
    return allowed_.empty() || allowed_.contains(net::plain(address));
  }

  void keep(boost::asio::ip::tcp::socket socket, std::string first_bytes) {
    early_.emplace_back(std::move(socket), std::move(first_bytes));
  }
  std::size_t kept() const { return early_.size(); }
  /// Those who waited, first come first, and forgets them.
  std::vector<Early> take_early() { return std::exchange(early_, {}); }

 private:
  bool shut_;
  std::set<boost::asio::ip::address> allowed_;
  std::vector<Early> early_;
};

}  // namespace elastrun::store
