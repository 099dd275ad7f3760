// SPDX-License-Identifier: Apache-2.0

#include "store/conversation.hpp"

#include "net/frame.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace elastrun::store {

void Output::put_value(const Value& value) {
  put_number<std::uint64_t>(value.view().size());
  auto bytes = value.shared();
  if (!bytes) return put(value.view());
  // A large value is sent from the table's bytes: thousands of readers cost one copy.
  shared_ += bytes->size();
  end_segment();
  segments_.push_back({{}, std::move(bytes)});
}

std::size_t Output::held() const {
  std::size_t held = tail_.capacity() + segments_.capacity() * sizeof(Segment);
  for (const auto& one : segments_) held += one.own.capacity();
  return held;
}

std::size_t Output::gather(std::span<iovec> parts) const {
  std::size_t used = 0, skip = sent_;
  for (std::size_t i = first_; i <= segments_.size() && used < parts.size(); ++i) {
    const auto bytes = at(i).substr(std::exchange(skip, 0));
    if (bytes.empty()) continue;
    parts[used++] = {const_cast<char*>(bytes.data()), bytes.size()};  // see iovec(3type): readv(2)
  }
  return used;
}

void Output::sent(std::size_t count) {
  while (count > 0) {
    const auto size = at(first_).size();
    const auto now = std::min(count, size - sent_);
    const bool is_shared = first_ < segments_.size() && segments_[first_].shared;
    (is_shared ? shared_ : own_) -= now;
    count -= now;
    sent_ += now;
    if (sent_ < size || first_ == segments_.size()) break;
    // Its memory goes now: a value that was replaced meanwhile has its last peer maybe. By swap, as
    // what is assigned {} is empty and keeps its memory.
    Segment().own.swap(segments_[first_].own);
    segments_[first_++].shared.reset();
    sent_ = 0;
  }
  // Each is moved once on average.
  if (2 * first_ >= segments_.size()) {
    segments_.erase(segments_.begin(), segments_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }
  if (!empty()) return;
  constexpr std::size_t kKeep = 256;  // some answers to small GETs
  sent_ = 0;
  std::vector<Segment>().swap(segments_);
  tail_.capacity() > kKeep ? std::string().swap(tail_) : tail_.clear();
}

std::string Output::take() {
  std::string all;
  for (std::size_t i = first_; i <= segments_.size(); ++i) all += at(i);
  all.erase(0, sent_);
  sent(all.size());
  return all;
}

namespace {

constexpr std::size_t kOpening = 5;  // VALIDATE: its number and the magic

/// A key for a log line: without its unprintable bytes, and not all of 8192 of them.
std::string show_key(std::string_view key) {
  std::string text;
  for (const char c : key.substr(0, 60)) text += c >= ' ' && c <= '~' ? c : '?';
  return key.size() > 60 ? text + "..." : text;
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
    auto complete = scanner_.scan(bytes.substr(used));
    if (!complete) end(std::move(complete.error()));
    if (complete != true) break;
    const auto message = bytes.substr(used, scanner_.size());
    used += message.size();
    scanner_.restart();
    ++exchange_->requests_;
    const auto request = read_request(protocol(), message, exchange_->texts_);
    if (exchange_->on_change_ && shape_of(request.query).changes) exchange_->on_change_();
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

// What a conversation does with a request: one table operation, then the answer in torch's bytes.

void Conversation::execute(const Request& request) {
  Table& table = exchange_->table_;
  const auto no_number = [&] {
    end(fmt::format("counts with the key {}, whose value is not a 64-bit number",
                    show_key(request.key)));
  };
  switch (request.query) {
    case Query::Set:
      table.set(request.key, request.value);
      return exchange_->deliver();
    case Query::Append:
      table.append(request.key, request.value);
      return exchange_->deliver();
    case Query::Delete: {
      const bool erased = table.erase(request.key);
      exchange_->deliver();
      return output_.put_number<std::int64_t>(erased ? 1 : 0);
    }
    case Query::CompareSet: {
      // Good until the answer below: deliver() tells other conversations and changes no table.
      const Value* now = table.compare_set(request.key, request.value, request.desired);
      exchange_->deliver();
      // A missing key answers the expected value: a lie, but the one that clients are made for.
      return now != nullptr ? output_.put_value(*now) : output_.put_text(request.value);
    }
    case Query::Get: {
      if (const Value* value = table.get(request.key)) return output_.put_value(*value);
      // Clients wait for a key before they get it, so neither protocol's own ever sees this.
      if (stage_ == Stage::Current) return output_.put_text({});
      return end(fmt::format("asked for the key {}, which does not exist", show_key(request.key)));
    }
    case Query::Add: {
      const auto sum = table.add(request.key, request.number);
      if (!sum) return no_number();
      exchange_->deliver();
      // torch counts its ranks here before all else, so the agent sees workers connect without a
      // word from the script.
      if (exchange_->on_join_ && request.key == Exchange::kJoinKey) exchange_->on_join_(*sum);
      return output_.put_number(*sum);
    }
    case Query::Barrier: {
      const auto arrival = table.arrive(peer_, request.key, request.number);
      if (arrival == Table::Arrival::NoNumber) return no_number();
      if (arrival == Table::Arrival::Complete) output_.put(kReady);
      return exchange_->deliver();
    }
    case Query::Ping:
      return output_.put_number(static_cast<std::uint32_t>(request.number));
    case Query::CountKeys:
      return output_.put_number(static_cast<std::int64_t>(table.size()));
    case Query::QueuePush:
      table.queue_push(request.key, request.value);
      return exchange_->deliver();
    case Query::QueuePop:
    case Query::QueueLength: {
      // The length comes first: after 0 the client expects no value.
      output_.put_number(static_cast<std::int64_t>(table.queue_size(request.key)));
      if (request.query == Query::QueueLength) return;
      if (const auto value = table.queue_pop(request.key)) output_.put_value(*value);
      return;
    }
    case Query::CancelWait:
      table.cancel(peer_);
      return output_.put(kCancelled);
    case Query::Watch:
      table.watch(peer_, request.key);
      return output_.put(kWatching);
    case Query::Check: {
      const auto present = [&](auto key) { return table.present(key); };
      return output_.put(std::ranges::all_of(request.texts, present) ? kReady : kMissing);
    }
    case Query::Wait:
      // Otherwise the answer comes with a notice, when the last of the keys does.
      if (table.wait(peer_, request.texts)) output_.put(kReady);
      return;
    case Query::MultiGet:
      return answer(true, request.texts);
    case Query::MultiSet:
      // All set before the first waiter is told, so that each of them finds all.
      for (std::size_t i = 0; i + 1 < request.texts.size(); i += 2) {
        table.set(request.texts[i], request.texts[i + 1]);
      }
      return exchange_->deliver();
    case Query::ListKeys:
      output_.put_number(static_cast<std::int64_t>(table.size()));
      return answer(false, table.keys());
    case Query::Validate:
      return;  // was eaten when the conversation opened
  }
}

/// These keys, or their values. What would be too much at once is kept for go_on().
void Conversation::answer(bool values, std::span<const std::string_view> keys) {
  std::size_t done = 0;
  while (done < keys.size() && !stalled()) put_item(values, keys[done++]);
  // By their names, not their values: those that change meanwhile are told as they are then.
  const auto left = keys.subspan(done);
  if (!left.empty()) rest_.reset(new Rest{values, {left.begin(), left.end()}});
}

void Conversation::go_on() {
  Rest& rest = *rest_;
  // The rest once there is room: a client that does not read must not fill our memory.
  while (rest.next < rest.keys.size() && !stalled()) put_item(rest.values, rest.keys[rest.next++]);
  if (rest.next < rest.keys.size()) return;
  output_.put(rest.after.take());
  rest_.reset();
}

void Conversation::put_item(bool values, std::string_view key) {
  const Value* value = values ? exchange_->table_.get(key) : nullptr;
  value != nullptr ? output_.put_value(*value) : output_.put_text(values ? "" : key);
}

void Conversation::tell(const Notice& notice) {
  // A notice must not come within a long answer.
  Output& output = rest_ ? rest_->after : output_;
  if (!notice.change) return output.put(kReady);
  output.put(static_cast<char>(notice.change->kind));
  output.put_text(notice.change->key);
  output.put_text(notice.change->before);
  output.put_text(notice.change->after);
}

}  // namespace elastrun::store
