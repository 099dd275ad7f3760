// SPDX-License-Identifier: Apache-2.0
// What a conversation does with a request: one table operation, then the answer in torch's bytes.
#include "store/conversation.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::store {
namespace {

// Answers of one byte.
constexpr char kReady = 0;
constexpr char kMissing = 1;
constexpr char kCancelled = 1;
constexpr char kWatching = 3;  // torch 1.13: the call-back is registered

/// A key for a log line: without its unprintable bytes, and not all of 8192 of them.
std::string show_key(std::string_view key) {
  std::string text;
  for (const char c : key.substr(0, 60)) text += c >= ' ' && c <= '~' ? c : '?';
  return key.size() > 60 ? text + "..." : text;
}

}  // namespace

void Conversation::execute(const Request& request) {
  switch (request.query) {
    case Query::Set:
    case Query::Append:
    case Query::Get:
    case Query::CompareSet:
    case Query::Delete:
      return execute_value(request);
    case Query::Add:
    case Query::Barrier:
    case Query::CountKeys:
    case Query::Ping:
      return execute_number(request);
    case Query::QueuePush:
    case Query::QueuePop:
    case Query::QueueLength:
      return execute_queue(request);
    case Query::CancelWait:
      exchange_->table_.cancel(peer_);
      return output_.put(kCancelled);
    case Query::Watch:
      exchange_->table_.watch(peer_, request.key);
      return output_.put(kWatching);
    case Query::Validate:
    case Query::Check:
    case Query::Wait:
    case Query::MultiGet:
    case Query::MultiSet:
    case Query::ListKeys:
      return execute_list(request);
  }
}

void Conversation::execute_value(const Request& request) {
  Table& table = exchange_->table_;
  switch (request.query) {
    case Query::Set:
      table.set(request.key, request.value);
      break;
    case Query::Append:
      table.append(request.key, request.value);
      break;
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
    default: {
      if (const Value* value = table.get(request.key)) return output_.put_value(*value);
      // Clients wait for a key before they get it, so neither protocol's own ever sees this.
      if (stage_ == Stage::Current) return output_.put_text({});
      return end(fmt::format("asked for the key {}, which does not exist", show_key(request.key)));
    }
  }
  exchange_->deliver();
}

void Conversation::execute_number(const Request& request) {
  Table& table = exchange_->table_;
  const auto no_number = [&] {
    end(fmt::format("counts with the key {}, whose value is not a 64-bit number",
                    show_key(request.key)));
  };
  switch (request.query) {
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
    default:
      return output_.put_number(static_cast<std::int64_t>(table.size()));
  }
}

void Conversation::execute_queue(const Request& request) {
  Table& table = exchange_->table_;
  if (request.query == Query::QueuePush) {
    table.queue_push(request.key, request.value);
    return exchange_->deliver();
  }
  // The length comes first: after 0 the client expects no value.
  output_.put_number(static_cast<std::int64_t>(table.queue_size(request.key)));
  if (request.query == Query::QueueLength) return;
  if (const auto value = table.queue_pop(request.key)) output_.put_value(*value);
}

void Conversation::execute_list(const Request& request) {
  Table& table = exchange_->table_;
  switch (request.query) {
    case Query::Check:
      return output_.put(std::all_of(request.texts.begin(), request.texts.end(),
                                     [&](auto key) { return table.present(key); })
                             ? kReady
                             : kMissing);
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
    default:
      return;  // VALIDATE was eaten when the conversation opened
  }
}

/// These keys, or their values. What would be too much at once is kept for go_on().
void Conversation::answer(bool values, std::span<const std::string_view> keys) {
  std::size_t done = 0;
  for (; done < keys.size() && !stalled(); ++done) put_item(values, keys[done]);
  if (done == keys.size()) return;
  // By their names, not their values: those that change meanwhile are told as they are then.
  rest_ = std::make_unique<Rest>();
  rest_->values = values;
  rest_->keys.assign(keys.begin() + static_cast<std::ptrdiff_t>(done), keys.end());
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
  if (!values) return output_.put_text(key);
  const Value* value = exchange_->table_.get(key);
  value != nullptr ? output_.put_value(*value) : output_.put_text({});
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
