// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/rules.hpp"

#include "core/log.hpp"
#include "rendezvous/membership/restart_rule.hpp"
#include "spec/job_spec.hpp"

#include <functional>
#include <utility>

namespace elastrun::rendezvous {

Rules rules_of(const spec::JobSpec& job) {
  const auto& config = job.rendezvous;
  Rules rules{job};
  rules.join_timeout = config.join_timeout;
  rules.last_call_timeout = config.last_call_timeout;
  if (job.rdzv_backend != spec::backend::kStatic) return rules;
  rules.fixed_ranks = true;
  rules.min_nodes = rules.max_nodes;  // as torchrun: the minimum is not looked at
  rules.join_timeout = config.timeout;
  return rules;
}

RestartSettings restart_settings(const spec::AgreedRules& rules, const std::string& run_id) {
  RestartSettings settings{rules.max_restarts};
  if (rules.restart_policy_auto) settings.policy = spec::RestartPolicy::Auto;
  // Checked where the job was started; what another release has said otherwise does not count here.
  if (auto parsed = spec::parse_restart_rules(rules.restart_rule)) {
    settings.rules = std::move(*parsed);
  } else {
    log::warning("rendezvous", "{}", parsed.error().text);
  }
  settings.seed = std::hash<std::string>{}(run_id);
  return settings;
}

}  // namespace elastrun::rendezvous
