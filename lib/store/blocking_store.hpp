// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "store/tcp_protocol.hpp"

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace elastrun::store {

/// A key-value store for code that may wait, such as a user's RendezvousHandler, with the keys and
/// bytes of torch's c10d::Store: values are bytes, counters are decimal text. A negative timeout is
/// none at all. One thread at a time; never on the agent's loop, which would stand still. Errors:
/// Timeout (the text names the missing keys), Closed (the server has gone), Store (refused), Io
/// (files).
class BlockingStore {
 public:
  static constexpr Duration kTimeLimit = std::chrono::seconds(300);  // torch's

  /// A client of a TCPStore server, torch's or ours; tries until `timeout`. The host may be a name.
  static Result<std::shared_ptr<BlockingStore>> connect(const std::string& host, std::uint16_t port,
                                                        Duration timeout = kTimeLimit);
  /// A FileStore on a file that all processes share; never removed by it.
  static Result<std::shared_ptr<BlockingStore>> open_file(const std::string& path);
  ~BlockingStore();

  /// Prefixes every key with `PREFIX/`: one store serves many rounds.
  std::shared_ptr<BlockingStore> within(const std::string& prefix) const {
    return std::shared_ptr<BlockingStore>(new BlockingStore(engine_, prefix_ + prefix + "/"));
  }

  Status set(const std::string& key, std::string value);
  /// Waits until there is one. Fails with Timeout.
  Result<std::string> get(const std::string& key, Duration timeout = kTimeLimit);
  /// The sum; a missing number counts as 0.
  Result<std::int64_t> add(const std::string& key, std::int64_t delta) {
    return number({.query = Query::Add, .number = delta}, key);
  }
  /// Stores `desired` if the key holds `expected`, or is missing and `expected` is empty. Answers
  /// the value then at the key, or `expected` if the key is missing still.
  Result<std::string> compare_set(const std::string& key, std::string expected,
                                  std::string desired) {
    return run({.query = Query::CompareSet, .value = expected, .desired = desired}, key);
  }
  Result<bool> check(const std::vector<std::string>& keys) {
    return flag(Query::Check, keys, TimePoint::max());
  }
  Status wait(const std::vector<std::string>& keys, Duration timeout = kTimeLimit);
  Result<bool> erase(const std::string& key);

 private:
  class Engine;
  class Tcp;
  class File;
  static Result<std::shared_ptr<Engine>> reach(const boost::asio::ip::address& address,
                                               std::uint16_t port, Duration timeout);
  BlockingStore(std::shared_ptr<Engine> engine, std::string prefix)
      : engine_(std::move(engine)), prefix_(std::move(prefix)) {}
  /// As TCPStore and FileStore of torch, whose clients share the keys: bare ones are their own.
  std::string full_name(const std::string& key) const { return "/" + prefix_ + key; }
  Result<std::string> run(Request request, const std::string& key);
  Result<std::int64_t> number(const Request& request, const std::string& key);
  Result<bool> flag(Query query, const std::vector<std::string>& keys, TimePoint until);

  std::shared_ptr<Engine> engine_;
  std::string prefix_;  // with its slash, or empty
};

}  // namespace elastrun::store
