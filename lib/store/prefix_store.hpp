// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "store/store.hpp"

namespace elastrun::store {

/// A part of another store: every key gets `PREFIX/` in front. Lists only its own keys, without the
/// prefix (torch lists those of any longer prefix too); count_keys counts all keys of the inner
/// store, as torch does. The inner store must outlive this one.
class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, Store& inner) : prefix_(std::move(prefix) + "/"), inner_(inner) {}

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
  std::vector<std::string> with_prefix(std::vector<std::string> keys) const;

  std::string prefix_;
  Store& inner_;
};

}  // namespace elastrun::store
