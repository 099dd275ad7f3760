// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/rules.hpp"

#include "spec/job_spec.hpp"
#include "spec/rdzv_conf.hpp"

namespace elastrun::rendezvous {

Rules rules_of(const spec::JobSpec& job) {
  const auto config = spec::read_rendezvous_config(job.rdzv_conf);
  Rules rules{job};
  rules.join_timeout = config.join_timeout;
  rules.last_call_timeout = config.last_call_timeout;
  if (job.rdzv_backend != spec::backend::kStatic) return rules;
  rules.fixed_ranks = true;
  rules.min_nodes = rules.max_nodes;  // as torchrun: the minimum is not looked at
  rules.join_timeout = config.timeout;
  return rules;
}

}  // namespace elastrun::rendezvous
