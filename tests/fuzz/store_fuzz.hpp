// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "net/frame.hpp"
#include "store/conversation.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

/// What the fuzz targets of both store protocols share.
namespace elastrun::fuzz {

/// Ends the process, which libFuzzer reports with the input, if something is not as it must be.
inline void require(bool holds) {
  if (!holds) std::abort();
}

/// Some peers of one exchange, each reading all it gets.
class Peers {
 public:
  explicit Peers(std::size_t count) : answers_(count) {
    for (std::size_t i = 0; i < count; ++i) peers_.push_back(exchange_.open());
  }

  void send(std::size_t who, std::string_view bytes) {
    exchange_.receive(peers_[who], bytes);
    for (std::size_t i = 0; i < peers_.size(); ++i) read(i);
  }
  void leave(std::size_t who) {
    exchange_.close(peers_[who]);
    peers_[who] = exchange_.open();
  }
  const std::string& answers(std::size_t who) const { return answers_[who]; }
  bool ended(std::size_t who) { return exchange_.at(peers_[who]).ended(); }
  std::string violation(std::size_t who) { return exchange_.at(peers_[who]).violation(); }

  /// What must hold after any input whatever.
  void check() {
    const auto& table = exchange_.table();
    require(table.keys().size() == table.size());
    require(table.notices().empty());
    for (const auto key : table.keys()) require(table.present(key));
    for (std::size_t i = 0; i < peers_.size(); ++i) require(ended(i) == !violation(i).empty());
  }

 private:
  void read(std::size_t who) {
    auto& conversation = exchange_.at(peers_[who]);
    while (!conversation.output().empty()) {
      answers_[who] += conversation.output().take();
      exchange_.receive(peers_[who], {});  // goes on, should it have stalled
    }
  }

  store::Exchange exchange_;
  std::vector<store::Peer> peers_;
  std::vector<std::string> answers_;
};

/// One peer's bytes at once, and byte by byte: the answers and the end must be the same.
inline void check_pieces(const std::string& opening, std::string_view bytes) {
  Peers whole(1), pieces(1);
  whole.send(0, opening + std::string(bytes));
  pieces.send(0, opening);
  for (const char byte : bytes) pieces.send(0, {&byte, 1});
  require(whole.answers(0) == pieces.answers(0));
  require(whole.violation(0).substr(0, 20) == pieces.violation(0).substr(0, 20));
  whole.check();
  pieces.check();
}

/// Several peers in turns: a byte says who and how many bytes, those bytes follow.
inline void check_crowd(const std::string& opening, std::string_view bytes) {
  constexpr std::size_t kPeers = 4;
  Peers peers(kPeers);
  for (std::size_t i = 0; i < kPeers; ++i) peers.send(i, opening);
  while (!bytes.empty()) {
    const auto control = static_cast<unsigned char>(bytes.front());
    const auto part = bytes.substr(1, control >> 2);
    bytes.remove_prefix(1 + part.size());
    if (part.empty()) {
      peers.leave(control & 3);
      peers.send(control & 3, opening);
    } else {
      peers.send(control & 3, part);
    }
  }
  peers.check();
}

/// Requests that are well formed, on few keys, so that they meet: what random bytes seldom do.
inline void check_script(store::Protocol protocol, const std::string& opening,
                         std::string_view bytes) {
  constexpr std::size_t kPeers = 4;
  constexpr std::string_view kKeys[] = {"/a", "/b", "", "/c"};
  constexpr std::string_view kValues[] = {"", "1", "x", "9223372036854775807"};
  Peers peers(kPeers);
  for (std::size_t i = 0; i < kPeers; ++i) peers.send(i, opening);
  for (; bytes.size() >= 3; bytes.remove_prefix(3)) {
    const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
    const auto who = static_cast<std::size_t>(at(0) >> 6);
    const auto query = store::query_of(protocol, at(0) & 31);
    if (!query) {
      peers.leave(who);
      peers.send(who, opening);
      continue;
    }
    const std::string_view texts[] = {kKeys[at(1) & 3], kKeys[at(1) >> 2 & 3],
                                      kKeys[at(1) >> 4 & 3], kKeys[at(1) >> 6]};
    store::Request request;
    request.query = *query;
    request.key = texts[0];
    request.value = kValues[at(2) & 3];
    request.desired = kValues[at(2) >> 2 & 3];
    request.number = static_cast<signed char>(at(2)) / 16;
    request.texts = texts;
    std::string message;
    store::append_request(message, request, protocol);
    peers.send(who, message);
  }
  peers.check();
}

/// The first byte of an input chooses how the others are read.
inline void check_store(store::Protocol protocol, const std::string& opening,
                        std::string_view bytes) {
  if (bytes.empty()) return;
  const auto rest = bytes.substr(1);
  switch (static_cast<unsigned char>(bytes.front()) % 3) {
    case 0:
      return check_pieces(opening, rest);
    case 1:
      return check_crowd(opening, rest);
    default:
      return check_script(protocol, opening, rest);
  }
}

}  // namespace elastrun::fuzz
