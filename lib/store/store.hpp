// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace elastrun::store {

/// A key-value store with waiting, as torch's c10d::Store: values are bytes, counters are decimal
/// text, and a get of a missing key waits for it.
///
/// Every call returns at once. Its callback runs once on the loop, never inside the call, and never
/// after the store was destroyed. Requests take effect in the order of the calls; answers may come
/// in another. A negative timeout is none at all. Errors: Timeout (the text names the missing
/// keys), Closed (the other side has gone), Store (refused), Io (files).
class Store {
 public:
  using OnDone = std::function<void(Status)>;
  using OnValue = std::function<void(Result<std::string>)>;
  using OnNumber = std::function<void(Result<std::int64_t>)>;
  using OnFlag = std::function<void(Result<bool>)>;
  using OnKeys = std::function<void(Result<std::vector<std::string>>)>;

  virtual ~Store() = default;

  virtual void set(std::string key, std::string value, OnDone done) = 0;
  /// The value, once there is one. A timeout of 0 asks whether it is there now.
  virtual void get(std::string key, Duration timeout, OnValue done) = 0;
  /// Adds to the number at the key (0 if missing) and answers the sum. Fails with Store if the
  /// value is not a number.
  virtual void add(std::string key, std::int64_t delta, OnNumber done) = 0;
  /// Stores `desired` if the key holds `expected`, or is missing and `expected` is empty. Answers
  /// the value then at the key, or `expected` if the key is missing still.
  virtual void compare_set(std::string key, std::string expected, std::string desired,
                           OnValue done) = 0;
  /// Tells if all of the keys are there now.
  virtual void check(std::vector<std::string> keys, OnFlag done) = 0;
  /// Succeeds once each of the keys has been there.
  virtual void wait(std::vector<std::string> keys, Duration timeout, OnDone done) = 0;
  /// Tells if there was such a key.
  virtual void erase(std::string key, OnFlag done) = 0;
  virtual void count_keys(OnNumber done) = 0;
  /// In no order.
  virtual void list_keys(OnKeys done) = 0;
};

/// "wait timeout after 300ms, keys: a, b": torch's words.
Error wait_timeout(Duration timeout, const std::vector<std::string>& keys);

}  // namespace elastrun::store
