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

RestartDecision RestartRule::by_budget(bool costs) {
  if (costs && used_ >= settings_.max_restarts) return {};
  if (costs) ++spent_, ++used_;
  return {true, costs, left()};
}

RestartDecision RestartRule::decide(const Cause& cause, TimePoint now, const std::string& place,
                                    std::string_view role) {
  if (cause.final) return {};
  const auto what = class_of(cause);
  if (settings_.is_plain() || !what) return by_budget(cause.kind == Cause::Kind::WorkerFailed);
  const bool automatic = settings_.policy == spec::RestartPolicy::Auto;
  if (automatic) saved(cause.checkpoint);
  const bool was_excluded = is_excluded(place, now);
  auto decision = judge(cause, *what, now, {place, role, was_excluded});
  if (automatic && is_of_the_node(*what) && !decision.hopeless) blame(place, cause.text, now);
  if (decision.excluded) blame(place, cause.text, now, 2);
  decision.excluded = !was_excluded && is_excluded(place, now);
  enter(cause, *what, place, decision, now);
  return decision;
}

RestartDecision RestartRule::judge(const Cause& cause, CauseClass what, TimePoint now,
                                   const Where& where) {
  const auto& rules = settings_.rules;
  const auto found = std::ranges::find_if(
      rules, [&](const auto& rule) { return matches(rule, cause, what, where.role); });
  std::optional<RestartDecision> decision;
  if (found != rules.end())
    decision = by_rule(static_cast<std::size_t>(found - rules.begin()), now);
  const bool automatic = settings_.policy == spec::RestartPolicy::Auto;
  if (!decision && automatic) decision = by_progress(cause, what, now, where);
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
std::optional<RestartDecision> RestartRule::by_rule(std::size_t index, TimePoint now) {
  const auto& rule = settings_.rules[index];
  RestartDecision decision{!rule.fails, false, left(), {}, rule.fails};
  decision.rule = fmt::format("--restart-rule {}", rule.text);
  if (rule.fails || rule.is_free) return decision;
  if (!rule.at_most) return std::nullopt;
  auto& times = times_[index];
  if (rule.within) std::erase_if(times, [&](TimePoint at) { return now - at >= *rule.within; });
  decision.restarts = static_cast<int>(times.size()) < *rule.at_most;
  if (decision.restarts) {
    times.push_back(now);
    ++spent_;
    decision.attempt_spent = true;
  }
  decision.rule += fmt::format(" ({} spent)", times.size());
  return decision;
}

RestartDecision RestartRule::by_progress(const Cause& cause, CauseClass what, TimePoint now,
                                         const Where& where) {
  if (what == CauseClass::Preempted || what == CauseClass::NodeLost) {
    return {true, false, left(), {}, false, "auto: a node that goes spends nothing"};
  }
  const auto repeat = repeats(cause, what, now, where);
  const auto step = cause.step < 0 ? "" : fmt::format(" after step {}", cause.step);
  const auto twice = fmt::format("twice the same {}{}", cause.fingerprint, step);
  if (repeat == Repeat::Deterministic) {
    return {false, false, left(), {}, true, "auto: " + twice + ": restarting does not help"};
  }
  auto decision = by_budget(true);
  const auto since = checkpoint_ < 0 ? "" : fmt::format(" since checkpoint {}", checkpoint_);
  decision.rule = fmt::format("auto: {} of {} restarts{}", used_, settings_.max_restarts, since);
  if (!decision.restarts) decision.rule += " spent";
  if (decision.restarts && repeat == Repeat::TooSoon) {
    decision.delay = kApart;
    decision.rule +=
        fmt::format(", {} within {}: once more after that time", twice, format_duration(kApart));
  }
  return decision;
}

RestartRule::Repeat RestartRule::repeats(const Cause& cause, CauseClass what, TimePoint now,
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
  for (const auto& [before, at] : entries_) {
    const bool same = before.cause == what && before.step == cause.step &&
                      before.fingerprint == cause.fingerprint;
    if (!same || (may_be_the_node && before.place == where.place)) continue;
    if (of_code || now - at >= kApart) return Repeat::Deterministic;
    found = Repeat::TooSoon;
  }
  return found;
}

// The first restart is at once, and so is the first one after each new checkpoint.
Duration RestartRule::next_delay() {
  const int level = level_++;
  if (level == 0) return {};
  constexpr int kSteps = 6;  // 1 s << 6 is above the longest
  const Duration base = kFirstDelay * (1 << std::min(level - 1, kSteps));
  // All that the jitter needs is that two jobs, and two restarts of one, differ.
  const auto number = settings_.seed + static_cast<std::uint64_t>(spent_) + kSpread;
  const auto random = mixed_bits(number) % 1000;
  const double factor = 0.75 + 0.5 * static_cast<double>(random) / 1000;
  return std::min<Duration>(from_seconds(to_seconds(base) * factor), kLongestDelay);
}

void RestartRule::saved(std::int64_t checkpoint) {
  if (settings_.policy != spec::RestartPolicy::Auto || checkpoint <= checkpoint_) return;
  checkpoint_ = checkpoint;
  used_ = level_ = 0;
  // A window in time refills by itself.
  for (std::size_t i = 0; i < times_.size(); ++i) {
    if (!settings_.rules[i].within) times_[i].clear();
  }
}

void RestartRule::blame(const std::string& place, const std::string& why, TimePoint now,
                        int times) {
  if (place.empty() || settings_.is_plain()) return;
  std::erase_if(marks_, [&](const Mark& mark) { return now - mark.at >= kBlameTime; });
  for (int i = 0; i < times; ++i) {
    add_bounded(marks_, Mark{{place, {}, std::string(cut(why, 200))}, now},
                RestartMemory::kMostMarks);
  }
}

bool RestartRule::is_excluded(const std::string& place, TimePoint now) const {
  if (place.empty()) return false;
  return std::ranges::count_if(marks_, [&](const Mark& mark) {
           return mark.what.place == place && now - mark.at < kBlameTime;
         }) >= 2;
}

void RestartRule::enter(const Cause& cause, CauseClass what, const std::string& place,
                        const RestartDecision& decision, TimePoint now) {
  RestartEntry entry{{}, what, cause.fingerprint, place, cause.step, checkpoint_};
  entry.decision = decision_text(decision);
  untold_ = 0;  // from here on this ledger is the latest one
  add_bounded(entries_, Entry{std::move(entry), now}, RestartMemory::kMostEntries);
}

void RestartRule::learn(int spent) {
  if (spent <= spent_) return;
  // Under a coordinator that has gone: part of the budget is spent with it. It may have been
  // refilled there, which the memory of an agent tells.
  used_ += spent - spent_, untold_ += spent - spent_;
  spent_ = spent;
}

void RestartRule::learn(const RestartMemory& memory, TimePoint now) {
  if (settings_.is_plain()) return;
  // An agent that came late knows the number of the restarts, but not what they were for.
  const int told = spent_ - untold_;
  if (memory.spent > told || (memory.spent == told && entries_.empty())) adopt(memory, now);
  saved(memory.checkpoint);  // where others had not heard of it, it has refilled the budget
  for (auto mark = memory.marks.begin(); mark != memory.marks.end(); ++mark) {
    if (mark->age >= kBlameTime) continue;
    const auto is_same = [&](const NodeMark& one) {
      return one.place == mark->place && one.why == mark->why;
    };
    // By number and not by age: with each join the own ones come back, and between the order to
    // stop and that join a group may have been saving for minutes.
    const auto ours = std::ranges::count_if(marks_, is_same, &Mark::what);
    const auto theirs = std::count_if(memory.marks.begin(), mark + 1, is_same);
    if (ours < theirs) add_bounded(marks_, Mark{*mark, now - mark->age}, RestartMemory::kMostMarks);
  }
}

void RestartRule::adopt(const RestartMemory& memory, TimePoint now) {
  untold_ = std::max(spent_ - memory.spent, 0);
  spent_ = std::max(spent_, memory.spent);
  used_ = memory.used + untold_, level_ = memory.level;
  checkpoint_ = std::max(checkpoint_, memory.checkpoint);
  entries_.clear();
  for (const auto& entry : memory.entries) {
    add_bounded(entries_, Entry{entry, now - entry.age}, RestartMemory::kMostEntries);
  }
  for (auto& times : times_) times.clear();
  // Of another agent's rules, of which it was warned, there may be more.
  for (const auto& use : memory.uses) {
    const auto rule = static_cast<std::size_t>(use.rule);
    if (rule < times_.size()) times_[rule].push_back(now - use.age);
  }
}

RestartMemory RestartRule::memory(TimePoint now) const {
  if (settings_.is_plain()) return {};
  RestartMemory out{spent_, used_, level_, checkpoint_};
  for (const auto& entry : entries_) {
    out.entries.push_back(entry.what);
    out.entries.back().age = now - entry.at;
  }
  for (const auto& mark : marks_) {
    out.marks.push_back(mark.what);
    out.marks.back().age = now - mark.at;
  }
  for (std::size_t rule = 0; rule < times_.size(); ++rule) {
    for (const auto at : times_[rule]) out.uses.push_back({static_cast<int>(rule), now - at});
  }
  if (out.uses.size() > RestartMemory::kMostUses) {
    std::ranges::sort(out.uses, {}, &RuleUse::age);
    out.uses.resize(RestartMemory::kMostUses);
  }
  return out;
}

}  // namespace elastrun::rendezvous
