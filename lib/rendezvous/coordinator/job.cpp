// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/job.hpp"

#include "rendezvous/wire/messages.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

namespace elastrun::rendezvous {
namespace {

// An alarm that rings so late tells of a machine that stood still (SIGSTOP, a suspended one).
constexpr Duration kPause = std::chrono::seconds(1);

}  // namespace

Job::Job(Rules rules, const CoordinatorSettings& settings, std::string run_id, Clock& clock,
         Then before_deciding)
    : decider(rules, std::move(run_id), settings.master_addr, settings.master_port),
      clock_(clock),
      owner_(settings.owner),
      before_deciding_(std::move(before_deciding)),
      alarm_(clock.make_alarm()) {
  state.set_epoch(settings.epoch);
  if (owner_ != nullptr && owner_->records_worlds()) state.require_acknowledgements();
}

void Job::report(Peer peer, FromAgent message) {
  const TimePoint now = clock_.now();
  const auto tell = [&](auto& said) {
    using Said = std::remove_reference_t<decltype(said)>;
    if constexpr (std::is_same_v<Said, Stopping>) {
      state.stopping(peer, said.left, now);
    } else if constexpr (std::is_constructible_v<Report, Said>) {
      decider.report(peer, std::move(said), now);
    }
  };
  std::visit(tell, message);
}

void Job::ask_stacks(Peer peer, const std::shared_ptr<net::Link>& link) {
  askers_[peer] = link;
  decider.report(peer, AskStacks{}, clock_.now());
  deliver();
}

void Job::lost(Peer peer, const std::string& why, Loss loss) {
  // The link first: what the state decides next is not for this peer any more.
  links.erase(peer), askers_.erase(peer);
  decider.lost(peer, why, clock_.now(), loss);
}

// A list of members is encoded once, since thousands of them get the same one.
void Job::deliver() {
  std::shared_ptr<const World> world;
  std::shared_ptr<const Push> shared;
  std::string members, text;
  for (const Delivery& delivery : decider.take(clock_.now())) {
    const auto member = links.find(delivery.to);
    // It may be a client such as elastrunctl, which is not a member, and gets one answer.
    const auto asker = askers_.find(delivery.to);
    const auto link = member != links.end()    ? member->second
                      : asker != askers_.end() ? asker->second.lock()
                                               : nullptr;
    if (asker != askers_.end()) askers_.erase(asker);
    if (!link) continue;
    if (const auto* assigned = std::get_if<Assigned>(&delivery.notice)) {
      if (assigned->world != world) {
        world = assigned->world;
        members = encode_members(*world);
      }
      link->send(encode_assignment(*world, assigned->group_rank, members));
      continue;
    }
    const auto& push = std::get<std::shared_ptr<const Push>>(delivery.notice);
    if (push != shared) {
      shared = push;
      text = encode(FromCoordinator(*push));
    }
    link->send(text);
  }
  // One at a time; a world that has changed meanwhile is recorded by its own request.
  if (state.unacknowledged() && !recording_) record_world();
  const int before =
      std::exchange(stopping_groups_, state.world_fence().fence.stopping_groups().count);
  if (stopping_groups_ != before && owner_ != nullptr) owner_->stopping_changed();
  const int at_work = state.roster().count(MemberState::Stopping);
  const bool changed = std::exchange(stopping_, at_work) != at_work;
  if (changed && state.phase() == Phase::Joining && owner_ != nullptr) owner_->survivors_changed();
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
  const auto due = decider.deadline();
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
    decider.tick(clock_.now());
    deliver();
  });
}

}  // namespace elastrun::rendezvous
