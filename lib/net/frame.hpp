// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <array>
#include <boost/endian/conversion.hpp>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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

/// The side that wrote a frame: its own frames sent back to a side do not fit.
enum class Side : char { Connector = 'C', Listener = 'L' };

/// Proves that a frame was written with the job's secret, for this place in this conversation.
/// Touches OpenSSL when it is made, not before. May be shared by all connections.
class Sealer {
 public:
  virtual ~Sealer() = default;
  virtual Seal seal(Side side, std::string_view session, std::uint64_t number,
                    std::string_view payload) const = 0;
  /// Gives connections keys of their own, instead of this one; null: they get none.
  virtual KeyExchange* key_exchange() const { return nullptr; }
};
/// HMAC-SHA256. An empty secret is allowed: then frames are only protected against accidents. With
/// an exchange it seals connections whose other side exchanges no keys.
std::shared_ptr<const Sealer> make_sealer(std::string_view secret,
                                          std::shared_ptr<KeyExchange> exchange = {});

/// Integers and strings to and from bytes. Nothing here allocates by a length that came from
/// outside: strings are views into the bytes they were read from.

/// The little-endian integer at `bytes`, which must have sizeof(T) of them.
template <std::integral T>
T load(const char* bytes) {
  return boost::endian::endian_load<T, sizeof(T), boost::endian::order::little>(
      reinterpret_cast<const unsigned char*>(bytes));
}

/// Writes `value` to `bytes`, which must have room for sizeof(T) of them.
template <std::integral T>
void save(char* bytes, T value) {
  boost::endian::endian_store<T, sizeof(T), boost::endian::order::little>(
      reinterpret_cast<unsigned char*>(bytes), value);
}

template <std::integral T>
void append(std::string& out, T value) {
  char bytes[sizeof value];
  save(bytes, value);
  out.append(bytes, sizeof value);
}

/// Reads front to back and never beyond the end: what is not wholly there is not read at all.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <std::integral T>
  std::optional<T> number() {
    if (rest_.size() < sizeof(T)) return std::nullopt;
    const T value = load<T>(rest_.data());
    rest_.remove_prefix(sizeof(T));
    return value;
  }

  std::optional<std::string_view> bytes(std::uint64_t count) {
    if (rest_.size() < count) return std::nullopt;
    const auto taken = rest_.substr(0, static_cast<std::size_t>(count));
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view rest() const { return rest_; }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

/// "00 ce f7 85 3c": the first `limit` bytes for a log line, "..." if there are more.
std::string format_hex(std::string_view bytes, std::size_t limit = 16);

/// RFC 4648, section 4, with padding.
std::string encode_base64(std::string_view bytes);
/// Nothing if the text is not base64 as above, without line ends.
std::optional<std::string> decode_base64(std::string_view text);

/// The bytes between an agent and a coordinator (man page elastrun-protocol(7)). No sockets here.
///
/// Each side first sends a greeting: 8 magic bytes, one version byte, 16 random bytes. Frames
/// follow:
///   u32 little endian length of the payload | 32 bytes seal | payload (JSON)
/// If both greetings say so (kExchangesKeys in the version byte), the side that has connected sends
/// one frame with a seal of zeros first: a credential with the key for all others of this
/// connection.
///
/// The seal is HMAC-SHA256 under the job's secret over direction, both greetings' random bytes, the
/// number of the frame in its direction, and the payload. So a frame that was recorded, repeated,
/// left out, reflected or changed is refused. A seal of zeros also marks the one frame that a side
/// may send without knowing the secret: why it refuses the other one.

/// Begins with a byte that no TCPStore query (0-18) and no HTTP request (ASCII) begins with.
constexpr std::string_view kMagic = "\xE5lastrun";
constexpr std::uint8_t kProtocolVersion = 3;
constexpr std::uint8_t kExchangesKeys = 0x80;
constexpr std::size_t kNonceBytes = 16;
constexpr std::size_t kGreetingBytes = 8 + 1 + kNonceBytes;
constexpr std::size_t kFrameHeader = 4 + kSealBytes;

struct Greeting {
  std::uint8_t version = kProtocolVersion;
  std::string nonce;  // kNonceBytes random bytes
  bool exchanges_keys = false;
};
/// A greeting with fresh random bytes (getrandom(2)).
Greeting make_greeting();
std::string encode_greeting(const Greeting& greeting);
/// Takes a greeting from the front of `bytes`; nothing if it is not whole yet. Fails with Protocol
/// as soon as the bytes cannot be one.
Result<std::optional<Greeting>> take_greeting(std::string& bytes);

/// An unsealed frame: only for telling the other side why it is refused.
void write_unsealed(std::string& out, std::string_view payload);

/// Takes one unsealed frame; nothing if it is not whole yet. Fails with Protocol for
/// one over 16 KiB, or with a seal.
Result<std::optional<std::string>> take_unsealed(std::string& bytes);

struct Frame {
  std::string payload;
  bool sealed = true;  // false: anybody could have written it
};

/// The frames of one connection, both ways. After a failure the connection is of no use any more.
class Frames {
 public:
  /// `own`: this side. `session`: nonce of the side that connected, then that of the side that
  /// listened.
  Frames(std::shared_ptr<const Sealer> sealer, Side own, std::string session)
      : sealer_(std::move(sealer)), own_(own), session_(std::move(session)) {}
  /// Appends the next frame of this side.
  void write(std::string& out, std::string_view payload);
  /// Takes the next frame of the other side from the front of `bytes`; nothing if it is not whole
  /// yet. Fails with Protocol for a payload above `limit`, by its length alone, before it has come,
  /// and with Rendezvous for a wrong seal: another secret.
  Result<std::optional<Frame>> take(std::string& bytes, std::size_t limit = 64 << 10);

 private:
  std::shared_ptr<const Sealer> sealer_;
  Side own_;
  std::string session_;
  std::uint64_t written_ = 0, read_ = 0;
};

}  // namespace elastrun::net
