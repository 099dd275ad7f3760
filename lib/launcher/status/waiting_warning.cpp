// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/waiting_warning.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "net/endpoint.hpp"
#include "net/outward.hpp"
#include "spec/rdzv_conf.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <vector>

namespace elastrun::agent {
namespace {

// Nodes that are started together come within a few seconds of each other.
constexpr Duration kFirstWarning = std::chrono::seconds(10);
// A job may wait for days: its log must not fill up meanwhile.
constexpr Duration kLongestPause = std::chrono::minutes(10);

/// What to do about an endpoint that is this machine's own. Empty if the others can reach it.
std::string unreachable_text(const spec::JobSpec& job) {
  const bool fixed_ranks = job.rdzv_backend == spec::backend::kStatic;
  const bool in_c10d = job.rdzv_backend == spec::backend::kC10d &&
                       !spec::read_rendezvous_config(job.rdzv_conf).meets_in_file;
  const auto endpoint = net::parse_endpoint(job.rdzv_endpoint, spec::kC10dPort);
  if ((!fixed_ranks && !in_c10d) || !endpoint) return {};
  if (!net::is_loopback_host(endpoint->host) && !net::is_wildcard(endpoint->host)) return {};
  if (fixed_ranks && job.node_rank != 0)
    return ", on this machine: if node 0 is another one, give --master-addr with its address";
  std::vector<std::string> own;
  for (const auto& one : net::reachable_addresses()) {
    const auto address = one.address.to_string();
    own.push_back(fixed_ranks
                      ? fmt::format("--master-addr {} --master-port {}", address, endpoint->port)
                      : "--rdzv-endpoint " + net::format_endpoint(address, endpoint->port));
  }
  if (own.empty()) own.emplace_back(fixed_ranks ? "--master-addr" : "--rdzv-endpoint");
  return fmt::format(
      ", which other machines cannot reach: nodes there need this one's address ({})",
      join(own, " or "));
}

}  // namespace

WaitingWarning::WaitingWarning(Clock& clock, const spec::JobSpec& job, bool is_seen)
    : clock_(clock),
      unreachable_(job.max_nodes > 1 ? unreachable_text(job) : ""),
      wanted_(job.max_nodes > 1 && (!is_seen || !unreachable_.empty())),
      endpoint_(job.rdzv_endpoint) {}

void WaitingWarning::phase(Phase phase, TimePoint now) {
  alarm_.reset();
  if (!wanted_ || phase != Phase::Joining) return;
  text_.clear();
  pause_ = kFirstWarning;
  alarm_ = clock_.make_alarm();
  alarm_->arm(now + pause_, [this] { warn(); });
}

void WaitingWarning::warn() {
  log::warning("rendezvous", "{}; nodes meet at {}{}",
               text_.empty() ? "waiting for other nodes" : text_, endpoint_, unreachable_);
  pause_ = std::min(pause_ * 2, kLongestPause);
  alarm_->arm(clock_.now() + pause_, [this] { warn(); });
}

}  // namespace elastrun::agent
