// SPDX-License-Identifier: Apache-2.0
#include "store/tcp_protocol.hpp"

#include "net/frame.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace elastrun::store {
namespace {

constexpr std::size_t kQueries = 20;

// By number: the place of a query in this table is its byte on the wire.
constexpr std::array<Shape, kQueries> kShapes = {{
    {Field::Nonce},                            // VALIDATE
    {Field::Key, Field::Bytes},                // SET
    {Field::Key, Field::Bytes, Field::Bytes},  // COMPARE_SET
    {Field::Key},                              // GET
    {Field::Key, Field::Number},               // ADD
    {Field::Keys},                             // CHECK
    {Field::Keys},                             // WAIT
    {},                                        // GETNUMKEYS
    {Field::Key},                              // DELETE_KEY
    {Field::Key, Field::Bytes},                // APPEND
    {Field::Keys},                             // MULTI_GET
    {Field::Pairs},                            // MULTI_SET
    {},                                        // CANCEL_WAIT
    {Field::Nonce},                            // PING
    {Field::Key, Field::Bytes},                // QUEUE_PUSH
    {Field::Key},                              // QUEUE_POP
    {Field::Key},                              // QUEUE_LEN
    {},                                        // LIST_KEYS
    {Field::Key, Field::Number},               // BARRIER
    {Field::Key},                              // WATCH_KEY
}};

/// The queries of torch 1.13, in the order of their numbers.
constexpr std::array kOld = {Query::Set,       Query::CompareSet, Query::Get,
                             Query::Add,       Query::Check,      Query::Wait,
                             Query::CountKeys, Query::Watch,      Query::Delete};

std::uint8_t number_of(Protocol protocol, Query query) {
  if (protocol == Protocol::Current) return static_cast<std::uint8_t>(query);
  const auto place = std::find(kOld.begin(), kOld.end(), query);
  assert(place != kOld.end());
  return static_cast<std::uint8_t>(place - kOld.begin());
}

}  // namespace

const Shape& shape_of(Query query) {
  return kShapes[static_cast<std::size_t>(query)];
}

std::optional<Query> query_of(Protocol protocol, std::uint8_t number) {
  if (protocol == Protocol::Old) {
    return number < kOld.size() ? std::optional(kOld[number]) : std::nullopt;
  }
  // VALIDATE opens a connection and is nowhere else a request.
  const bool known = number > 0 && number <= static_cast<std::uint8_t>(Query::Barrier);
  return known ? std::optional(static_cast<Query>(number)) : std::nullopt;
}

Scanner::Progress Scanner::scan(std::string_view message) {
  // Goes on where it stopped: a message of megabytes comes in hundreds of reads, and to look at all
  // of it again for each would take time that grows with its square.
  if (at_ == 0) {
    if (message.empty()) return Progress::More;
    const auto number = static_cast<std::uint8_t>(message.front());
    const auto query = query_of(protocol_, number);
    refused_ = number;
    if (!query) return Progress::UnknownQuery;
    shape_ = shape_of(*query);
    at_ = 1;
  }
  while (field_ < shape_.size() && shape_[field_] != Field::None) {
    const auto progress = scan_field(message);
    if (progress != Progress::Complete) return progress;
    ++field_;
  }
  return Progress::Complete;
}

Scanner::Progress Scanner::scan_field(std::string_view message) {
  switch (shape_[field_]) {
    case Field::Key:
      return scan_text(message, kMaxKey, Progress::LongKey);
    case Field::Bytes:
      return scan_text(message, kMaxValue, Progress::LongValue);
    case Field::Number:
      return scan_fixed(message, 8);
    case Field::Nonce:
      return scan_fixed(message, 4);
    case Field::Keys:
    case Field::Pairs:
      return scan_items(message);
    case Field::None:
      break;
  }
  return Progress::Complete;
}

Scanner::Progress Scanner::scan_fixed(std::string_view message, std::size_t size) {
  if (message.size() - at_ < size) return Progress::More;
  at_ += size;
  return Progress::Complete;
}

Scanner::Progress Scanner::scan_text(std::string_view message, std::size_t limit,
                                     Progress too_long) {
  if (message.size() - at_ < 8) return Progress::More;
  const auto length = net::load<std::uint64_t>(message.data() + at_);
  refused_ = length;
  if (length > limit) return too_long;
  // By what is announced, before it comes: what has come already would be in memory.
  if (at_ + 8 + length > kMaxMessage) return Progress::LongMessage;
  // Nothing overflows here: the length is below its limit by now, and `at_` + 8 within the message.
  if (message.size() - at_ - 8 < length) return Progress::More;
  at_ += 8 + static_cast<std::size_t>(length);
  return Progress::Complete;
}

