// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <functional>
#include <string>
#include <string_view>

namespace elastrun::net {

/// Gives each connection its own key, for jobs without a secret: only the two processes know it,
/// and an authority of the cluster vouches for both. The connecting side makes the key and a
/// credential that carries it; the side that can open the credential proves itself by the seals
/// under that key, as does the side whose credential it was.
///
/// Answers come on the loop, never inside the call, and none after the exchange is destroyed.
class KeyExchange {
 public:
  struct Offer {
    std::string credential;  // text for the other side
    std::string key;
  };
  virtual ~KeyExchange() = default;

  /// For the side that has connected. `session`: the random bytes of both sides, to which the
  /// credential is bound, so that one that was recorded fits nowhere else.
  virtual void offer(std::string session, std::function<void(Result<Offer>)> then) = 0;
  /// For the side that listens: the key. Fails with Rendezvous for a credential of another user,
  /// cluster or connection, and says which; with Io if that cannot be found out now.
  virtual void accept(std::string session, std::string credential,
                      std::function<void(Result<std::string>)> then) = 0;
  /// "MUNGE", for people.
  virtual std::string_view name() const = 0;
  /// True if a side that connects refuses one that listens and wants no exchange.
  virtual bool is_required() const = 0;
};

}  // namespace elastrun::net
