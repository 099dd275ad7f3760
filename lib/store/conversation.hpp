// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "net/frame.hpp"
#include "store/table.hpp"
#include "store/tcp_protocol.hpp"

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <sys/uio.h>
#include <utility>
#include <vector>

namespace elastrun::store {

/// Bytes on their way to one peer: its own small ones, and large values shared with the store and
/// with other peers. Keeps a little memory when empty, so that a busy connection does not allocate
/// at every answer; otherwise little more than what is left to send.
class Output {
 public:
  void put(std::string_view bytes) {
    tail_.append(bytes);
    own_ += bytes.size();
    if (tail_.size() >= kSegment) end_segment();
  }
  void put(char byte) { put({&byte, 1}); }
  template <std::integral T>
  requires(sizeof(T) > 1) void put_number(T number) {
    char bytes[sizeof number];
    net::save(bytes, number);
    put({bytes, sizeof bytes});
  }
  /// Length and bytes.
  void put_value(const Value& value);
  void put_text(std::string_view text) {
    put_number<std::uint64_t>(text.size());
    put(text);
  }

  bool empty() const { return size() == 0; }
  /// Bytes not sent yet, and those of them that are kept for this peer alone.
  std::size_t size() const { return own_ + shared_; }
  std::size_t own_size() const { return own_; }
  /// Bytes of memory that it holds itself, sent or not: for tests.
  std::size_t held() const;

  /// Fills `parts` with what comes next; returns how many are used.
  std::size_t gather(std::span<iovec> parts) const;
  /// The first `count` bytes have been sent.
  void sent(std::size_t count);
  /// Empties it; returns all that was waiting.
  std::string take();

 private:
  static constexpr std::size_t kSegment = 64u << 10;  // of own bytes, whose memory goes together
  struct Segment {
    std::string own;
    std::shared_ptr<const std::string> shared;  // instead
  };
  std::string_view at(std::size_t place) const {
    if (place == segments_.size()) return tail_;
    return segments_[place].shared ? *segments_[place].shared : segments_[place].own;
  }
  void end_segment() { segments_.push_back({std::exchange(tail_, {}), {}}); }

  std::vector<Segment> segments_;
  std::string tail_;       // own bytes, behind the segments
  std::size_t first_ = 0;  // segment that has not been sent whole
  std::size_t sent_ = 0;   // bytes of that one, or of the tail
  std::size_t own_ = 0, shared_ = 0;
};

class Exchange;

/// One peer's side of the store: its bytes in, its answers out, no sockets. The first bytes decide
/// which protocol it speaks; a peer that says nothing stays undecided for ever, as the second
/// connection of a torch 1.13 client does.
/// An invalid request ends the conversation: answers to what came before are still
/// in output(), violation() says why, and nothing after it is run.
class Conversation {
 public:
  /// While more than this is unread, requests are not run; their bytes wait. So a peer that never
  /// reads costs this much and one value.
  static constexpr std::size_t kStallAt = 1u << 20;

  Conversation(Exchange& exchange, Peer peer) : exchange_(&exchange), peer_(peer) {}

  bool stalled() const { return output_.size() > kStallAt; }
  /// True if something did not run: half a message, whole ones while stalled, or the rest of a long
  /// answer.
  bool pending() const { return !pending_.empty() || rest_; }

  Output& output() { return output_; }
  const Output& output() const { return output_; }
  bool ended() const { return stage_ == Stage::Ended; }
  /// Why it ended, without the subject: "sent a key of 9000 bytes; the limit is 8192".
  std::string violation() const { return violation_ ? *violation_ : std::string(); }

 private:
  enum class Stage : std::uint8_t { Undecided, Current, Old, Ended };
  /// The rest of a list that is to be answered. An answer may be larger than a peer may let pile
  /// up, so it is made as fast as it is read, from what the store holds by then.
  struct Rest {
    bool values = false;  // of these keys; otherwise the keys themselves
    std::vector<std::string> keys;
    std::size_t next = 0;
    Output after{};  // what others cause meanwhile
  };
  friend class Exchange;

  void receive(std::string_view bytes);
  std::size_t run(std::string_view bytes);
  bool open(std::string_view bytes);
  void tell(const Notice& notice);
  void answer(bool values, std::span<const std::string_view> keys);
  void go_on();
  void put_item(bool values, std::string_view key);
  void execute(const Request& request);
  void end(std::string violation);
  Protocol protocol() const { return stage_ == Stage::Old ? Protocol::Old : Protocol::Current; }

  Exchange* exchange_;
  std::unique_ptr<std::string> violation_;  // rare, so not a string in each of 10,000 connections
  std::unique_ptr<Rest> rest_;
  std::string pending_;
  Output output_;
  Scanner scanner_;
  Peer peer_;
  Stage stage_ = Stage::Undecided;
  bool touched_ = false;
};

/// The table, everybody who talks to it, and the way of a notice from one's request to another's
/// output. What the server, the recorded conversations and the fuzzers share.
class Exchange {
 public:
  /// The key in which torch's clients count once they have connected.
  static constexpr std::string_view kJoinKey = "init/";
  using OnJoin = std::function<void(std::int64_t)>;
  using OnChange = std::function<void()>;
  /// `on_join` gets the count each time; `on_change` is called before a request that changes what
  /// is stored.
  explicit Exchange(OnJoin on_join = {}, OnChange on_change = {})
      : on_join_(std::move(on_join)), on_change_(std::move(on_change)) {}

  /// A new conversation; its number is free again after close().
  Peer open();
  /// Forgets the peer with its waits; what it was still owed is dropped.
  void close(Peer peer);
  /// The conversation of an open peer; stays where it is until close().
  Conversation& at(Peer peer) { return *conversations_[peer]; }

  /// Runs what is complete of the peer's bytes and keeps what is not; with no bytes, goes on after
  /// a stall. Outputs of other peers may grow, too.
  void receive(Peer peer, std::string_view bytes);
  /// Replaces `into` by the peers that have got output or ended since this was last asked. Those
  /// closed meanwhile may be among them.
  void take_touched(std::vector<Peer>& into);
  bool is_open(Peer peer) const { return peer < conversations_.size() && conversations_[peer]; }

  Table& table() { return table_; }
  const Table& table() const { return table_; }
  std::uint64_t requests() const { return requests_; }

 private:
  friend class Conversation;
  void touch(Conversation& conversation);
  void deliver();

  Table table_;
  OnJoin on_join_;
  OnChange on_change_;
  std::vector<std::unique_ptr<Conversation>> conversations_;
  std::vector<Peer> free_;
  std::vector<Peer> touched_;
  std::vector<std::string_view> texts_;  // room for the list of one request
  std::uint64_t requests_ = 0;
};

}  // namespace elastrun::store
