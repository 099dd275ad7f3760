// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/session/munge.hpp"

#include "core/json.hpp"
#include "core/log.hpp"
#include "files/blocking_calls.hpp"
#include "net/frame.hpp"

#include <cstdlib>
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>
#include <utility>

namespace elastrun::rendezvous {
namespace {

// As munge.h declares them: the numbers are part of libmunge's interface, version 2.
constexpr int kSuccess = 0;
constexpr int kCipherType = 0, kCipherAes128 = 4;
constexpr int kUidRestriction = 9;
constexpr int kFirstOfCredential = 8;  // below it the service failed, and nothing is known of it
using Context = void*;

struct Library {
  Context (*create)() = nullptr;
  void (*destroy)(Context) = nullptr;
  int (*set)(Context, int, ...) = nullptr;
  int (*encode)(char**, Context, const void*, int) = nullptr;
  int (*decode)(const char*, Context, void**, int*, uid_t*, gid_t*) = nullptr;
  const char* (*explain)(int) = nullptr;
};

class LoadedMunge final : public Munge {
 public:
  explicit LoadedMunge(const Library& library) : library_(library) {}

  Result<std::string> encode(std::string_view payload, uid_t reader) const override {
    const Context context = library_.create();
    if (context == nullptr) return fail(Code::Io, "MUNGE has no memory");
    // Not what munged.conf may say: the payload is a key, so it must be enciphered.
    library_.set(context, kCipherType, kCipherAes128);
    library_.set(context, kUidRestriction, reader);
    char* text = nullptr;
    const int answer =
        library_.encode(&text, context, payload.data(), static_cast<int>(payload.size()));
    const std::string credential = text == nullptr ? "" : text;
    // What munge_encode(3) has allocated is its caller's to free.
    std::free(text);
    library_.destroy(context);
    if (answer != kSuccess) return fail(Code::Io, explain("no credential by MUNGE", answer));
    return credential;
  }

  Result<Opened> decode(const std::string& credential) const override {
    void* bytes = nullptr;
    int size = 0;
    Opened opened;
    gid_t group = 0;
    // Only success counts: the fields are also filled in for credentials that are too old.
    const int answer =
        library_.decode(credential.c_str(), nullptr, &bytes, &size, &opened.writer, &group);
    if (bytes != nullptr && size > 0) {
      opened.payload.assign(static_cast<const char*>(bytes), static_cast<std::size_t>(size));
    }
    // Whatever the answer is: munge_decode(3) gives the payload of an expired or replayed
    // credential, too.
    std::free(bytes);
    // Two codes, because a credential that is refused can end the search for good, and a service
    // that is down must not.
    if (answer >= kFirstOfCredential) {
      return fail(Code::Rendezvous, explain("MUNGE does not accept the credential", answer));
    }
    if (answer != kSuccess) return fail(Code::Io, explain("MUNGE opens no credential", answer));
    return opened;
  }

 private:
  std::string explain(std::string_view what, int answer) const {
    const char* text = library_.explain(answer);
    return fmt::format("{}: {}", what, text == nullptr ? "unknown error" : text);
  }

  const Library library_;  // never unloaded: a thread may be in it
};

template <class Function>
bool find(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(handle, name));
  return function != nullptr;
}

constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kKeyText = 44;  // base64 of those

std::string payload_of(const std::string& session, const std::string& key) {
  return json::serialize(
      json::object{{"elastrun", 1}, {"session", net::encode_base64(session)}, {"key", key}});
}

/// The key in a credential that one of our own processes made for this very connection.
Result<std::string> key_of(const Munge::Opened& opened, const std::string& session, uid_t user) {
  // Any user of the cluster can make a valid credential; only this one's are ours.
  if (opened.writer != user) {
    return fail(Code::Rendezvous,
                fmt::format("the credential is of user {}, and this job is of user {}",
                            opened.writer, user));
  }
  const auto value = parse_json(opened.payload);
  const std::string key = value ? member_text_or(*value, "key", "") : "";
  if (key.size() != kKeyText) {
    return fail(Code::Rendezvous, "the credential was not made by elastrun");
  }
  // A credential that was overheard is good for the connection it was made for, and for no other.
  if (member_text_or(*value, "session", "") != net::encode_base64(session)) {
    return fail(Code::Rendezvous, "the credential was made for another connection");
  }
  return key;
}

class MungeExchange final : public net::KeyExchange {
 public:
  MungeExchange(boost::asio::io_context& loop, std::shared_ptr<const Munge> munge, bool required)
      : calls_(loop.get_executor(), files::BlockingCalls::WithoutThread::Refuse),
        munge_(std::move(munge)),
        required_(required) {}

