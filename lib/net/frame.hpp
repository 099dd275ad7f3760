// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "net/seal.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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
namespace elastrun::net {

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

/// Writes the frames of one direction of one connection.
class FrameWriter {
 public:
  /// `session`: nonce of the side that connected, then that of the side that listened.
  FrameWriter(std::shared_ptr<const Sealer> sealer, Direction direction, std::string session)
      : sealer_(std::move(sealer)), direction_(direction), session_(std::move(session)) {}
  /// Appends the next frame.
  void write(std::string& out, std::string_view payload);

 private:
  std::shared_ptr<const Sealer> sealer_;
  Direction direction_;
  std::string session_;
  std::uint64_t number_ = 0;
};
/// An unsealed frame: only for telling the other side why it is refused.
void write_unsealed(std::string& out, std::string_view payload);

/// Takes one unsealed frame; nothing if it is not whole yet. Fails with Protocol for
/// one over 16 KiB, or with a seal.
Result<std::optional<std::string>> take_unsealed(std::string& bytes);

struct Frame {
  std::string payload;
  bool sealed = true;  // false: anybody could have written it
};

/// Reads the frames of the other direction. After a failure the connection is of no use any more.
class FrameReader {
 public:
  FrameReader(std::shared_ptr<const Sealer> sealer, Direction direction, std::string session)
      : sealer_(std::move(sealer)), direction_(direction), session_(std::move(session)) {}
  /// Payloads above this are refused by their length alone, before they are read. 64 KiB at first.
  void limit(std::size_t bytes) { limit_ = bytes; }
  /// Takes the next frame from the front of `bytes`; nothing if it is not whole yet. Fails with
  /// Protocol for a length over the limit and for a wrong seal (Code::Rendezvous: another secret).
  Result<std::optional<Frame>> take(std::string& bytes);

 private:
  std::shared_ptr<const Sealer> sealer_;
  Direction direction_;
  std::string session_;
  std::uint64_t number_ = 0;
  std::size_t limit_ = 64 << 10;
};

}  // namespace elastrun::net
