// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fork_lock.hpp"
#include "name_pattern.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::worker {
namespace detail {
/// Which events pass: evenly spread ones, so that of 0.25 each fourth one does, the first with
/// them.
class Sampling {
 public:
  constexpr Sampling() = default;

  void add(std::string_view pattern, double rate) {
    const Shared turn;
    if (rules_ == nullptr) rules_ = new std::vector<Rule>;
    const auto same = std::find_if(rules_->begin(), rules_->end(),
                                   [&](const Rule& one) { return one.pattern == pattern; });
    if (same != rules_->end()) rules_->erase(same);
    rules_->insert(rules_->begin(), Rule{std::string(pattern), rate});
    any_.store(true, std::memory_order_relaxed);
  }
  /// Whether this one does.
  bool passes(std::string_view name) {
    if (!any_.load(std::memory_order_relaxed)) return true;
    const Shared turn;
    Rule* const rule = turn ? find(name) : nullptr;
    if (rule == nullptr) return true;
    const bool passes = rule->rate > 0 && rule->credit >= 1;
    rule->credit += rule->rate - (passes ? 1 : 0);
    return passes;
  }
  /// Whether one of that name may.
  bool wants(std::string_view name) {
    if (!any_.load(std::memory_order_relaxed)) return true;
    const Shared turn;
    const Rule* const rule = turn ? find(name) : nullptr;
    return rule == nullptr || rule->rate > 0;
  }

 private:
  struct Rule {
    std::string pattern;
    double rate;
    double credit = 1;
  };
  Rule* find(std::string_view name) const {
    for (Rule& one : *rules_) {
      if (fits(one.pattern, name)) return &one;
    }
    return nullptr;
  }
  std::atomic<bool> any_{false};
  std::vector<Rule>* rules_ = nullptr;  // the last one first; never freed
};
inline Sampling sampling;
}  // namespace detail

/// Of the events and spans whose name matches `pattern` (with * and ?) that part passes from now
/// on, in (0, 1]; 0: none. Windows of a Stat always pass. Of several patterns the last one counts.
/// Throws std::invalid_argument on another rate.
inline void sample(std::string_view pattern, double rate) {
  if (!(rate >= 0 && rate <= 1)) {
    throw std::invalid_argument("sample('" + std::string(pattern) + "'): rate (" +
                                std::to_string(rate) + ") must be between 0 and 1");
  }
  detail::sampling.add(pattern, rate);
}

}  // namespace elastrun::worker