  void offer(std::string session, std::function<void(Result<Offer>)> then) override {
    calls_.make(
        "munged",
        [munge = munge_, session = std::move(session)]() -> Result<Offer> {
          std::string bytes(kKeyBytes, '\0');
          // Up to 256 bytes come whole once the kernel's pool is initialised (getrandom(2)): no
          // loop is needed.
          if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(kKeyBytes)) {
            return fail(Code::Io, "the kernel gives no random bytes");
          }
          Offer offer{{}, net::encode_base64(bytes)};
          auto credential = munge->encode(payload_of(session, offer.key), ::geteuid());
          if (!credential) return std::unexpected(credential.error());
          offer.credential = std::move(*credential);
          return offer;
        },
        std::move(then));
  }

  void accept(std::string session, std::string credential,
              std::function<void(Result<std::string>)> then) override {
    calls_.make(
        "munged",
        [munge = munge_, session = std::move(session),
         credential = std::move(credential)]() -> Result<std::string> {
          const auto opened = munge->decode(credential);
          if (!opened) return std::unexpected(opened.error());
          return key_of(*opened, session, ::geteuid());
        },
        [this, then = std::move(then)](Result<std::string> key) {
          // Once: peers try again with each connection while munged is down.
          if (!key && key.error().code == Code::Io && !std::exchange(warned_, true)) {
            log::warning("rendezvous", "agents have to try again: {}", key.error().text);
          }
          then(std::move(key));
        });
  }

  std::string_view name() const override { return "MUNGE"; }
  bool is_required() const override { return required_; }

 private:
  files::BlockingCalls calls_;
  const std::shared_ptr<const Munge> munge_;
  const bool required_;
  bool warned_ = false;  // that the service fails
};

}  // namespace

Result<std::shared_ptr<const Munge>> load_munge() {
  // At run time, since the program has to start on machines without MUNGE. RTLD_NOW, or a symbol
  // that is missing would end the process at its first call (dlopen(3)).
  void* const handle = ::dlopen("libmunge.so.2", RTLD_NOW | RTLD_LOCAL);
  Library library;
  if (handle == nullptr || !find(handle, "munge_ctx_create", library.create) ||
      !find(handle, "munge_ctx_destroy", library.destroy) ||
      !find(handle, "munge_ctx_set", library.set) ||
      !find(handle, "munge_encode", library.encode) ||
      !find(handle, "munge_decode", library.decode) ||
      !find(handle, "munge_strerror", library.explain)) {
    const char* text = ::dlerror();
    return fail(Code::Io, fmt::format("no libmunge: {}", text == nullptr ? "" : text));
  }
  auto munge = std::make_shared<const LoadedMunge>(library);
  // libmunge may be installed where munged does not run; only a credential tells.
  if (const auto tried = munge->encode("", ::geteuid()); !tried) {
    return std::unexpected(tried.error());
  }
  return munge;
}

std::shared_ptr<net::KeyExchange> make_munge_exchange(boost::asio::io_context& loop,
                                                      std::shared_ptr<const Munge> munge,
                                                      bool required) {
  return std::make_shared<MungeExchange>(loop, std::move(munge), required);
}

}  // namespace elastrun::rendezvous
