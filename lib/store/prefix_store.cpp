// SPDX-License-Identifier: Apache-2.0
#include "store/prefix_store.hpp"

namespace elastrun::store {

std::vector<std::string> PrefixStore::with_prefix(std::vector<std::string> keys) const {
  for (auto& key : keys) key.insert(0, prefix_);
  return keys;
}

void PrefixStore::set(std::string key, std::string value, OnDone done) {
  inner_.set(prefix_ + key, std::move(value), std::move(done));
}
void PrefixStore::get(std::string key, Duration timeout, OnValue done) {
  inner_.get(prefix_ + key, timeout, std::move(done));
}
void PrefixStore::add(std::string key, std::int64_t delta, OnNumber done) {
  inner_.add(prefix_ + key, delta, std::move(done));
}
void PrefixStore::compare_set(std::string key, std::string expected, std::string desired,
                              OnValue done) {
  inner_.compare_set(prefix_ + key, std::move(expected), std::move(desired), std::move(done));
}
void PrefixStore::check(std::vector<std::string> keys, OnFlag done) {
  inner_.check(with_prefix(std::move(keys)), std::move(done));
}
void PrefixStore::wait(std::vector<std::string> keys, Duration timeout, OnDone done) {
  inner_.wait(with_prefix(std::move(keys)), timeout, std::move(done));
}
void PrefixStore::erase(std::string key, OnFlag done) {
  inner_.erase(prefix_ + key, std::move(done));
}
void PrefixStore::count_keys(OnNumber done) {
  inner_.count_keys(std::move(done));
}

void PrefixStore::list_keys(OnKeys done) {
  inner_.list_keys([prefix = prefix_, done = std::move(done)](auto keys) {
    if (!keys) return done(std::move(keys));
    std::vector<std::string> mine;
    for (const auto& key : *keys) {
      if (key.starts_with(prefix)) mine.push_back(key.substr(prefix.size()));
    }
    done(std::move(mine));
  });
}

}  // namespace elastrun::store
