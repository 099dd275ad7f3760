// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/round.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::rendezvous {

/// Whether the job goes on after a round has broken up, and what that cost.
struct RestartDecision {
  bool restarts = false;       // false: the job has failed
  bool attempt_spent = false;  // it counts in TORCHELASTIC_RESTART_COUNT
  int restarts_left = 0;
  Duration delay{};       // before the next round
  bool hopeless = false;  // a requeue would not help either
  std::string rule{};     // that decided, and why, for people; empty: as torchrun
  bool excluded = false;  // the node of the cause is left out from now on
};

/// What a job asks for. `seed` spreads the delays of several jobs.
struct RestartSettings {
  int max_restarts = 0;
  spec::RestartPolicy policy = spec::RestartPolicy::Torchrun;
  std::vector<spec::RestartRuleLine> rules{};
  std::uint64_t seed = 0;
  bool is_plain() const { return policy == spec::RestartPolicy::Torchrun && rules.empty(); }
};

/// The one place that decides whether a job restarts: for the coordinator's State, for a session
/// with a user's handler, and for what-if's replay of a journal. By default as torchrun:
/// one count for all nodes; a failure of workers spends a restart, changes of membership cost
/// nothing. elastrun-restarts(7) has the other policy and the rules. Pure, of bounded memory; a
/// decision takes microseconds however long the job has been running.
class RestartRule {
 public:
  static constexpr Duration kBlameTime = std::chrono::hours(24);
  static constexpr Duration kFirstDelay = std::chrono::seconds(1),
                            kLongestDelay = std::chrono::seconds(60);
  /// Two equal failures that are closer than this may both belong to one short outage.
  static constexpr Duration kApart = std::chrono::seconds(5);

  explicit RestartRule(int max_restarts, int spent = 0)
      : RestartRule(RestartSettings{max_restarts}, spent) {}
  explicit RestartRule(RestartSettings settings, int spent = 0)
      : settings_(std::move(settings)), memory_{.spent = spent, .used = spent} {}

  /// `place`, `role`: of the node that the cause names.
  RestartDecision decide(const Cause& cause, TimePoint now = {}, const std::string& place = {},
                         std::string_view role = {});
  /// A checkpoint of that step is complete.
  void saved(std::int64_t checkpoint);
  /// Something is held against that node; twice within kBlameTime, and it is left out. One that
  /// failed a check counts as twice.
  void blame(const std::string& place, const std::string& why, TimePoint now, int times = 1);
  /// Whether the node is to be left out, as long as enough others are there.
  bool is_excluded(const std::string& place, TimePoint now) const;
  /// Mostly not: a round of thousands of nodes is spared the question of each, after each word.
  bool may_exclude() const { return memory_.marks.size() >= 2; }

  /// What a node remembers of the time before this coordinator.
  void learn(int spent);
  void learn(const RestartMemory& memory, TimePoint now);
  RestartMemory memory(TimePoint now) const;
  /// The same for agents to carry; null with torchrun's policy, which has none.
  std::shared_ptr<const RestartMemory> carried_memory(TimePoint now) const {
    return is_plain() ? nullptr : std::make_shared<const RestartMemory>(memory(now));
  }
  int spent() const { return memory_.spent; }
  /// The restarts of the budget that are left.
  int left() const { return std::max(settings_.max_restarts - memory_.used, 0); }
  bool is_plain() const { return settings_.is_plain(); }

 private:
  bool matches(const spec::RestartRuleLine& rule, const Cause& cause, spec::CauseClass what,
               std::string_view role) const;
  /// The node of a cause.
  struct Where {
    const std::string& place;
    std::string_view role;
    bool excluded;
  };
  RestartDecision judge(const Cause& cause, spec::CauseClass what, const Where& where);
  std::optional<RestartDecision> by_rule(int index);
  RestartDecision by_budget(bool costs) {
    if (costs && memory_.used >= settings_.max_restarts) return {};
    if (costs) ++memory_.spent, ++memory_.used;
    return {true, costs, left()};
  }
  RestartDecision by_progress(const Cause& cause, spec::CauseClass what, const Where& where);
  enum class Repeat { No, TooSoon, Deterministic };
  Repeat repeats(const Cause& cause, spec::CauseClass what, const Where& where) const;
  Duration next_delay();
  void adopt(const RestartMemory& memory);
  void pass(TimePoint now) { memory_.age(now - std::exchange(at_, now)); }
  void enter(const Cause& cause, spec::CauseClass what, const std::string& place,
             const RestartDecision& decision);

  RestartSettings settings_;
  RestartMemory memory_;  // of any number of uses; its ages are those of `at_`
  TimePoint at_{};
  int untold_ = 0;  // of those spent: known by their number alone
};

/// What it is to a rule; none: a change of membership that no rule is about.
std::optional<spec::CauseClass> class_of(const Cause& cause);

}  // namespace elastrun::rendezvous
