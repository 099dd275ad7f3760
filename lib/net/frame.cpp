// SPDX-License-Identifier: Apache-2.0

#include "net/frame.hpp"

#include <algorithm>
#include <cassert>
#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <span>
#include <sys/random.h>

namespace elastrun::net {
namespace {

struct FreeContext {
  void operator()(EVP_MAC_CTX* context) const { EVP_MAC_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_MAC_CTX, FreeContext>;

unsigned char* octets(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}
const unsigned char* octets(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

class HmacSealer final : public Sealer {
 public:
  HmacSealer(std::string_view secret, std::shared_ptr<KeyExchange> exchange)
      : exchange_(std::move(exchange)) {
    EVP_MAC* mac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
    assert(mac != nullptr && "OpenSSL without HMAC");
    keyed_.reset(EVP_MAC_CTX_new(mac));
    EVP_MAC_free(mac);
    char digest[] = "SHA256";
    const OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_end()};
    // A key of no bytes must still be given as one: a null pointer would mean "no key yet".
    const char* key = secret.empty() ? "" : secret.data();
    [[maybe_unused]] const int ready =
        EVP_MAC_init(keyed_.get(), octets(key), secret.size(), parameters);
    assert(ready == 1 && "HMAC-SHA256 refused its key");
  }

  Seal seal(Side side, std::string_view session, std::uint64_t number,
            std::string_view payload) const override {
    // Starting again under the same key is twice as quick as a copy of the keyed context, and
    // several times as setting the key again. There is one thread.
    EVP_MAC_CTX* context = keyed_.get();
    [[maybe_unused]] const int ready = EVP_MAC_init(context, nullptr, 0, nullptr);
    assert(ready == 1 && "HMAC-SHA256 forgot its key");
    const char letter = static_cast<char>(side);
    char place[8];
    save<std::uint64_t>(place, number);
    // All of these, so that a frame cannot be played back: to its sender, in another session, or
    // twice.
    EVP_MAC_update(context, octets(std::string_view(&letter, 1)), 1);
    EVP_MAC_update(context, octets(session), session.size());
    EVP_MAC_update(context, octets(std::string_view(place, sizeof place)), sizeof place);
    EVP_MAC_update(context, octets(payload), payload.size());
    Seal seal{};
    std::size_t size = 0;
    EVP_MAC_final(context, reinterpret_cast<unsigned char*>(seal.data()), &size, seal.size());
    return seal;
  }

  KeyExchange* key_exchange() const override { return exchange_.get(); }

 private:
  Context keyed_;
  const std::shared_ptr<KeyExchange> exchange_;
};

}  // namespace

std::shared_ptr<const Sealer> make_sealer(std::string_view secret,
                                          std::shared_ptr<KeyExchange> exchange) {
  return std::make_shared<HmacSealer>(secret, std::move(exchange));
}

std::string encode_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4, '\0');  // and the zero behind, which is written too
  EVP_EncodeBlock(octets(text), octets(bytes), static_cast<int>(bytes.size()));
  return text;
}

std::optional<std::string> decode_base64(std::string_view text) {
  std::string bytes(text.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(octets(bytes), octets(text), static_cast<int>(text.size()));
  const int padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  if (size < padding) return std::nullopt;
  bytes.resize(static_cast<std::size_t>(size - padding));
  // OpenSSL also takes blanks around it, padding within it, and other bits than zero where padding
  // stands. Here only one text means these bytes.
  if (encode_base64(bytes) != text) return std::nullopt;
  return bytes;
}

std::string format_hex(std::string_view bytes, std::size_t limit) {
  const auto* const first = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto shown = std::span(first, std::min(bytes.size(), limit));
  return fmt::format("{:02x}{}", fmt::join(shown, " "), bytes.size() > limit ? " ..." : "");
}

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

void Frames::write(std::string& out, std::string_view payload) {
  // The number is not sent. Both sides count, so that a frame that was left out, repeated or moved
  // has a wrong seal.
  const Seal seal = sealer_->seal(own_, session_, written_++, payload);
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

Result<std::optional<Frame>> Frames::take(std::string& bytes, std::size_t limit) {
  if (bytes.size() < 4) return std::nullopt;
  const auto size = load<std::uint32_t>(bytes.data());
  // By the length alone, before the payload has come: a forged one would have us gather 4 GiB.
  if (size > limit) {
    return fail(Code::Protocol,
                fmt::format("a frame of {} bytes is over the limit of {}", size, limit));
  }
  if (bytes.size() < kFrameHeader + size) return std::nullopt;
  const std::string_view seal = std::string_view(bytes).substr(4, kSealBytes);
  Frame frame{bytes.substr(kFrameHeader, size), true};
  const Side other = own_ == Side::Connector ? Side::Listener : Side::Connector;
  const Seal right = sealer_->seal(other, session_, read_, frame.payload);
  // In constant time, which tells nothing about how much of a forged seal is right.
  if (CRYPTO_memcmp(right.data(), seal.data(), kSealBytes) != 0) {
    // Zeros mark a refusal, which a side without the secret must be able to send.
    frame.sealed = false;
    if (seal.find_first_not_of('\0') != std::string_view::npos) {
      return fail(Code::Rendezvous, "the frame is not sealed with this job's secret");
    }
  } else {
    // Only for what is sealed: a refusal without a seal is not counted by who sends it.
    ++read_;
  }
  bytes.erase(0, kFrameHeader + size);
  return frame;
}

}  // namespace elastrun::net
