// SPDX-License-Identifier: Apache-2.0
// Bytes from a hostile peer of the rendezvous: the greeting and the frames behind it, whole and
// byte by byte, which must come to the same; and payloads for both sides' messages, as if their
// seal had been right. What parses is written and read again.
#include "core/text.hpp"
#include "net/frame.hpp"
#include "rendezvous/wire/messages.hpp"

#include <cstdlib>
#include <optional>
#include <vector>

namespace {

using namespace elastrun;

void require(bool holds) {
  if (!holds) std::abort();
}

/// A seal that inputs can hit: what is behind the check is reached too.
class WeakSealer final : public net::Sealer {
 public:
  net::Seal seal(net::Side, std::string_view, std::uint64_t number,
                 std::string_view payload) const override {
    net::Seal seal;
    seal.fill(static_cast<char>('A' + (number + payload.size()) % 4));
    return seal;
  }
};

struct Reading {
  std::vector<std::string> payloads;
  std::string trouble;
};

/// What a listener makes of these bytes, when they come in pieces of that size.
Reading listen(std::string_view bytes, std::size_t piece) {
  static const auto sealer = std::make_shared<const WeakSealer>();
  Reading reading;
  std::optional<net::Frames> reader;
  std::string buffer;
  while (!bytes.empty()) {
    buffer += bytes.substr(0, piece);
    bytes.remove_prefix(std::min(piece, bytes.size()));
    if (!reader) {
      const auto greeting = net::take_greeting(buffer);
      if (!greeting) return {{}, greeting.error().text};
      if (!*greeting) continue;
      require((*greeting)->nonce.size() == net::kNonceBytes);
      reader.emplace(sealer, net::Side::Listener, (*greeting)->nonce);
    }
    while (true) {
      auto frame = reader->take(buffer, 4096);
      if (!frame) {
        reading.trouble = frame.error().text;
        return reading;
      }
      if (!*frame) break;
      require((*frame)->payload.size() <= 4096);
      reading.payloads.push_back(std::move((*frame)->payload));
    }
  }
  return reading;
}

/// What logs and terminals show of a message: no byte of it steers one.
struct Shown {
  template <class... Texts>
  void all(const Texts&... texts) const {
    (require(without_controls(texts) == texts), ...);
  }
  void operator()(const rendezvous::Hello& hello) const {
    all(hello.run_id, hello.start, hello.host, hello.user);
    if (hello.at_work) (*this)(hello.at_work->member);
  }
  void operator()(const rendezvous::Join& join) const {
    const auto& node = join.node;
    all(node.id, node.instance, node.address, node.role, node.unable, node.fault, node.topology);
    for (const auto& address : node.alternates) all(address);
    require(node.id.size() <= 300 && node.address.size() <= 300);
  }
  void operator()(const rendezvous::Failed& failed) const { (*this)(failed.cause); }
  void operator()(const rendezvous::Leaving& leaving) const { all(leaving.why); }
  void operator()(const rendezvous::AskPreempt& ask) const { all(ask.why); }
  void operator()(const rendezvous::NodeStacks& stacks) const {
    for (const auto& group : stacks.groups) {
      for (const auto& line : group.lines) all(line);
    }
  }
  void operator()(const rendezvous::Cause& cause) const {
    all(cause.text, cause.node, cause.fingerprint, cause.rule);
  }
  void operator()(const rendezvous::Welcome& welcome) const { all(welcome.run_id); }
  void operator()(const rendezvous::Refusal& refusal) const { all(refusal.text); }
  void operator()(const rendezvous::Push& push) const { std::visit(*this, push); }
  void operator()(const rendezvous::RoundReady& ready) const { all(ready.round.master_addr); }
  void operator()(const rendezvous::Restart& restart) const {
    all(restart.role);
    (*this)(restart.cause);
  }
  void operator()(const rendezvous::Done& done) const { (*this)(done.cause); }
  void operator()(const rendezvous::Lost& lost) const { all(lost.why); }
  void operator()(const rendezvous::Progress& progress) const { all(progress.text); }
  void operator()(const auto&) const {}  // numbers
};

void read_message(std::string_view text) {
  if (const auto message = rendezvous::decode_from_agent(text)) {
    std::visit(Shown(), *message);
    const std::string plain = rendezvous::encode(*message);
    const auto again = rendezvous::decode_from_agent(plain);
    require(again.has_value() && rendezvous::encode(*again) == plain);
  }
  if (const auto message = rendezvous::decode_from_coordinator(text)) {
    std::visit(Shown(), *message);
    const std::string plain = rendezvous::encode(*message);
    const auto again = rendezvous::decode_from_coordinator(plain);
    require(again.has_value());
  }
}

// Texts come from programs and may be anything: the other side takes them nevertheless.
void say(std::string_view bytes) {
  using namespace rendezvous;
  const std::string said(bytes);
  Cause cause;
  cause.node = cause.text = said;
  Node node;
  node.id = node.role = node.address = said;
  node.alternates = {said};
  for (const FromAgent& message :
       {FromAgent(Failed{1, cause}), FromAgent(Leaving{said}),
        FromAgent(Hello{said, rendezvous::Hello::Who::Agent, 1}), FromAgent(Join{node, {}, {}})}) {
    const std::string text = encode(message);
    require(text.size() <= (64 << 10));
    const auto taken = decode_from_agent(text);
    require(taken.has_value() && encode(*taken) == text);
  }
  for (const FromCoordinator& message :
       {FromCoordinator(Push(Done{true, cause})), FromCoordinator(Push(Lost{said, true})),
        FromCoordinator(Refusal{said}), FromCoordinator(StatusText{said})}) {
    require(decode_from_coordinator(encode(message)).has_value());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.starts_with('{')) {
    read_message(bytes);
    return 0;
  }
  say(bytes);
  const std::string greeting = net::encode_greeting({.nonce = std::string(net::kNonceBytes, 'n')});
  const bool greeted = bytes.empty() || bytes.front() >= 0;
  const std::string input = (greeted ? greeting : "") + std::string(bytes);
  const Reading whole = listen(input, input.size());
  // Only the wording depends on how much has come: it quotes the first bytes.
  const Reading pieces = listen(input, 1);
  require(whole.payloads == pieces.payloads && whole.trouble.empty() == pieces.trouble.empty());
  for (const std::string& payload : whole.payloads) read_message(payload);
  return 0;
}
