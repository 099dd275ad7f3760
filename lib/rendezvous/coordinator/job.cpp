// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/job.hpp"

#include "rendezvous/wire/messages.hpp"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

namespace elastrun::rendezvous {
namespace {

// An alarm that rings so late tells of a machine that stood still (SIGSTOP, a suspended one).
constexpr Duration kPause = std::chrono::seconds(1);

}  // namespace

Job::Job(Rules rules, const CoordinatorSettings& settings, std::string run_id, Clock& clock,
         std::function<void()> before_deciding)
    : state(rules, std::move(run_id), settings.master_addr, settings.master_port),
      clock_(clock),
      owner_(settings.owner),
      before_deciding_(std::move(before_deciding)),
      alarm_(clock.make_alarm()),
      preemption_(rules.preempt_ack_all) {
  state.set_epoch(settings.epoch);
  if (owner_ != nullptr && owner_->records_worlds()) state.require_acknowledgements();
}

void Job::report(Peer peer, FromAgent message) {
  const TimePoint now = clock_.now();
  if (const auto* started = std::get_if<Started>(&message)) {
    state.started(peer, started->round);
  } else if (auto* failed = std::get_if<Failed>(&message)) {
    state.fail(peer, failed->round, std::move(failed->cause), now, failed->goes_on);
  } else if (const auto* succeeded = std::get_if<Succeeded>(&message)) {
    state.succeed(peer, succeeded->round, now);
  } else if (const auto* leaving = std::get_if<Leaving>(&message)) {
    // Before it leaves: afterwards it is not a member any more, and its reason is lost.
    if (leaving->unable) state.cannot_start(peer, leaving->why, now);
    const auto kind = leaving->killed ? Cause::Kind::NodeLost : Cause::Kind::NodeLeft;
    state.leave(peer, leaving->why, now, leaving->grace, kind);
  } else if (const auto* stopping = std::get_if<Stopping>(&message)) {
    state.stopping(peer, stopping->left, now);
  }
  tell_preemption(peer, message, now);
  tell_standstill(peer, std::move(message), now);
}

/// Also of a job without preemption: new checkpoints count for its restarts.
void Job::tell_preemption(Peer peer, const FromAgent& message, TimePoint now) {
  if (const auto* ask = std::get_if<AskPreempt>(&message)) {
    // Without its coordinator the round would end as well.
    if (ask->hosts || !state.let_spare_go(peer, ask->why, now)) preempt(ask->why, ask->deadline);
  } else if (const auto* reached = std::get_if<Reached>(&message)) {
    if (reached->checkpoint >= 0) state.saved(reached->checkpoint);
    preemption_.says(peer, *reached, now);
    if (!reached->failure.empty() && preemption_.is_asked()) {
      state.preempting(preemption_.cause(), now);
    }
  } else if (std::holds_alternative<Leaving>(message)) {
    preemption_.gone(peer, now);
  }
}

void Job::preempt(const std::string& why, Duration deadline) {
  const TimePoint now = clock_.now();
  if (!preemption_.ask(why, deadline, now)) return;
  state.preempting(preemption_.cause(), now);
}

/// After the state, which knows by then whether there still is a round that could hang.
void Job::tell_standstill(Peer peer, FromAgent message, TimePoint now) {
  look_at_round();
  if (const auto* started = std::get_if<Started>(&message)) {
    standstill_.started(peer, started->round, now);
  } else if (std::holds_alternative<Succeeded>(message)) {
    standstill_.finished(peer, now);
  } else if (std::holds_alternative<Leaving>(message)) {
    standstill_.gone(peer, now);
  } else if (const auto* progress = std::get_if<ProgressReport>(&message)) {
    standstill_.says(peer, *progress, now);
  } else if (auto* stacks = std::get_if<NodeStacks>(&message)) {
    standstill_.answers(peer, std::move(*stacks), now);
  } else if (std::holds_alternative<AskStacks>(message)) {
    standstill_.asks(peer, now);
  }
}

void Job::look_at_round() {
  if (state.phase() != Phase::Running) standstill_.broken_up();
}

void Job::ask_stacks(Peer peer, const std::shared_ptr<net::Link>& link) {
  askers_[peer] = link;
  standstill_.asks(peer, clock_.now());
  deliver();
}

void Job::lost(Peer peer, const std::string& why, Loss loss) {
  const TimePoint now = clock_.now();
  // The link first: what the state decides next is not for this peer any more.
  links.erase(peer);
  askers_.erase(peer);
  state.depart(peer, why, now, loss);
  look_at_round();
  standstill_.gone(peer, now);
  preemption_.gone(peer, now);
}

void Job::deliver_stacks() {
  std::shared_ptr<const Push> shared;
  std::string text;
  auto all = standstill_.take();
  std::ranges::move(preemption_.take(), std::back_inserter(all));
  for (const auto& [peer, push] : all) {
    const auto member = links.find(peer);
    // It may be a client such as elastrunctl, which is not a member.
    const auto asker = askers_.find(peer);
    const auto link = member != links.end()    ? member->second
                      : asker != askers_.end() ? asker->second.lock()
                                               : nullptr;
    if (push != shared) {
      shared = push;
      text = encode(FromCoordinator(*push));
    }
    if (link) link->send(text);
    // Each question gets one answer.
    if (asker != askers_.end()) askers_.erase(asker);
  }
}

void Job::note_assigned(Peer peer, const Assigned& assigned) {
  const auto at = static_cast<std::size_t>(assigned.group_rank);
  const auto& world = *assigned.world;
  standstill_.assigned(peer, world.id.round, world.members[at], world.ranks.of[at].rank);
  preemption_.assigned(peer, world.id.round, assigned.group_rank);
}

// Until its role runs again it neither hangs nor saves, and is not waited for.
void Job::note_renewing(Peer peer) {
  if (!state.is_renewing(peer)) return;
  standstill_.renews(peer);
  preemption_.gone(peer, clock_.now());
}

// A list of members is encoded once, since thousands of them get the same one.
void Job::deliver() {
  // First, so that what this makes the state say goes out below.
  if (preemption_.take_over()) state.preempted(preemption_.text(), clock_.now());
  std::shared_ptr<const World> world;
  std::shared_ptr<const Push> shared;
  std::string members, text;
  for (const Delivery& delivery : state.take()) {
    const auto link = links.find(delivery.to);
    if (link == links.end()) continue;
    if (const auto* assigned = std::get_if<Assigned>(&delivery.notice)) {
      note_assigned(delivery.to, *assigned);
      if (assigned->world != world) {
        world = assigned->world;
        members = encode_members(*world);
      }
      link->second->send(encode_assignment(*world, assigned->group_rank, members));
      continue;
    }
    const auto& push = std::get<std::shared_ptr<const Push>>(delivery.notice);
    if (push != shared) {
      shared = push;
      text = encode(FromCoordinator(*push));
    }
    if (std::holds_alternative<Restart>(*push)) note_renewing(delivery.to);
    link->second->send(text);
  }
  look_at_round();
  deliver_stacks();
  // One at a time; a world that has changed meanwhile is recorded by its own request.
  if (state.unacknowledged() && !recording_) record_world();
  const int before = std::exchange(leavers_, state.world_fence().fence.leavers().count);
  if (leavers_ != before && owner_ != nullptr) owner_->leavers_changed();
  const int at_work = state.roster().count(MemberState::Stopping);
  const bool changed = std::exchange(stopping_, at_work) != at_work;
  if (changed && state.phase() == Phase::Joining && owner_ != nullptr) owner_->remnant_changed();
  // A job that has failed stops its groups now: it is over when its last agent has gone.
  const bool over = state.phase() == Phase::Ended && !state.verdict().failed;
  if (over && !std::exchange(told_end_, true) && owner_ != nullptr)
    owner_->job_over(state.run_id());
  arm();
}

void Job::note_reachable(const net::Link& link) {
  const auto address = link.local_address();
  // A connection within this machine does not show by which address other machines reach it.
  if (!address.is_loopback() && !link.remote_address().is_loopback() &&
      link.remote_address() != address) {
    state.set_reachable(address.to_string());
  }
}

// Before any member hears of that world: a successor that found no record of it would form another
// one beside it.
void Job::record_world() {
  recording_ = true;
  const WorldRecord world = *state.unacknowledged();
  owner_->record_world(state.run_id(), world, [this, alive = lifetime_.token(), world] {
    if (!alive) return;
    before_deciding_();
    recording_ = false;
    state.acknowledge(world, clock_.now());
    deliver();
  });
}

void Job::note_pause() {
  const TimePoint now = clock_.now();
  // `expected_` moves on, so that no pause is counted twice.
  if (armed_ && now - expected_ > kPause) state.stand_still(now - std::exchange(expected_, now));
}

void Job::arm() {
  auto due = state.deadline();
  if (const auto asked = standstill_.deadline()) due = std::min(due.value_or(*asked), *asked);
  if (const auto asked = preemption_.deadline()) due = std::min(due.value_or(*asked), *asked);
  // Each message leads here, and most change nothing: an alarm is not set again for the same time.
  if (due == armed_) return;
  armed_ = due;
  if (!due) return alarm_->disarm();
  // A time that has passed already rings now; that delay is not a pause.
  expected_ = std::max(*due, clock_.now());
  alarm_->arm(*due, [this] {
    // Before `armed_` is reset, without which no pause is seen.
    note_pause();
    armed_.reset();
    before_deciding_();
    const TimePoint now = clock_.now();
    state.tick(now);
    look_at_round();
    standstill_.tick(now);
    preemption_.tick(now);
    deliver();
  });
}

}  // namespace elastrun::rendezvous
