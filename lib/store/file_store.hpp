// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/lifetime.hpp"
#include "core/unique_fd.hpp"
#include "store/store.hpp"

#include <boost/asio/io_context.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string_view>

namespace elastrun::store {

/// torch's c10d::FileStore: an append-only file that several processes share (torchrun-parity 7.4),
/// the same bytes, so that either side may be torch. Waiting polls every 10 ms, as there. Calls
/// read and write the file before they return, under flock(2) which is held for that long only; so
/// not for file systems where flock does not work or blocks.
///
/// The last user removes the file: the one that finds no other left, once `workers` have been
/// there and gone (negative: never removed). `path` and its keys are torch's, `workers` its world
/// size.
class FileStore final : public Store {
 public:
  /// Counts itself in. Fails with Io if the file cannot be made, read or locked, or is torn.
  static Result<std::unique_ptr<FileStore>> open(boost::asio::io_context& loop, Clock& clock,
                                                 std::string path, int workers);
  ~FileStore() override;

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
    TimePoint deadline;
    OnDone done;
  };
  class Lock;

  FileStore(boost::asio::io_context& loop, Clock& clock, std::string path, int workers);
  template <class Done, class Answer>
  void answer(Done done, Answer value);
  Status catch_up(int fd);
  Status append(int fd, std::string_view key, std::string_view value);
  Status take_record(std::string_view& rest);
  Result<std::int64_t> count(const std::string& full_key, std::int64_t delta);
  Status all_there(const std::vector<std::string>& keys, bool& there);
  void poll();
  void poll_later();

  boost::asio::io_context& loop_;
  Clock& clock_;
  std::string path_;
  int workers_;
  std::map<std::string, std::string, std::less<>> cache_;  // what the file has said so far
  std::int64_t offset_ = 0;                                // up to where that is
  std::vector<Waiter> waiters_;
  std::unique_ptr<Alarm> next_poll_;
  Lifetime lifetime_;
};

}  // namespace elastrun::store