Scanner::Progress Scanner::scan_items(std::string_view message) {
  const bool pairs = shape_[field_] == Field::Pairs;
  if (!in_list_) {
    if (message.size() - at_ < 8) return Progress::More;
    const auto count = net::load<std::uint64_t>(message.data() + at_);
    refused_ = count;
    if (count > kMaxItems) return Progress::LongList;
    at_ += 8;
    // The limit above keeps it in 32 bits.
    items_left_ = static_cast<std::uint32_t>(count) * (pairs ? 2 : 1);
    in_list_ = true;
  }
  for (; items_left_ > 0; --items_left_) {
    const bool value = pairs && items_left_ % 2 == 1;
    const auto progress = value ? scan_text(message, kMaxValue, Progress::LongValue)
                                : scan_text(message, kMaxKey, Progress::LongKey);
    if (progress != Progress::Complete) return progress;
  }
  return Progress::Complete;
}

namespace {

// Nothing is checked from here on: only what the scanner has called complete is read.
std::string_view take_text(std::string_view& rest) {
  const auto length = static_cast<std::size_t>(net::load<std::uint64_t>(rest.data()));
  const auto text = rest.substr(8, length);
  rest.remove_prefix(8 + length);
  return text;
}

template <class T>
std::int64_t take_number(std::string_view& rest) {
  const auto number = net::load<T>(rest.data());
  rest.remove_prefix(sizeof number);
  return static_cast<std::int64_t>(number);
}

void take_list(std::string_view& rest, std::size_t each, std::vector<std::string_view>& texts) {
  const auto count = static_cast<std::size_t>(take_number<std::uint64_t>(rest)) * each;
  texts.clear();
  for (std::size_t i = 0; i < count; ++i) texts.push_back(take_text(rest));
}

}  // namespace

bool Request::changes() const {
  switch (query) {
    case Query::Set:
    case Query::CompareSet:
    case Query::Add:
    case Query::Delete:
    case Query::Append:
    case Query::MultiSet:
    case Query::QueuePush:
    case Query::QueuePop:
      return true;
    default:
      return false;
  }
}

Request read_request(Protocol protocol, std::string_view message,
                     std::vector<std::string_view>& texts) {
  Request request;
  request.query = *query_of(protocol, static_cast<std::uint8_t>(message.front()));
  message.remove_prefix(1);
  bool value_read = false;
  for (const Field field : shape_of(request.query)) {
    switch (field) {
      case Field::Key:
        request.key = take_text(message);
        break;
      case Field::Bytes:
        (std::exchange(value_read, true) ? request.desired : request.value) = take_text(message);
        break;
      case Field::Number:
        request.number = take_number<std::int64_t>(message);
        break;
      case Field::Nonce:
        request.number = take_number<std::uint32_t>(message);
        break;
      case Field::Keys:
        take_list(message, 1, texts);
        request.texts = texts;
        break;
      case Field::Pairs:
        take_list(message, 2, texts);
        request.texts = texts;
        break;
      case Field::None:
        return request;
    }
  }
  return request;
}

void append_text(std::string& out, std::string_view text) {
  net::append<std::uint64_t>(out, text.size());
  out.append(text);
}

void append_request(std::string& out, const Request& request, Protocol protocol) {
  out += static_cast<char>(number_of(protocol, request.query));
  bool value_written = false;
  for (const Field field : shape_of(request.query)) {
    switch (field) {
      case Field::Key:
        append_text(out, request.key);
        break;
      case Field::Bytes:
        append_text(out, std::exchange(value_written, true) ? request.desired : request.value);
        break;
      case Field::Number:
        net::append<std::int64_t>(out, request.number);
        break;
      case Field::Nonce:
        net::append(out, static_cast<std::uint32_t>(request.number));
        break;
      case Field::Keys:
      case Field::Pairs: {
        const std::size_t each = field == Field::Pairs ? 2 : 1;
        net::append<std::uint64_t>(out, request.texts.size() / each);
        for (const auto text : request.texts) append_text(out, text);
        break;
      }
      case Field::None:
        return;
    }
  }
}

}  // namespace elastrun::store
