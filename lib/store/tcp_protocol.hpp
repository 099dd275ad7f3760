// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// The requests of torch's TCPStore as bytes, without sockets (torchrun-parity 7.1 to 7.3). All
/// numbers are little-endian; a text is a u64 length and its bytes.
namespace elastrun::store {

/// The protocol of one connection. The two number their requests differently.
enum class Protocol : std::uint8_t { Current, Old };  // Old: that of torch 1.13

enum class Query : std::uint8_t {
  Validate,
  Set,
  CompareSet,
  Get,
  Add,
  Check,
  Wait,
  CountKeys,
  Delete,
  Append,
  MultiGet,
  MultiSet,
  CancelWait,
  Ping,
  QueuePush,
  QueuePop,
  QueueLength,
  ListKeys,
  Barrier,  // as numbered since 2.x
  Watch,    // of the old protocol only
};

constexpr std::uint32_t kMagic = 0x3C85F7CE;  // in VALIDATE, the first request of a connection
constexpr std::size_t kMaxKey = 8192;         // torch's limits: one more closes the connection
constexpr std::size_t kMaxValue = 8u << 20;
constexpr std::uint64_t kMaxItems = 131072;    // keys of a list, pairs of a MULTI_SET
constexpr std::size_t kMaxMessage = 1u << 30;  // ours: what half a message may keep of memory

// Answers of one byte.
constexpr char kReady = 0;
constexpr char kMissing = 1;
constexpr char kCancelled = 1;
constexpr char kWatching = 3;  // torch 1.13: the call-back is registered

/// What follows the number of a request, and what answers it at once.
enum class Field : std::uint8_t { None, Key, Bytes, Number, Nonce, Keys, Pairs };
enum class Reply : std::uint8_t { None, Flag, Nonce, Number, Text, Other };
struct Shape {
  std::array<Field, 3> fields{};
  Reply reply = Reply::None;
  bool changes = false;  // what is stored: a client that only looks may do so for ever
};

/// The query of this number; nothing if there is none.
std::optional<Query> query_of(Protocol protocol, std::uint8_t number);
const Shape& shape_of(Query query);

/// Finds the end of one request in a buffer that grows, looking at each byte once, and refuses a
/// length beyond its limit as soon as it is seen. Nothing is allocated here but for a refusal.
class Scanner {
 public:
  explicit Scanner(Protocol protocol = Protocol::Current) : protocol_(protocol) {}
  /// True once the request is complete. `message` begins with its number, and is longer at each
  /// call for the same request. Fails with what the peer did: "sent a key of 9000 bytes; the limit
  /// is 8192".
  std::expected<bool, std::string> scan(std::string_view message);
  /// Bytes of the request, once it is complete.
  std::size_t size() const { return at_; }
  /// Begins the next request.
  void restart() { *this = Scanner(protocol_); }

 private:
  std::expected<bool, std::string> scan_field(std::string_view message, Field field);
  std::expected<bool, std::string> scan_list(std::string_view message, bool pairs);

  std::size_t at_ = 0;
  std::uint32_t items_left_ = 0;  // texts of a list that are still to come
  Protocol protocol_;
  std::uint8_t field_ = 0;
  bool in_list_ = false;
};

/// A complete request. Its views are into the bytes it was read from.
struct Request {
  Query query = Query::Validate;
  std::string_view key{};
  std::string_view value{};    // SET, APPEND, QUEUE_PUSH; expected in COMPARE_SET
  std::string_view desired{};  // COMPARE_SET
  std::int64_t number = 0;     // ADD, BARRIER; the nonce of PING, the magic of VALIDATE
  std::span<const std::string_view> texts{};  // keys of a list; key, value, key, value of MULTI_SET
};

/// Reads a request that a Scanner found complete. `texts` is room for its list, used again and
/// again.
Request read_request(Protocol protocol, std::string_view message,
                     std::vector<std::string_view>& texts);

/// Appends the bytes of a request, with its keys as they are (clients put a `/` in front).
void append_request(std::string& out, const Request& request,
                    Protocol protocol = Protocol::Current);

void append_text(std::string& out, std::string_view text);

}  // namespace elastrun::store
