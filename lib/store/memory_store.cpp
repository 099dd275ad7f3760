// SPDX-License-Identifier: Apache-2.0
#include "store/memory_store.hpp"

#include <boost/asio/post.hpp>
#include <utility>

namespace elastrun::store {

template <class Done, class Answer>
void MemoryStore::answer(Done done, Answer value) {
  boost::asio::post(loop_, [alive = lifetime_.token(), done = std::move(done),
                            value = std::move(value)]() mutable {
    if (alive) done(std::move(value));
  });
}

/// Ends the waits that the last change of the table has ended.
void MemoryStore::deliver() {
  for (const auto& notice : table_.notices()) {
    auto waiter = waiters_.extract(notice.peer);
    answer(std::move(waiter.mapped().done), Status{});
  }
  table_.clear_notices();
}

void MemoryStore::set(std::string key, std::string value, OnDone done) {
  table_.set(key, value);
  deliver();
  answer(std::move(done), Status{});
}

void MemoryStore::get(std::string key, Duration timeout, OnValue done) {
  wait({key}, timeout, [this, key, done = std::move(done)](Status there) {
    if (!there) return done(std::unexpected(there.error()));
    const Value* value = table_.get(key);
    if (value != nullptr) return done(std::string(value->view()));
    done(fail(Code::Store, "the key " + key + " was there, but has been erased since"));
  });
}

void MemoryStore::add(std::string key, std::int64_t delta, OnNumber done) {
  const auto sum = table_.add(key, delta);
  deliver();
  if (sum) return answer(std::move(done), Result<std::int64_t>(*sum));
  answer(std::move(done), Result<std::int64_t>(fail(
                              Code::Store, "the value of the key " + key + " is not a number")));
}

void MemoryStore::compare_set(std::string key, std::string expected, std::string desired,
                              OnValue done) {
  const Value* now = table_.compare_set(key, expected, desired);
  Result<std::string> result = now != nullptr ? std::string(now->view()) : expected;
  deliver();
  answer(std::move(done), std::move(result));
}

void MemoryStore::check(std::vector<std::string> keys, OnFlag done) {
  bool all = true;
  for (const auto& key : keys) all = all && table_.present(key);
  answer(std::move(done), Result<bool>(all));
}

void MemoryStore::wait(std::vector<std::string> keys, Duration timeout, OnDone done) {
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  const Peer peer = next_++;
  if (table_.wait(peer, views)) return answer(std::move(done), Status{});
  auto alarm = clock_.make_alarm();
  if (timeout >= Duration::zero()) {
    alarm->arm(clock_.now() + timeout, [this, peer] { give_up(peer); });
  }
  waiters_.emplace(peer, Waiter{std::move(keys), timeout, std::move(done), std::move(alarm)});
}

void MemoryStore::give_up(Peer peer) {
  table_.forget(peer);
  auto waiter = waiters_.extract(peer);
  waiter.mapped().done(
      std::unexpected(wait_timeout(waiter.mapped().timeout, waiter.mapped().keys)));
}

void MemoryStore::erase(std::string key, OnFlag done) {
  const bool erased = table_.erase(key);
  answer(std::move(done), Result<bool>(erased));
}

void MemoryStore::count_keys(OnNumber done) {
  answer(std::move(done), Result<std::int64_t>(static_cast<std::int64_t>(table_.size())));
}

void MemoryStore::list_keys(OnKeys done) {
  const auto keys = table_.keys();
  answer(std::move(done), Result<std::vector<std::string>>({keys.begin(), keys.end()}));
}

}  // namespace elastrun::store
