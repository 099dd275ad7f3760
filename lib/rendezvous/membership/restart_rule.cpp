// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/restart_rule.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>
#include <utility>

namespace elastrun::rendezvous {
namespace {

/// A bijection that spreads neighbours: the last step of SplitMix64 (G. Steele et al., OOPSLA
/// 2014).
constexpr std::uint64_t mixed_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

using spec::CauseClass;

// Of SplitMix64, from one number to the next.
constexpr std::uint64_t kSpread = 0x9e3779b97f4a7c15u;

/// A program may do the same wrong thing again; a device, a network, a service or a scheduler does
/// not know at which step the job stands.
bool is_of_the_program(CauseClass what) {
  return what == CauseClass::Error || what == CauseClass::Crash || what == CauseClass::Oom ||
         what == CauseClass::Timer;
}

bool is_of_the_node(CauseClass what) {
  return what == CauseClass::Gpu || what == CauseClass::Crash || what == CauseClass::NodeLost;
}

template <class Row>
void add_bounded(std::vector<Row>& rows, Row row, std::size_t most) {
  if (rows.size() >= most) rows.erase(rows.begin());
  rows.push_back(std::move(row));
}

std::string decision_text(const RestartDecision& decision) {
  std::string text = decision.restarts ? "restart" : "end";
  if (decision.delay > Duration::zero()) text += " after " + format_duration(decision.delay);
  if (decision.excluded) text += " without this node";
  return text + ": " + decision.rule;
}

}  // namespace

std::optional<CauseClass> class_of(const Cause& cause) {
  if (cause.kind == Cause::Kind::WorkerFailed) return cause.what;
  if (cause.kind == Cause::Kind::NodeLost) return CauseClass::NodeLost;
  if (cause.kind == Cause::Kind::NodeLeft) return CauseClass::Preempted;
  return std::nullopt;
}

RestartDecision RestartRule::decide(const Cause& cause, TimePoint now, const std::string& place,
                                    std::string_view role) {
  if (cause.final) return {};
  const auto what = class_of(cause);
  if (settings_.is_plain() || !what) return by_budget(cause.kind == Cause::Kind::WorkerFailed);
  pass(now);
  const bool automatic = settings_.policy == spec::RestartPolicy::Auto;
  if (automatic) saved(cause.checkpoint);
  const bool was_excluded = is_excluded(place, now);
  auto decision = judge(cause, *what, {place, role, was_excluded});
  if (automatic && is_of_the_node(*what) && !decision.hopeless) blame(place, cause.text, now);
  if (decision.excluded) blame(place, cause.text, now, 2);
  decision.excluded = !was_excluded && is_excluded(place, now);
  enter(cause, *what, place, decision);
  return decision;
}

RestartDecision RestartRule::judge(const Cause& cause, CauseClass what, const Where& where) {
  const auto& rules = settings_.rules;
  const auto found = std::ranges::find_if(
      rules, [&](const auto& rule) { return matches(rule, cause, what, where.role); });
  std::optional<RestartDecision> decision;
  if (found != rules.end()) decision = by_rule(static_cast<int>(found - rules.begin()));
  const bool automatic = settings_.policy == spec::RestartPolicy::Auto;
  if (!decision && automatic) decision = by_progress(cause, what, where);
  if (!decision) {
    decision = by_budget(cause.kind == Cause::Kind::WorkerFailed);
    decision->rule = fmt::format("--max-restarts {}", settings_.max_restarts);
  }
  if (found != rules.end() && found->excludes) {
    decision->excluded = decision->restarts;
    decision->rule = fmt::format("--restart-rule {}", found->text);
  }
  // Also of one that a rule gives for nothing: else a worker that fails as it starts would start a
  // hundred times a second.
  const bool of_worker = cause.kind == Cause::Kind::WorkerFailed;
  if (automatic && decision->restarts && (decision->attempt_spent || of_worker))
    decision->delay = std::max(decision->delay, next_delay());
  return *decision;
}

bool RestartRule::matches(const spec::RestartRuleLine& rule, const Cause& cause, CauseClass what,
                          std::string_view role) const {
  if (rule.cause && *rule.cause != what) return false;
  if (rule.exit_code) {
    const bool of_worker = cause.kind == Cause::Kind::WorkerFailed;
    if (!of_worker || cause.exit_code != *rule.exit_code) return false;
  }
  if (!rule.exception.empty()) {
    // "ValueError@train.py:7": the type, or its last part, as people say it.
    const std::string_view type(cause.fingerprint.data(),
                                cause.fingerprint.find('@') == std::string::npos
                                    ? cause.fingerprint.size()
                                    : cause.fingerprint.find('@'));
    if (type != rule.exception && !type.ends_with("." + rule.exception)) return false;
  }
  return rule.role.empty() || rule.role == role;
}

// None: the rule says nothing of whether it restarts.
std::optional<RestartDecision> RestartRule::by_rule(int index) {
  const auto& rule = settings_.rules[static_cast<std::size_t>(index)];
  RestartDecision decision{!rule.fails, false, left(), {}, rule.fails};
  decision.rule = fmt::format("--restart-rule {}", rule.text);
  if (rule.fails || rule.is_free) return decision;
  if (!rule.at_most) return std::nullopt;
  if (rule.within) {
    std::erase_if(memory_.uses,
                  [&](const RuleUse& use) { return use.rule == index && use.age >= *rule.within; });
  }
  auto times = std::ranges::count(memory_.uses, index, &RuleUse::rule);
  decision.restarts = times < *rule.at_most;
  if (decision.restarts) {
    memory_.uses.push_back({index, {}});
    ++times, ++memory_.spent;
    decision.attempt_spent = true;
  }
  decision.rule += fmt::format(" ({} spent)", times);
  return decision;
}

RestartDecision RestartRule::by_progress(const Cause& cause, CauseClass what, const Where& where) {
  if (what == CauseClass::Preempted || what == CauseClass::NodeLost) {
    return {true, false, left(), {}, false, "auto: a node that goes spends nothing"};
  }
  const auto repeat = repeats(cause, what, where);
  const auto step = cause.step < 0 ? "" : fmt::format(" after step {}", cause.step);
  const auto twice = fmt::format("twice the same {}{}", cause.fingerprint, step);
  if (repeat == Repeat::Deterministic) {
    return {false, false, left(), {}, true, "auto: " + twice + ": restarting does not help"};
  }
  auto decision = by_budget(true);
  const auto since =
      memory_.checkpoint < 0 ? "" : fmt::format(" since checkpoint {}", memory_.checkpoint);
  decision.rule =
      fmt::format("auto: {} of {} restarts{}", memory_.used, settings_.max_restarts, since);
  if (!decision.restarts) decision.rule += " spent";
  if (decision.restarts && repeat == Repeat::TooSoon) {
    decision.delay = kApart;
    decision.rule +=
        fmt::format(", {} within {}: once more after that time", twice, format_duration(kApart));
  }
  return decision;
}

RestartRule::Repeat RestartRule::repeats(const Cause& cause, CauseClass what,
                                         const Where& where) const {
  const bool of_code = what == CauseClass::Code;
  // Without steps the same error proves nothing: networks and disks fail in one place, too. The
  // budget bounds what a verdict that is missed can cost; nothing bounds what a wrong one costs.
  const bool known = of_code || (is_of_the_program(what) && cause.step >= 0);
  if (!known || cause.fingerprint.empty()) return Repeat::No;
  // A crash may be the machine's: it has to come on another one, too, or on one that takes part
  // although it is to be left out. Where there is one machine alone it has no place.
  const bool may_be_the_node = is_of_the_node(what) && !where.place.empty() && !where.excluded;
  auto found = Repeat::No;
  for (const RestartEntry& before : memory_.entries) {
    const bool same = before.cause == what && before.step == cause.step &&
                      before.fingerprint == cause.fingerprint;
    if (!same || (may_be_the_node && before.place == where.place)) continue;
    if (of_code || before.age >= kApart) return Repeat::Deterministic;
    found = Repeat::TooSoon;
  }
  return found;
}

// The first restart is at once, and so is the first one after each new checkpoint.
Duration RestartRule::next_delay() {
  const int level = memory_.level++;
  if (level == 0) return {};
  constexpr int kSteps = 6;  // 1 s << 6 is above the longest
  const Duration base = kFirstDelay * (1 << std::min(level - 1, kSteps));
  // All that the jitter needs is that two jobs, and two restarts of one, differ.
  const auto number = settings_.seed + static_cast<std::uint64_t>(memory_.spent) + kSpread;
  const auto random = mixed_bits(number) % 1000;
  const double factor = 0.75 + 0.5 * static_cast<double>(random) / 1000;
  return std::min<Duration>(from_seconds(to_seconds(base) * factor), kLongestDelay);
}

void RestartRule::saved(std::int64_t checkpoint) {
  if (settings_.policy != spec::RestartPolicy::Auto || checkpoint <= memory_.checkpoint) return;
  memory_.checkpoint = checkpoint;
  memory_.used = memory_.level = 0;
  // A window in time refills by itself.
  std::erase_if(memory_.uses, [this](const RuleUse& use) {
    return !settings_.rules[static_cast<std::size_t>(use.rule)].within;
  });
}

void RestartRule::blame(const std::string& place, const std::string& why, TimePoint now,
                        int times) {
  if (place.empty() || settings_.is_plain()) return;
  pass(now);
  auto& marks = memory_.marks;
  std::erase_if(marks, [](const NodeMark& mark) { return mark.age >= kBlameTime; });
  for (int i = 0; i < times; ++i)
    add_bounded(marks, NodeMark{place, {}, std::string(cut(why, 200))}, RestartMemory::kMostMarks);
}

bool RestartRule::is_excluded(const std::string& place, TimePoint now) const {
  if (place.empty()) return false;
  return std::ranges::count_if(memory_.marks, [&](const NodeMark& mark) {
           return mark.place == place && mark.age + (now - at_) < kBlameTime;
         }) >= 2;
}

void RestartRule::enter(const Cause& cause, CauseClass what, const std::string& place,
                        const RestartDecision& decision) {
  untold_ = 0;  // from here on this ledger is the latest one
  add_bounded(memory_.entries,
              RestartEntry{{},
                           what,
                           cause.fingerprint,
                           place,
                           cause.step,
                           memory_.checkpoint,
                           decision_text(decision)},
              RestartMemory::kMostEntries);
}

void RestartRule::learn(int spent) {
  const int more = spent - memory_.spent;
  if (more <= 0) return;
  // Under a coordinator that has gone: part of the budget is spent with it. It may have been
  // refilled there, which the memory of an agent tells.
  memory_.used += more, untold_ += more;
  memory_.spent = spent;
}

void RestartRule::learn(const RestartMemory& memory, TimePoint now) {
  if (settings_.is_plain()) return;
  pass(now);
  // An agent that came late knows the number of the restarts, but not what they were for.
  const int told = memory_.spent - untold_;
  if (memory.spent > told || (memory.spent == told && memory_.entries.empty())) adopt(memory);
  saved(memory.checkpoint);  // where others had not heard of it, it has refilled the budget
  auto& marks = memory_.marks;
  for (auto mark = memory.marks.begin(); mark != memory.marks.end(); ++mark) {
    if (mark->age >= kBlameTime) continue;
    const auto is_same = [&](const NodeMark& one) {
      return one.place == mark->place && one.why == mark->why;
    };
    // By number and not by age: with each join the own ones come back, and between the order to
    // stop and that join a group may have been saving for minutes.
    const auto ours = std::ranges::count_if(marks, is_same);
    const auto theirs = std::count_if(memory.marks.begin(), mark + 1, is_same);
    if (ours < theirs) add_bounded(marks, *mark, RestartMemory::kMostMarks);
  }
}

void RestartRule::adopt(const RestartMemory& memory) {
  const RestartMemory own = std::exchange(memory_, memory);
  untold_ = std::max(own.spent - memory.spent, 0);
  memory_.spent += untold_, memory_.used += untold_;
  memory_.checkpoint = std::max(own.checkpoint, memory.checkpoint);
  memory_.marks = own.marks;
  // Of another agent's rules, of which it was warned, there may be more.
  std::erase_if(memory_.uses, [this](const RuleUse& use) {
    return use.rule < 0 || std::cmp_greater_equal(use.rule, settings_.rules.size());
  });
}

RestartMemory RestartRule::memory(TimePoint now) const {
  if (settings_.is_plain()) return {};
  RestartMemory out = memory_;
  out.age(now - at_);
  std::ranges::stable_sort(out.uses, {}, &RuleUse::rule);
  if (out.uses.size() > RestartMemory::kMostUses) {
    std::ranges::sort(out.uses, {}, &RuleUse::age);
    out.uses.resize(RestartMemory::kMostUses);
  }
  return out;
}

}  // namespace elastrun::rendezvous
