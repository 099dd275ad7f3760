// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/local_agents.hpp"

#include "net/endpoint.hpp"

#include <vector>

namespace elastrun::rendezvous {

void LocalAgents::note(Peer peer, const AgentProcesses& processes) {
  if (are_ours(processes)) here_[peer] = processes;
}

bool LocalAgents::is_here(Peer peer, const boost::asio::ip::address& from) const {
  // The hello is only a claim: the connection has to come from this machine as well.
  return here_.contains(peer) && (from.is_loopback() || net::is_own_address(from));
}

void LocalAgents::lose(Peer peer, bool without_word) {
  auto known = here_.extract(peer);
  if (!known || !without_word) return;
  lost_[peer] = {std::move(known.mapped()), clock_.now() + kTimeToReturn};
  // Not inside this call. The kernel closes the connection just before the process has ended.
  look_->arm(clock_.now(), [this] { look(); });
}

void LocalAgents::look() {
  const TimePoint now = clock_.now();
  std::vector<Peer> gone;
  for (const auto& [peer, lost] : lost_) {
    if (are_gone(lost.processes)) gone.push_back(peer);
  }
  for (const Peer peer : gone) lost_.erase(peer);
  std::erase_if(lost_, [now](const auto& one) { return now >= one.second.until; });
  if (!lost_.empty()) look_->arm(now + kLook, [this] { look(); });
  // Last: what this calls may come back here, and change the maps.
  for (const Peer peer : gone) gone_(peer);
}

}  // namespace elastrun::rendezvous
