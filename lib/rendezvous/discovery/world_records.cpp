// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/discovery/world_records.hpp"

#include "core/text.hpp"

#include <utility>

namespace elastrun::rendezvous {
WorldRecords::WorldRecords(Clock& clock) : clock_(clock), nonce_(random_text(16)), probe_(clock) {}

void WorldRecords::record(const WorldRecord& world, std::function<void()> recorded) {
  latest_ = {world, nonce_, PreviousWorldProbe::own_network()};
  recorded_ = std::move(recorded);
  tells_of_end_ = false;
}

void WorldRecords::recorded() {
  if (const auto recorded = std::exchange(recorded_, {})) recorded();
}

void WorldRecords::conclude(const Done& verdict) {
  recorded_ = nullptr;
  latest_.by = nonce_;
  latest_.network = PreviousWorldProbe::own_network();
  latest_.verdict = verdict;
}

void WorldRecords::leave(const Leavers& stopping) {
  recorded_ = nullptr;
  latest_.stopping = stopping.count;
  latest_.stopping_for = stopping.until - clock_.now();
}

std::string WorldRecords::text(const Leavers& leavers) const {
  const TimePoint now = clock_.now();
  RecordedWorld recorded = latest_;
  if (leavers.are_at_work(now)) {
    recorded.leavers = leavers.count;
    recorded.leaving = leavers.until - now;
  }
  return encode_record(recorded);
}

void WorldRecords::inherit(const std::string& record, Coordinator& coordinator,
                           Duration isolation) {
  inherited_ = record;
  const auto recorded = decode_record(record);
  tells_of_end_ = recorded && recorded->verdict;
  if (!recorded) return;
  const TimePoint now = clock_.now();
  const PreviousWorld previous{recorded->world.round, 0, recorded->world.nodes};
  const Leavers leavers{recorded->leavers, now + recorded->leaving};
  if (recorded->verdict) {
    if (leavers.count > 0) coordinator.inherit(previous, now, leavers);
    return coordinator.conclude(recorded->world.round, *recorded->verdict);
  }
  if (recorded->stopping > 0) {
    return coordinator.inherit_stopping(
        previous, {recorded->stopping, now + recorded->stopping_for}, leavers);
  }
  coordinator.inherit(previous, now + isolation, leavers);
  probe_.probe(*recorded, [&coordinator] { coordinator.disinherit(); });
}

bool WorldRecords::is_strange(const std::string& record) const {
  const auto recorded = decode_record(record);
  return recorded && recorded->by != nonce_ && record != inherited_;
}

void WorldRecords::stop() {
  recorded_ = nullptr;
  probe_.stop();
}

}  // namespace elastrun::rendezvous
