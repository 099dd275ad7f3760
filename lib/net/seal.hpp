// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
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

constexpr std::size_t kSealBytes = 32;
using Seal = std::array<char, kSealBytes>;

/// Which side wrote a frame: its own frames sent back to a side do not fit.
enum class Direction : char { FromConnector = 'C', FromListener = 'L' };

/// Proves that a frame was written with the job's secret, for this place in this conversation.
/// Touches OpenSSL when it is made, not before. May be shared by all connections.
class Sealer {
 public:
  virtual ~Sealer() = default;
  virtual Seal seal(Direction direction, std::string_view session, std::uint64_t number,
                    std::string_view payload) const = 0;
  /// Gives connections keys of their own, instead of this one; null: they get none.
  virtual KeyExchange* key_exchange() const { return nullptr; }
};
/// HMAC-SHA256. An empty secret is allowed: then frames are only protected against accidents.
std::shared_ptr<const Sealer> make_sealer(std::string_view secret);
/// For connections that exchange keys, if the other side does so too, and seals of an empty secret
/// for those that do not.
std::shared_ptr<const Sealer> make_exchanging_sealer(std::shared_ptr<KeyExchange> exchange);

/// Compares in a time that does not tell where they differ.
bool same_seal(const Seal& left, std::string_view right);

}  // namespace elastrun::net
