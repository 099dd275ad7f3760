// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace elastrun::net {

class KeyExchange;

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
