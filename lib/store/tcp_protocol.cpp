// SPDX-License-Identifier: Apache-2.0
#include "store/tcp_protocol.hpp"

#include "net/frame.hpp"

#include <algorithm>
#include <cassert>
#include <fmt/format.h>
#include <utility>

namespace elastrun::store {
namespace {

// By number: the place of a query in this table is its byte on the wire.
constexpr auto kShapes = std::to_array<Shape>({
    {{Field::Nonce}},                                               // VALIDATE
    {{Field::Key, Field::Bytes}, Reply::None, true},                // SET
    {{Field::Key, Field::Bytes, Field::Bytes}, Reply::Text, true},  // COMPARE_SET
    {{Field::Key}, Reply::Text},                                    // GET
    {{Field::Key, Field::Number}, Reply::Number, true},             // ADD
    {{Field::Keys}, Reply::Flag},                                   // CHECK
    {{Field::Keys}, Reply::Flag},                                   // WAIT
    {{}, Reply::Number},                                            // GETNUMKEYS
    {{Field::Key}, Reply::Number, true},                            // DELETE_KEY
    {{Field::Key, Field::Bytes}, Reply::None, true},                // APPEND
    {{Field::Keys}, Reply::Other},                                  // MULTI_GET
    {{Field::Pairs}, Reply::None, true},                            // MULTI_SET
    {{}, Reply::Flag},                                              // CANCEL_WAIT
    {{Field::Nonce}, Reply::Nonce},                                 // PING
    {{Field::Key, Field::Bytes}, Reply::None, true},                // QUEUE_PUSH
    {{Field::Key}, Reply::Other, true},                             // QUEUE_POP
    {{Field::Key}, Reply::Number},                                  // QUEUE_LEN
    {{}, Reply::Other},                                             // LIST_KEYS
    {{Field::Key, Field::Number}, Reply::Flag},                     // BARRIER
    {{Field::Key}, Reply::Flag},                                    // WATCH_KEY
});

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

std::expected<bool, std::string> Scanner::scan(std::string_view message) {
  if (message.empty()) return false;
  const auto number = static_cast<std::uint8_t>(message.front());
  const auto query = query_of(protocol_, number);
  if (!query) return std::unexpected(fmt::format("sent an invalid request number {}", number));
  // Goes on where it stopped: a message of megabytes comes in hundreds of reads, and to look at all
  // of it again for each would take time that grows with its square.
  if (at_ == 0) at_ = 1;
  const auto& fields = shape_of(*query).fields;
  for (; field_ < fields.size(); ++field_) {
    if (auto scanned = scan_field(message, fields[field_]); scanned != true) return scanned;
  }
  return true;
}

std::expected<bool, std::string> Scanner::scan_field(std::string_view message, Field field) {
  const auto left = message.size() - at_;
  std::size_t size = 0;
  switch (field) {
    case Field::Key:
    case Field::Bytes: {
      const bool key = field == Field::Key;
      const std::size_t limit = key ? kMaxKey : kMaxValue;
      if (left < 8) return false;
      const auto length = net::load<std::uint64_t>(message.data() + at_);
      if (length > limit) {
        return std::unexpected(fmt::format("sent a {} of {} bytes; the limit is {}",
                                           key ? "key" : "value", length, limit));
      }
      // By what is announced, before it comes: what has come already would be in memory.
      if (at_ + 8 + length > kMaxMessage) {
        return std::unexpected(fmt::format("sent a request of more than {} bytes", kMaxMessage));
      }
      size = 8 + static_cast<std::size_t>(length);
      break;
    }
    case Field::Number:
      size = 8;
      break;
    case Field::Nonce:
      size = 4;
      break;
    case Field::Keys:
    case Field::Pairs:
      return scan_list(message, field == Field::Pairs);
    case Field::None:
      break;
  }
  if (left < size) return false;
  at_ += size;
  return true;
}

std::expected<bool, std::string> Scanner::scan_list(std::string_view message, bool pairs) {
  if (!in_list_) {
    if (message.size() - at_ < 8) return false;
    const auto count = net::load<std::uint64_t>(message.data() + at_);
    if (count > kMaxItems) {
      return std::unexpected(
          fmt::format("sent a list of {} keys; the limit is {}", count, kMaxItems));
    }
    at_ += 8;
    // The limit above keeps it in 32 bits.
    items_left_ = static_cast<std::uint32_t>(count) * (pairs ? 2 : 1);
    in_list_ = true;
  }
  for (; items_left_ > 0; --items_left_) {
    const auto field = pairs && items_left_ % 2 == 1 ? Field::Bytes : Field::Key;
    if (auto scanned = scan_field(message, field); scanned != true) return scanned;
  }
  return true;
}

Request read_request(Protocol protocol, std::string_view message,
                     std::vector<std::string_view>& texts) {
  Request request{.query = *query_of(protocol, static_cast<std::uint8_t>(message.front()))};
  net::ByteReader reader(message.substr(1));
  // Nothing is checked here: only what the scanner has called complete is read.
  const auto text = [&reader] { return *reader.bytes(*reader.number<std::uint64_t>()); };
  auto* value = &request.value;
  for (const Field field : shape_of(request.query).fields) {
    switch (field) {
      case Field::Key:
        request.key = text();
        break;
      case Field::Bytes:
        *std::exchange(value, &request.desired) = text();
        break;
      case Field::Number:
        request.number = *reader.number<std::int64_t>();
        break;
      case Field::Nonce:
        request.number = *reader.number<std::uint32_t>();
        break;
      case Field::Keys:
      case Field::Pairs:
        texts.clear();
        for (auto left = *reader.number<std::uint64_t>() * (field == Field::Pairs ? 2 : 1);
             left > 0; --left) {
          texts.push_back(text());
        }
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
  const auto* value = &request.value;
  for (const Field field : shape_of(request.query).fields) {
    switch (field) {
      case Field::Key:
        append_text(out, request.key);
        break;
      case Field::Bytes:
        append_text(out, *std::exchange(value, &request.desired));
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
