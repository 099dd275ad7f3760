// SPDX-License-Identifier: Apache-2.0
#include "store/gate.hpp"

#include "net/endpoint.hpp"

namespace elastrun::store {

void Gate::open(const std::vector<boost::asio::ip::address>& addresses) {
  shut_ = false;
  allowed_.clear();
  for (const auto& address : addresses) allowed_.insert(net::plain(address));
}

void Gate::shut() {
  shut_ = true;
  early_.clear();
}

bool Gate::admits(const boost::asio::ip::address& address) const {
  return allowed_.empty() || allowed_.contains(net::plain(address));
}

}  // namespace elastrun::store
