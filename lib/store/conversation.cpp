// SPDX-License-Identifier: Apache-2.0
#include "store/conversation.hpp"

#include "net/bytes.hpp"

#include <fmt/format.h>
#include <utility>

namespace elastrun::store {
namespace {

constexpr std::size_t kOpening = 5;  // VALIDATE: its number and the magic

std::string describe(const Scanner& scanner, Scanner::Progress progress) {
  switch (progress) {
    case Scanner::Progress::UnknownQuery:
      return fmt::format("sent an invalid request number {}", scanner.refused());
    case Scanner::Progress::LongKey:
      return fmt::format("sent a key of {} bytes; the limit is {}", scanner.refused(), kMaxKey);
    case Scanner::Progress::LongValue:
      return fmt::format("sent a value of {} bytes; the limit is {}", scanner.refused(), kMaxValue);
    case Scanner::Progress::LongList:
      return fmt::format("sent a list of {} keys; the limit is {}", scanner.refused(), kMaxItems);
    case Scanner::Progress::LongMessage:
      return fmt::format("sent a request of more than {} bytes", kMaxMessage);
    case Scanner::Progress::More:
    case Scanner::Progress::Complete:
      break;
  }
  return "sent a request that cannot be read";
}

}  // namespace

void Conversation::receive(std::string_view bytes) {
  if (ended()) return;
  // As a rule a read brings whole requests: they are run where they lie, and nothing is copied.
  if (pending_.empty()) {
    const auto used = run(bytes);
    if (!ended()) pending_.assign(bytes.substr(used));
    return;
  }
  pending_.append(bytes);
  const auto used = run(pending_);
  if (ended()) return;
  if (used == pending_.size()) {
    std::string().swap(pending_);  // {} would be empty and keep its memory
  } else {
    pending_.erase(0, used);
  }
}

/// Runs whole requests from the front; returns how many bytes that were.
std::size_t Conversation::run(std::string_view bytes) {
  std::size_t used = 0;
  if (stage_ == Stage::Undecided) {
    if (!open(bytes)) return 0;
    if (stage_ == Stage::Current) used = kOpening;
  }
  while (!ended() && !stalled()) {
    // Requests behind a long answer wait for its end, or theirs would come within it.
    if (rest_) {
      go_on();
      continue;
    }
    const auto progress = scanner_.scan(bytes.substr(used));
    if (progress == Scanner::Progress::More) break;
    if (progress != Scanner::Progress::Complete) {
      end(describe(scanner_, progress));
      break;
    }
    const auto message = bytes.substr(used, scanner_.size());
    used += message.size();
    scanner_.restart();
    ++exchange_->requests_;
    const auto request = read_request(protocol(), message, exchange_->texts_);
    if (exchange_->on_change_ && request.changes()) exchange_->on_change_();
    execute(request);
  }
  return used;
}

/// Tells the protocols apart by the first bytes (torchrun-parity 7.3). False while they are too
/// few, or when they begin neither.
bool Conversation::open(std::string_view bytes) {
  if (bytes.empty()) return false;
  const auto first = static_cast<std::uint8_t>(bytes.front());
  // torch 1.13 has no request above 8, and HTTP and TLS begin with higher bytes.
  if (first > 8) {
    end(fmt::format("does not speak to a store: its first bytes are {}", net::format_hex(bytes)));
    return false;
  }
  // 00 begins a VALIDATE, or a SET of torch 1.13, whose key would be a gigabyte long if it looked
  // like one.
  if (first == 0 && bytes.size() < kOpening) return false;
  const bool current = first == 0 && net::load<std::uint32_t>(bytes.data() + 1) == kMagic;
  stage_ = current ? Stage::Current : Stage::Old;
  scanner_ = Scanner(protocol());
  return true;
}

void Conversation::end(std::string violation) {
  stage_ = Stage::Ended;
  violation_ = std::make_unique<std::string>(std::move(violation));
  std::string().swap(pending_);
}

Peer Exchange::open() {
  if (free_.empty()) {
    free_.push_back(static_cast<Peer>(conversations_.size()));
    conversations_.emplace_back();
  }
  const Peer peer = free_.back();
  free_.pop_back();
  conversations_[peer] = std::make_unique<Conversation>(*this, peer);
  return peer;
}

void Exchange::close(Peer peer) {
  // First: a notice for the peer that gets this number next would come without a question.
  table_.forget(peer);
  conversations_[peer].reset();
  free_.push_back(peer);
}

void Exchange::receive(Peer peer, std::string_view bytes) {
  Conversation& conversation = at(peer);
  conversation.receive(bytes);
  if (!conversation.output_.empty() || conversation.ended()) touch(conversation);
}

void Exchange::touch(Conversation& conversation) {
  if (std::exchange(conversation.touched_, true)) return;
  touched_.push_back(conversation.peer_);
}

void Exchange::take_touched(std::vector<Peer>& into) {
  into.clear();
  into.swap(touched_);
  for (const Peer peer : into) {
    if (is_open(peer)) at(peer).touched_ = false;
  }
}

/// Hands the table's notices to those they are for.
void Exchange::deliver() {
  if (table_.notices().empty()) return;
  for (const auto& notice : table_.notices()) {
    Conversation& conversation = at(notice.peer);
    conversation.tell(notice);
    touch(conversation);
  }
  table_.clear_notices();
}

}  // namespace elastrun::store
