// SPDX-License-Identifier: Apache-2.0
#include "net/frame.hpp"

#include "net/bytes.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <sys/random.h>

namespace elastrun::net {

Greeting make_greeting() {
  Greeting greeting;
  greeting.nonce.resize(kNonceBytes);
  // Fewer than 256 bytes come whole once the kernel has seeded itself (getrandom(2)).
  [[maybe_unused]] const auto got = ::getrandom(greeting.nonce.data(), kNonceBytes, 0);
  return greeting;
}

std::string encode_greeting(const Greeting& greeting) {
  std::string bytes(kMagic);
  bytes.push_back(
      static_cast<char>(greeting.version | (greeting.exchanges_keys ? kExchangesKeys : 0)));
  return bytes + greeting.nonce;
}

Result<std::optional<Greeting>> take_greeting(std::string& bytes) {
  const std::size_t known = std::min(bytes.size(), kMagic.size());
  if (std::string_view(bytes).substr(0, known) != kMagic.substr(0, known)) {
    return fail(Code::Protocol, fmt::format("the other side does not speak elastrun's protocol (it "
                                            "began with {})",
                                            format_hex(bytes, 8)));
  }
  // The magic is looked at before all has come: a peer that speaks another protocol may be waiting
  // for us, and would never send the rest.
  if (bytes.size() < kGreetingBytes) return std::nullopt;
  const auto version = static_cast<std::uint8_t>(bytes[kMagic.size()]);
  Greeting greeting{static_cast<std::uint8_t>(version & ~kExchangesKeys),
                    bytes.substr(kMagic.size() + 1, kNonceBytes), (version & kExchangesKeys) != 0};
  bytes.erase(0, kGreetingBytes);
  return greeting;
}

void FrameWriter::write(std::string& out, std::string_view payload) {
  // The number is not sent. Both sides count, so that a frame that was left out, repeated or moved
  // has a wrong seal.
  const Seal seal = sealer_->seal(direction_, session_, number_++, payload);
  append<std::uint32_t>(out, static_cast<std::uint32_t>(payload.size()));
  out.append(seal.data(), seal.size());
  out.append(payload);
}

void write_unsealed(std::string& out, std::string_view payload) {
  append<std::uint32_t>(out, static_cast<std::uint32_t>(payload.size()));
  out.append(kSealBytes, '\0');
  out.append(payload);
}

Result<std::optional<std::string>> take_unsealed(std::string& bytes) {
  // Who sends this is not known yet, and must not make us keep more than a credential needs.
  constexpr std::size_t kLongest = 16 << 10;
  if (bytes.size() < 4) return std::nullopt;
  const auto size = load<std::uint32_t>(bytes.data());
  if (size > kLongest) {
    return fail(Code::Protocol, fmt::format("a credential of {} bytes is over the limit", size));
  }
  if (bytes.size() < kFrameHeader + size) return std::nullopt;
  if (bytes.find_first_not_of('\0', 4) < kFrameHeader) {
    return fail(Code::Protocol, "the first frame has a seal where a credential was expected");
  }
  std::string payload = bytes.substr(kFrameHeader, size);
  bytes.erase(0, kFrameHeader + size);
  return payload;
}

Result<std::optional<Frame>> FrameReader::take(std::string& bytes) {
  if (bytes.size() < 4) return std::nullopt;
  const auto size = load<std::uint32_t>(bytes.data());
  // By the length alone, before the payload has come: a forged one would have us gather 4 GiB.
  if (size > limit_) {
    return fail(Code::Protocol,
                fmt::format("a frame of {} bytes is over the limit of {}", size, limit_));
  }
  if (bytes.size() < kFrameHeader + size) return std::nullopt;
  const std::string_view seal = std::string_view(bytes).substr(4, kSealBytes);
  Frame frame{bytes.substr(kFrameHeader, size), true};
  if (!same_seal(sealer_->seal(direction_, session_, number_, frame.payload), seal)) {
    // Zeros mark a refusal, which a side without the secret must be able to send.
    frame.sealed = false;
    if (seal.find_first_not_of('\0') != std::string_view::npos) {
      return fail(Code::Rendezvous, "the frame is not sealed with this job's secret");
    }
  } else {
    // Only for what is sealed: a refusal without a seal is not counted by who sends it.
    ++number_;
  }
  bytes.erase(0, kFrameHeader + size);
  return frame;
}

}  // namespace elastrun::net
