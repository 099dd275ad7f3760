// SPDX-License-Identifier: Apache-2.0
#include "goodput/journals/catch_up.hpp"

#include "goodput/account/node_phase.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::goodput {
namespace {

using Step = CatchUp::Step;
using telemetry::Record;

bool is_of_agent(const Record& record) {
  return record.scope == "elastrun.agent";
}

std::optional<Step> step_of(NodePhase phase) {
  switch (phase) {
    case NodePhase::Running:
      return Step::Working;
    case NodePhase::Settling:
    case NodePhase::Stopping:
      return Step::Stopping;
    case NodePhase::Joining:
      return Step::Joining;
    case NodePhase::Starting:
      return Step::Starting;
    case NodePhase::Waiting:  // these say no more of the way than that the group is gone
    case NodePhase::Barrier:
    case NodePhase::Ended:
      break;
  }
  return std::nullopt;
}

std::optional<Step> step_of(const Record& record) {
  if (record.name == "group.gone") return Step::Gone;
  const auto phase = phase_of(record);
  return phase ? step_of(*phase) : std::nullopt;
}

}  // namespace

void CatchUp::told(const Record& record) {
  if (!is_of_agent(record)) return;
  if (record.name == "rendezvous.round") {  // comes after `starting`, which leads to it
    step_ = Step::Working;
    ordered_ = false;
    round_since_ = record.stamp.mono;
  } else if (record.name == "restart") {
    ordered_ = true;
  } else if (const auto step = step_of(record)) {
    step_ = *step;
  }
}

void CatchUp::missed(const Record& record, TimePoint at) {
  if (!is_of_agent(record)) return;
  if (record.name == "rendezvous.round") return missed_.clear();
  const bool order = record.name == "restart";
  const auto step = order ? std::nullopt : step_of(record);
  if (!order && !step) return;
  // A spare may wait since an earlier round: it still does, but what led to it is another story.
  const bool old = at <= round_since_;
  std::erase_if(missed_, [&](const Missed& one) {
    if (old) return true;
    return order ? !one.step : step && one.step && *one.step >= *step;
  });
  if (!order || !old) missed_.push_back({step, record});
}

std::vector<Record> CatchUp::take() {
  std::vector<Record> untold;
  // A group that joins, or starts, has had its order: the same one by another journal would be a
  // second restart.
  const bool orders = !ordered_ && step_ < Step::Joining;
  for (auto& one : std::exchange(missed_, {})) {
    if (one.step ? *one.step > step_ : orders) untold.push_back(std::move(one.record));
  }
  for (const auto& record : untold) told(record);
  return untold;
}

}  // namespace elastrun::goodput
