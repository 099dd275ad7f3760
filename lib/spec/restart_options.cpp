// SPDX-License-Identifier: Apache-2.0
#include "spec/restart_options.hpp"

#include "core/text.hpp"
#include "spec/option_values.hpp"
#include "spec/restart_rules.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <string>
#include <vector>

namespace elastrun::spec {
namespace {

constexpr double kLongestSave = 366.0 * 86400;  // seconds
constexpr std::size_t kLongestNames = 2000;     // of what travels with each join

std::optional<Refusal> take_restart_rules(JobSpec& job, const Override& given) {
  job.restart_rule = given.listed ? join(given.items, ",") : given.text;
  const auto rules = parse_restart_rules(job.restart_rule);
  if (rules) return std::nullopt;
  return Refusal{fmt::format("{}: {}", given.source, rules.error().text), 2, false,
                 "elastrun-restarts(7) has the rules"};
}

/// "generator=own". The names in one order, since all agents have to say the same.
std::optional<Refusal> take_role_restarts(JobSpec& job, const Override& given) {
  std::map<std::string, bool> own;
  for (const auto& item : given.listed ? given.items : split(given.text, ',')) {
    const auto text = trim(item);
    if (text.empty()) continue;
    const auto at = std::min(text.rfind('='), text.size());
    const std::string name(trim(text.substr(0, at)));
    const auto whom = text.substr(std::min(at + 1, text.size()));
    if (name.empty() || name.contains(',') || (whom != "own" && whom != "all")) {
      return Refusal{fmt::format("{}: '{}' does not say whom a role restarts", given.source, text),
                     2, false,
                     "expected ROLE=own (the agents with that --role alone) or ROLE=all (every "
                     "agent, as without it)"};
    }
    own[name] = whom == "own";
  }
  std::erase_if(own, [](const auto& one) { return !one.second; });
  std::vector<std::string> names;
  for (const auto& [name, alone] : own) names.push_back(name);
  job.role_restart = join(names, ",");
  if (job.role_restart.size() <= kLongestNames) return std::nullopt;
  return Refusal{fmt::format("{}: the names of the roles are longer than {} bytes together",
                             given.source, kLongestNames),
                 2, false, "use shorter names"};
}

std::optional<Refusal> take_preempt_timeout(JobSpec& job, const Override& given) {
  if (given.text.empty()) return std::nullopt;
  const auto seconds = parse_float(given.text);
  if (!seconds || !(*seconds > 0) || *seconds > kLongestSave) {
    return Refusal{fmt::format("{}: {} is not a time to save in", given.source, given.text), 2,
                   false, "expected a number of seconds above 0"};
  }
  job.preempt_timeout = from_seconds(*seconds);
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> take_restart_options(JobSpec& job, const Values& values,
                                            std::vector<std::string>& warnings) {
  if (auto refusal = take_restart_rules(job, values[Opt::RestartRule])) return refusal;
  if (auto refusal = take_role_restarts(job, values[Opt::RoleRestart])) return refusal;
  if (auto refusal = take_preempt_timeout(job, values[Opt::PreemptTimeout])) return refusal;
  if (values.is_given(Opt::PreemptSignals)) {
    job.preempt_signals = parse_signals(values[Opt::PreemptSignals], warnings);
  }
  for (const auto& name : job.preempt_signals) {
    std::erase(job.forward_signals, name);
    if (std::ranges::count(job.signals_to_handle, name) == 0) job.signals_to_handle.push_back(name);
  }
  return std::nullopt;
}

}  // namespace elastrun::spec
