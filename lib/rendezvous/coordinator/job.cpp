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
      note_world_(settings.note_world),
      leavers_changed_(settings.leavers_changed),
      before_deciding_(std::move(before_deciding)),
      alarm_(clock.make_alarm()) {
  state.set_epoch(settings.epoch);
  if (note_world_) state.require_licences();
}

void Job::deliver() {
  std::shared_ptr<const World> world;
  std::shared_ptr<const Push> shared;
  std::string members, text;
  for (const Delivery& delivery : state.take()) {
    const auto link = links.find(delivery.to);
    if (link == links.end()) continue;
    if (const auto* seated = std::get_if<Seated>(&delivery.notice)) {
      if (seated->world != world) {
        world = seated->world;
        members = encode_members(*world);
      }
      link->second->send(encode_seat(*world, seated->group_rank, members));
      continue;
    }
    const auto& push = std::get<std::shared_ptr<const Push>>(delivery.notice);
    if (push != shared) {
      shared = push;
      text = encode(FromCoordinator(*push));
    }
    link->second->send(text);
  }
  if (state.unlicensed() && !noting_) note_world();
  const int before = std::exchange(leavers_, state.clearance().fence.leavers().count);
  if (leavers_ != before && leavers_changed_) leavers_changed_();
  arm();
}

void Job::note_world() {
  noting_ = true;
  const WorldNote world = *state.unlicensed();
  note_world_(world, [this, alive = alive_, world] {
    if (!*alive) return;
    before_deciding_();
    noting_ = false;
    state.license(world, clock_.now());
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
