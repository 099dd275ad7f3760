// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/standstill.hpp"

#include <algorithm>
#include <iterator>

namespace elastrun::rendezvous {

void Standstill::assigned(Peer peer, std::int64_t round, const Node& node, int first_rank) {
  if (round != round_) {
    broken_up();
    // Clients that asked about the last round get what has come; the new one has other workers.
    if (call_) finish(call_->until);
    watched_.clear();
    saying_ = {};
    starting_ = 0;
    round_ = round;
    hangs_ = false;
  }
  runs_ = true;
  const auto [entry, is_new] = watched_.try_emplace(peer);
  Watched& member = entry->second;
  if (!is_new) tally(member, -1);
  member = {node.id, first_rank, node.local_world_size, {}, false, false};
  tally(member, +1);
}

void Standstill::tally(const Watched& member, int sign) {
  if (member.finished) return;
  if (!member.started) starting_ += sign;
  if (!member.progress) return;
  const auto& what = member.progress->what;
  saying_[what.by_steps][static_cast<std::size_t>(what.kind)] += sign;
}

void Standstill::renews(Peer peer) {
  const auto found = watched_.find(peer);
  if (found == watched_.end()) return;
  Watched& member = found->second;
  tally(member, -1);
  member.started = member.finished = false;
  member.progress.reset();
  member.renews = true;
  tally(member, +1);
  // Others wait for its workers.
  hangs_ = false;
  forget_hang();
}

void Standstill::gone(Peer peer, TimePoint now) {
  const auto member = watched_.find(peer);
  if (call_) {
    call_->askers.erase(peer);
    if (const auto left = call_->awaited.find(peer); left != call_->awaited.end()) {
      add_silent(member->second, left->second.told);
      call_->awaited.erase(left);
    }
  }
  if (member == watched_.end()) return;
  tally(member->second, -1);
  watched_.erase(member);
  decide(now);
  finish_if_answered(now);
}

/// With those of its workers of which it has not told, if there are such.
void Standstill::add_silent(const Watched& member, const std::vector<bool>& told) {
  std::vector<int> ranks;
  for (int i = 0; i < member.workers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (at >= told.size() || !told[at]) ranks.push_back(member.first_rank + i);
  }
  if (!ranks.empty()) call_->silent.push_back({member.node, std::move(ranks)});
}

/// Costs the same for any number of nodes: each of thousands says something at the end of a job.
bool Standstill::is_hanging() const {
  if (starting_ > 0) return false;
  if (saying(false, Kind::Excused) + saying(true, Kind::Excused) > 0) return false;
  const bool by_steps = saying(true, Kind::Moves) + saying(true, Kind::Stands) > 0;
  return saying(by_steps, Kind::Moves) == 0 && saying(by_steps, Kind::Stands) > 0;
}

/// For how long at least, if the job hangs.
Duration Standstill::standing() const {
  Duration shortest = Duration::max();
  for (const auto& [peer, member] : watched_) {
    if (has_say(member)) shortest = std::min(shortest, member.progress->standing);
  }
  return shortest;
}

void Standstill::decide(TimePoint now) {
  if (!runs_) return;
  const bool hangs = is_hanging();
  const bool told = std::exchange(hangs_, hangs);
  if (!hangs) return forget_hang();
  if (told) return;
  call(now, true);
  call_->hang = true;
  call_->stands_since = now - standing();
  finish_if_answered(now);
}

/// One at a time: a client that asks meanwhile gets the same answer.
void Standstill::call(TimePoint now, bool hang) {
  if (call_) return;
  call_ = Call{};  // emplace() wants the class complete, says clang
  call_->id = ++last_call_;
  call_->until = now + kTimeToAnswer;
  const auto order = std::make_shared<const Push>(TakeStacks{call_->id, hang});
  for (const auto& [peer, member] : watched_) {
    if (member.finished) continue;
    const auto workers = static_cast<std::size_t>(std::max(member.workers, 0));
    call_->awaited.emplace(peer, Allowance{std::vector<bool>(workers), workers});
    tell(peer, order);
  }
}

std::map<int, std::string> Standstill::held() const {
  std::map<int, std::string> all;
  if (!runs_) return all;
  for (const auto& [peer, member] : watched_) {
    if (!member.progress || member.finished) continue;
    for (const auto& [rank, by] : member.progress->held) {
      const int local_rank = rank - member.first_rank;
      if (local_rank >= 0 && local_rank < member.workers) all.emplace(rank, by);
    }
  }
  return all;
}

/// A member that speaks of others, or without an end, must not cost the coordinator its memory.
void Standstill::answers(Peer peer, NodeStacks stacks, TimePoint now) {
  if (!call_ || stacks.id != call_->id) return;
  const auto awaited = call_->awaited.find(peer);
  if (awaited == call_->awaited.end()) return;
  const Watched& member = watched_.at(peer);
  auto& left = awaited->second;
  for (auto& group : stacks.groups) {
    std::erase_if(group.ranks, [&](int rank) {
      const auto at = static_cast<std::size_t>(rank - member.first_rank);
      if (rank < member.first_rank || at >= left.told.size() || left.told[at]) return true;
      left.told[at] = true;
      return false;
    });
    if (!group.ranks.empty()) call_->groups.push_back(std::move(group));
  }
  stacks.dumps.resize(std::min(stacks.dumps.size(), left.dumps));
  left.dumps -= stacks.dumps.size();
  std::ranges::move(stacks.dumps, std::back_inserter(call_->dumps));
  if (!stacks.last) return;
  // A node whose workers do not run has nothing to tell of them.
  add_silent(member, left.told);
  call_->awaited.erase(awaited);
  finish_if_answered(now);
}

/// One that stands itself: it says nothing if its workers have gone on meanwhile, and one that has
/// finished would be no news.
int Standstill::speaker() const {
  std::optional<int> lowest;
  for (const auto& [peer, member] : watched_) {
    if (has_say(member)) lowest = std::min(lowest.value_or(member.first_rank), member.first_rank);
  }
  return lowest.value_or(0);
}

void Standstill::finish(TimePoint now) {
  for (const auto& [peer, left] : call_->awaited) add_silent(watched_.at(peer), left.told);
  const Call call = *std::exchange(call_, std::nullopt);
  StacksReport report{{hangs::merge(call.groups), call.silent, call.dumps},
                      call.hang,
                      call.hang ? now - call.stands_since : Duration::zero()};
  report.speaker = speaker();
  const auto told = std::make_shared<const Push>(std::move(report));
  if (call.hang) {
    for (const auto& [peer, member] : watched_) tell(peer, told);
  }
  for (const Peer peer : call.askers) {
    if (!call.hang || !watched_.contains(peer)) tell(peer, told);
  }
}

}  // namespace elastrun::rendezvous
