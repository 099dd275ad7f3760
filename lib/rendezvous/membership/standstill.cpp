// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/standstill.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace elastrun::rendezvous {

void Standstill::assigned(Peer peer, std::int64_t round, const Node& node, int first_rank) {
  if (round != round_) {
    seats_.clear();
    if (call_) call_->awaited.clear();  // whom it was about is no more; `tick` ends it
    round_ = round;
    hangs_ = false;
  }
  seats_[peer] = {node.id, first_rank, node.local_world_size, {}, false};
}

void Standstill::finished(Peer peer, TimePoint now) {
  const auto seat = seats_.find(peer);
  if (seat == seats_.end()) return;
  seat->second.finished = true;
  decide(now);
}

void Standstill::gone(Peer peer, TimePoint now) {
  const auto seat = seats_.find(peer);
  if (call_) {
    call_->askers.erase(peer);
    if (call_->awaited.erase(peer) > 0) call_->silent.push_back(silent(seat->second));
  }
  if (seat == seats_.end()) return;
  seats_.erase(seat);
  finish_if_answered();
  decide(now);
}

hangs::SilentNode Standstill::silent(const Seat& seat) {
  std::vector<int> ranks(static_cast<std::size_t>(std::max(seat.workers, 0)));
  std::iota(ranks.begin(), ranks.end(), seat.first_rank);
  return {seat.node, std::move(ranks)};
}

void Standstill::says(Peer peer, const ProgressReport& progress, TimePoint now) {
  const auto seat = seats_.find(peer);
  if (seat == seats_.end() || progress.round != round_) return;
  seat->second.progress = progress;
  decide(now);
}

/// For how long at least, if the job hangs.
std::optional<Duration> Standstill::standing() const {
  using Kind = hangs::NodeProgress::Kind;
  bool by_steps = false;
  for (const auto& [peer, seat] : seats_) {
    if (seat.finished || !seat.progress) continue;
    if (seat.progress->what.kind == Kind::Excused) return std::nullopt;
    by_steps = by_steps || seat.progress->what.by_steps;
  }
  std::optional<Duration> shortest;
  for (const auto& [peer, seat] : seats_) {
    if (seat.finished || !seat.progress || seat.progress->what.by_steps != by_steps) continue;
    if (seat.progress->what.kind != Kind::Stands) return std::nullopt;
    shortest = std::min(shortest.value_or(Duration::max()), seat.progress->standing);
  }
  return shortest;
}

void Standstill::decide(TimePoint now) {
  const auto standing = this->standing();
  const bool told = std::exchange(hangs_, standing.has_value());
  if (!standing || told) return;
  call(now, true);
  call_->hang = true;
  call_->standing = *standing;
  finish_if_answered();
}

void Standstill::asks(Peer peer, TimePoint now) {
  call(now, false);
  call_->askers.insert(peer);
  finish_if_answered();
}

/// One at a time: whoever asks meanwhile gets the same answer.
void Standstill::call(TimePoint now, bool hang) {
  if (call_) return;
  call_.emplace();
  call_->id = ++last_call_;
  call_->until = now + kTimeToAnswer;
  for (const auto& [peer, seat] : seats_) {
    if (seat.finished) continue;
    call_->awaited.insert(peer);
    told_.emplace_back(peer, TakeStacks{call_->id, hang});
  }
}

void Standstill::answers(Peer peer, NodeStacks stacks) {
  if (!call_ || stacks.id != call_->id || !call_->awaited.contains(peer)) return;
  std::ranges::move(stacks.groups, std::back_inserter(call_->groups));
  std::ranges::move(stacks.dumps, std::back_inserter(call_->dumps));
  if (!stacks.last) return;
  call_->awaited.erase(peer);
  finish_if_answered();
}

void Standstill::finish_if_answered() {
  if (call_ && call_->awaited.empty()) finish();
}

void Standstill::tick(TimePoint now) {
  if (call_ && now >= call_->until) finish();
}

std::optional<TimePoint> Standstill::deadline() const {
  return call_ ? std::optional(call_->until) : std::nullopt;
}

void Standstill::finish() {
  const Call call = *std::exchange(call_, std::nullopt);
  StacksReport report{
      {hangs::merge(call.groups), call.silent, call.dumps}, call.hang, call.standing};
  for (const Peer peer : call.awaited) {
    report.stacks.silent.push_back(silent(seats_.at(peer)));
  }
  if (call.hang) {
    for (const auto& [peer, seat] : seats_) told_.emplace_back(peer, report);
  }
  for (const Peer peer : call.askers) {
    if (!call.hang || !seats_.contains(peer)) told_.emplace_back(peer, report);
  }
}

}  // namespace elastrun::rendezvous
