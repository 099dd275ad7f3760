// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/stack_offers.hpp"

#include "process/process_table.hpp"

namespace elastrun::agent {
void StackOffers::heard(pid_t sender, const workers::StacksOffered& offer) {
  const auto process = process::read_process(sender);
  if (!process) return;
  // A script may fork without end: only processes that live keep their places.
  if (offers_.size() >= most_ && !offers_.contains(sender)) forget_ended();
  if (offers_.size() >= most_ && !offers_.contains(sender)) return;
  // With the start time: by then the number may be another process's.
  offers_.insert_or_assign(
      sender, Offer{{offer.signal, offer.descriptor, offer.thread}, process->start_time});
}

/// A long round has many short-lived processes. Not at each offer that finds no room: that would be
/// a look at all of them each time.
void StackOffers::forget_ended() {
  if (refused_++ % most_ != 0) return;
  std::erase_if(offers_, [this](const auto& one) { return !of(one.first); });
}

std::optional<system::StackOffer> StackOffers::of(pid_t pid) const {
  const auto found = offers_.find(pid);
  if (found == offers_.end()) return std::nullopt;
  const auto process = process::read_process(pid);
  // A number that was given away since: that process has no handler, and the signal would end it.
  if (!process || process->start_time != found->second.start_time) return std::nullopt;
  return found->second.how;
}

std::vector<pid_t> StackOffers::processes() const {
  std::vector<pid_t> pids;
  for (const auto& [pid, offer] : offers_) pids.push_back(pid);
  return pids;
}

}  // namespace elastrun::agent
