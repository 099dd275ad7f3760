// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/lifetime.hpp"
#include "store/store.hpp"
#include "store/table.hpp"

#include <boost/asio/io_context.hpp>
#include <map>
#include <memory>

namespace elastrun::store {

/// A store in this process, for one-process jobs and tests: a Table without a network.
class MemoryStore final : public Store {
 public:
  MemoryStore(boost::asio::io_context& loop, Clock& clock) : loop_(loop), clock_(clock) {}

  void set(std::string key, std::string value, OnDone done) override;
  void get(std::string key, Duration timeout, OnValue done) override;
  void add(std::string key, std::int64_t delta, OnNumber done) override;
  void compare_set(std::string key, std::string expected, std::string desired,
                   OnValue done) override;
  void check(std::vector<std::string> keys, OnFlag done) override;
  void wait(std::vector<std::string> keys, Duration timeout, OnDone done) override;
  void erase(std::string key, OnFlag done) override;
  void count_keys(OnNumber done) override;
  void list_keys(OnKeys done) override;

 private:
  struct Waiter {
    std::vector<std::string> keys;
    Duration timeout;
    OnDone done;
    std::unique_ptr<Alarm> alarm;
  };
  template <class Done, class Answer>
  void answer(Done done, Answer value);
  void deliver();
  void give_up(Peer peer);

  boost::asio::io_context& loop_;
  Clock& clock_;
  Table table_;
  std::map<Peer, Waiter> waiters_;
  Peer next_ = 0;
  Lifetime lifetime_;
};

}  // namespace elastrun::store
