// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "spec/agreed_rules.hpp"

#include <boost/describe/class.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::rendezvous {

/// One decision, as the ledger keeps it.
struct RestartEntry {
  Duration age{};  // before now
  spec::CauseClass cause = spec::CauseClass::Error;
  std::string fingerprint{}, place{};
  std::int64_t step = -1, checkpoint = -1;  // -1: not known
  std::string decision{};                   // for people: what follows, and by which rule
  bool operator==(const RestartEntry&) const = default;
};

/// A node that something is held against.
struct NodeMark {
  std::string place{};
  Duration age{};
  std::string why{};
  bool operator==(const NodeMark&) const = default;
};

/// A restart that a rule with a number has allowed: the first, second, ... of --restart-rule.
struct RuleUse {
  int rule = 0;
  Duration age{};
  bool operator==(const RuleUse&) const = default;
};
BOOST_DESCRIBE_STRUCT(RuleUse, (), (rule, age))

/// What a RestartRule knows, as plain data with ages instead of times: agents carry it to the next
/// coordinator, and over a requeue. Empty where the policy is torchrun's. Bounded.
struct RestartMemory {
  static constexpr std::size_t kMostEntries = 16, kMostMarks = 64, kMostUses = 64;
  int spent = 0;  // restarts, of all the job
  int used = 0;   // of the budget, since the last new checkpoint
  int level = 0;  // restarts without progress
  std::int64_t checkpoint = -1;
  std::vector<RestartEntry> entries{};  // oldest first
  std::vector<NodeMark> marks{};
  std::vector<RuleUse> uses{};  // the latest ones
  bool empty() const { return spent == 0 && entries.empty() && marks.empty(); }
  bool operator==(const RestartMemory&) const = default;
  /// The same after that time.
  RestartMemory aged(Duration time) const {
    RestartMemory later = *this;
    for (auto& entry : later.entries) entry.age += time;
    for (auto& mark : later.marks) mark.age += time;
    for (auto& use : later.uses) use.age += time;
    return later;
  }
};

/// What an agent was told last. It may carry it for days before another coordinator asks.
class KeptMemory {
 public:
  void keep(std::shared_ptr<const RestartMemory> memory, TimePoint now) {
    if (memory) memory_ = std::move(memory), at_ = now;
  }
  std::shared_ptr<const RestartMemory> at(TimePoint now) const {
    return memory_ ? std::make_shared<const RestartMemory>(memory_->aged(now - at_)) : nullptr;
  }

 private:
  std::shared_ptr<const RestartMemory> memory_;  // null: none
  TimePoint at_{};
};

}  // namespace elastrun::rendezvous
