// SPDX-License-Identifier: Apache-2.0

#include "spec/agreed_rules.hpp"

#include "core/signal_names.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <utility>

namespace elastrun::spec {
namespace {

constexpr std::array<std::string_view, 10> kClassNames = {
    "error", "external", "code", "crash", "oom", "gpu", "hang", "timer", "node-lost", "preempted"};

std::unexpected<Error> refuse_rule(std::string_view rule, std::string_view part,
                                   std::string_view allowed) {
  return fail(Code::Usage,
              fmt::format("--restart-rule '{}': '{}' does not fit; {}", rule, part, allowed));
}

// Each decision looks at all of them.
constexpr std::size_t kMostRules = 64;
constexpr int kMostOfRule = 1000;  // restarts that one may allow: their times are kept
// A longer text would be cut on its way to the coordinator, and then differ from its own.
constexpr std::size_t kLongestRules = 2000;

constexpr std::string_view kRuleMatches =
    "a rule begins with any, a class (error, external, code, crash, oom, gpu, hang, timer, "
    "node-lost, preempted), exit=1 to 255, signal=NAME, exception=TYPE or role=NAME, several "
    "joined "
    "by '+', one class at most";
constexpr std::string_view kRuleActions =
    "after ':' a rule says fail, free, N (restarts at most), N/TIME (as 2/1h) or exclude";

/// "90", "90s", "30m", "1h", "2d".
std::optional<Duration> window_of(std::string_view text) {
  constexpr std::array<std::pair<char, int>, 4> kWindowUnits = {
      {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}}};
  constexpr std::int64_t kLongestWindow = 366 * 86400;
  std::int64_t unit = 1;
  for (const auto& [letter, seconds] : kWindowUnits) {
    if (!text.ends_with(letter)) continue;
    unit = seconds;
    text.remove_suffix(1);
    break;
  }
  const auto number = parse_int(text);
  // Divided, since the product could overflow.
  if (!number || *number < 1 || *number > kLongestWindow / unit) return std::nullopt;
  return std::chrono::seconds(*number * unit);
}

bool take_rule_match(std::string_view part, RestartRuleLine& rule) {
  const auto equals = part.find('=');
  const auto name = part.substr(0, equals);
  if (equals == part.npos) {
    // A failure has one class: a second one would never match, or hide the first.
    if (rule.cause) return false;
    rule.cause = find_cause_class(name);
    return rule.cause || name == "any";
  }
  const auto value = part.substr(equals + 1);
  if (value.empty()) return false;
  if (name == "exit") {
    const auto number = parse_int(value);
    // wait(2) tells eight bits, and 0 is a success.
    if (!number || *number < 1 || *number > 255) return false;
    rule.exit_code = static_cast<int>(*number);
  } else if (name == "signal") {
    const int whole = signal_number(value);
    const int number = whole != 0 ? whole : signal_number(fmt::format("SIG{}", value));
    if (number <= 0) return false;
    rule.exit_code = -number;
  } else if (name == "exception") {
    rule.exception = value;
  } else if (name == "role") {
    rule.role = value;
  } else {
    return false;
  }
  return true;
}

bool take_rule_action(std::string_view part, RestartRuleLine& rule) {
  if (part == "fail") return rule.fails = true;
  if (part == "free") return rule.is_free = true;
  if (part == "exclude") return rule.excludes = true;
  const auto slash = part.find('/');
  const auto number = parse_int(part.substr(0, slash));
  if (!number || *number < 0 || *number > kMostOfRule || rule.at_most) return false;
  rule.at_most = static_cast<int>(*number);
  if (slash == part.npos) return true;
  rule.within = window_of(part.substr(slash + 1));
  return rule.within.has_value();
}

// It travels with each join, and is printed.
constexpr std::size_t kLongestTopology = 256;
// The deepest fabrics have five. Each costs the coordinator a look at all nodes.
constexpr std::size_t kMostLevels = 16;

}  // namespace

std::string_view cause_class_name(CauseClass cause) {
  return kClassNames[static_cast<std::size_t>(cause)];
}

std::optional<CauseClass> find_cause_class(std::string_view name) {
  const auto found = std::ranges::find(kClassNames, name);
  if (found == kClassNames.end()) return std::nullopt;
  return static_cast<CauseClass>(found - kClassNames.begin());
}

Result<RestartRuleLine> parse_restart_rule(std::string_view text) {
  RestartRuleLine rule{std::string(text)};
  // The last one: what a rule matches may have colons in it, what it does has none.
  const auto colon = text.rfind(':');
  if (colon == text.npos) {
    return fail(Code::Usage,
                fmt::format("--restart-rule '{}' does not say what to do; {}", text, kRuleActions));
  }
  for (const auto& part : split(text.substr(0, colon), '+')) {
    if (!take_rule_match(part, rule)) return refuse_rule(text, part, kRuleMatches);
  }
  for (const auto& part : split(text.substr(colon + 1), ',')) {
    if (!take_rule_action(part, rule)) return refuse_rule(text, part, kRuleActions);
  }
  const int endings = int{rule.fails} + int{rule.is_free} + int{rule.at_most.has_value()};
  if (endings > 1 || (rule.fails && rule.excludes)) {
    return refuse_rule(text, text.substr(colon + 1), "fail, free and N exclude each other");
  }
  return rule;
}

Result<std::vector<RestartRuleLine>> parse_restart_rules(std::string_view text) {
  if (text.size() > kLongestRules) {
    return fail(Code::Usage, fmt::format("--restart-rule: {} bytes of rules, at most {}",
                                         text.size(), kLongestRules));
  }
  // Several options, a list in a file and a variable all become one text with commas, which rules
  // have inside, too. Only a rule has a ':', so what has none goes on with the one before.
  std::vector<std::string> whole;
  std::string plain(text);
  std::ranges::replace(plain, ' ', ',');
  for (const auto& part : split(plain, ',')) {
    if (part.empty()) continue;
    const bool goes_on = !whole.empty() && !part.contains(':');
    goes_on ? void(whole.back() += "," + part) : whole.push_back(part);
  }
  if (whole.size() > kMostRules) {
    return fail(Code::Usage,
                fmt::format("--restart-rule: {} rules, at most {}", whole.size(), kMostRules));
  }
  std::vector<RestartRuleLine> rules;
  for (const auto& one : whole) {
    auto rule = parse_restart_rule(one);
    if (!rule) return std::unexpected(rule.error());
    rules.push_back(std::move(*rule));
  }
  return rules;
}

std::string topology_problem(std::string_view address) {
  if (address.size() > kLongestTopology) {
    return fmt::format("it has {} bytes, more than {}", address.size(), kLongestTopology);
  }
  // Printable ASCII without spaces: what switches, racks and Kubernetes's labels are called.
  const auto bad = std::ranges::find_if(address, [](char one) { return one <= ' ' || one > '~'; });
  if (bad != address.end()) return "it has a byte that is not printable ASCII, or a space";
  const auto levels = split(address, '.');
  if (levels.size() > kMostLevels)
    return fmt::format("it has {} levels, more than {}", levels.size(), kMostLevels);
  return std::ranges::find(levels, "") == levels.end() ? "" : "one of its levels is empty";
}

}  // namespace elastrun::spec
