// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::spec {

/// What ended the workers, as --restart-rule names it.
enum class CauseClass {
  Error,
  External,  // something outside the program can explain it
  Code,      // nothing outside the program can
  Crash,
  Oom,
  Gpu,
  Hang,
  Timer,
  NodeLost,
  Preempted
};
/// "error", "external", "code", "crash", "oom", "gpu", "hang", "timer", "node-lost", "preempted".
std::string_view cause_class_name(CauseClass cause);
std::optional<CauseClass> find_cause_class(std::string_view name);

enum class RestartPolicy { Torchrun, Auto };

/// One --restart-rule: what it is about, and what follows.
struct RestartRuleLine {
  std::string text;  // as it was written
  // What all must be so. Nothing given: any cause.
  std::optional<CauseClass> cause{};
  std::optional<int> exit_code{};  // torchrun's number: negative is a signal
  std::string exception{};         // the beginning of a fingerprint up to its place
  std::string role{};
  // What follows. Nothing given: what would follow without the rule.
  bool fails = false;                // the job ends; a requeue does not help either
  bool is_free = false;              // a restart that spends nothing
  std::optional<int> at_most{};      // restarts of this rule, which spend nothing else
  std::optional<Duration> within{};  // of those
  bool excludes = false;             // the node is left out from then on
};

/// The most restarts that a rule may allow: their times are kept.
constexpr int kMostOfRule = 1000;

/// "oom:1", "exit=93:fail", "gpu:2/1h,exclude", "role=actor+any:free". Fails with Usage and one
/// sentence: what is wrong, and what is allowed. Pure.
Result<RestartRuleLine> parse_restart_rule(std::string_view text);

/// Several, separated by commas or blanks; a part without ':' belongs to the rule before it.
Result<std::vector<RestartRuleLine>> parse_restart_rules(std::string_view text);

}  // namespace elastrun::spec
