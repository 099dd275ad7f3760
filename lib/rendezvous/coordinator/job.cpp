// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/job.hpp"

#include "rendezvous/wire/messages.hpp"

#include <utility>
#include <variant>

namespace elastrun::rendezvous {

Job::Job(Rules rules, const Coordinator::Settings& settings, std::string run_id, Clock& clock,
         std::function<void()> before_deciding)
    : state(rules, std::move(run_id), settings.master_addr, settings.master_port),
      clock_(clock),
      record_world_(settings.record_world),
      leavers_changed_(settings.leavers_changed),
      remnant_changed_(settings.remnant_changed),
      before_deciding_(std::move(before_deciding)),
      alarm_(clock.make_alarm()) {
  state.set_epoch(settings.epoch);
  if (record_world_) state.require_acknowledgements();
}

void Job::deliver() {
  std::shared_ptr<const World> world;
  std::shared_ptr<const Push> shared;
  std::string members, text;
  for (const Delivery& delivery : state.take()) {
    const auto link = links.find(delivery.to);
    if (link == links.end()) continue;
    if (const auto* assigned = std::get_if<Assigned>(&delivery.notice)) {
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
    link->second->send(text);
  }
  if (state.unacknowledged() && !recording_) record_world();
  const int before = std::exchange(leavers_, state.world_fence().fence.leavers().count);
  if (leavers_ != before && leavers_changed_) leavers_changed_();
  const int at_work = state.roster().count(MemberState::Stopping);
  const bool changed = std::exchange(stopping_, at_work) != at_work;
  if (changed && state.phase() == Phase::Joining && remnant_changed_) remnant_changed_();
  arm();
}

void Job::record_world() {
  recording_ = true;
  const WorldRecord world = *state.unacknowledged();
  record_world_(world, [this, alive = lifetime_.token(), world] {
    if (!alive) return;
    before_deciding_();
    recording_ = false;
    state.acknowledge(world, clock_.now());
    deliver();
  });
}

void Job::arm() {
  const auto due = state.deadline();
  if (due == armed_) return;
  armed_ = due;
  if (!due) return alarm_->disarm();
  alarm_->arm(*due, [this] {
    armed_.reset();
    before_deciding_();
    state.tick(clock_.now());
    deliver();
  });
}

}  // namespace elastrun::rendezvous
