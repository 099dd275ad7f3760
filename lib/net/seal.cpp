// SPDX-License-Identifier: Apache-2.0

#include "net/seal.hpp"

#include "net/bytes.hpp"

#include <cassert>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

namespace elastrun::net {
namespace {

struct FreeContext {
  void operator()(EVP_MAC_CTX* context) const { EVP_MAC_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_MAC_CTX, FreeContext>;

const unsigned char* as_bytes(const char* text) {
  return reinterpret_cast<const unsigned char*>(text);
}

class HmacSealer final : public Sealer {
 public:
  explicit HmacSealer(std::string_view secret, std::shared_ptr<KeyExchange> exchange = {})
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
        EVP_MAC_init(keyed_.get(), as_bytes(key), secret.size(), parameters);
    assert(ready == 1 && "HMAC-SHA256 refused its key");
  }

  Seal seal(Direction direction, std::string_view session, std::uint64_t number,
            std::string_view payload) const override {
    // Starting again under the same key is twice as quick as a copy of the keyed context, and
    // several times as setting the key again. There is one thread.
    EVP_MAC_CTX* context = keyed_.get();
    [[maybe_unused]] const int ready = EVP_MAC_init(context, nullptr, 0, nullptr);
    assert(ready == 1 && "HMAC-SHA256 forgot its key");
    const char side = static_cast<char>(direction);
    char place[8];
    save<std::uint64_t>(place, number);
    // All of these, so that a frame cannot be played back: to its sender, in another session, or
    // twice.
    EVP_MAC_update(context, as_bytes(&side), 1);
    EVP_MAC_update(context, as_bytes(session.data()), session.size());
    EVP_MAC_update(context, as_bytes(place), sizeof place);
    EVP_MAC_update(context, as_bytes(payload.data()), payload.size());
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

std::shared_ptr<const Sealer> make_sealer(std::string_view secret) {
  return std::make_shared<HmacSealer>(secret);
}

std::shared_ptr<const Sealer> make_exchanging_sealer(std::shared_ptr<KeyExchange> exchange) {
  return std::make_shared<HmacSealer>("", std::move(exchange));
}

bool same_seal(const Seal& left, std::string_view right) {
  // In constant time, which tells nothing about how much of a forged seal is right.
  return right.size() == left.size() && CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace elastrun::net
