// SPDX-License-Identifier: Apache-2.0

#include "goodput/account/restart_log.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace elastrun::goodput {

double WorkersStart::goodput() const {
  if (ran <= Duration::zero()) return 0;
  return std::clamp(static_cast<double>(productive.count()) / static_cast<double>(ran.count()), 0.0,
                    1.0);
}

void StartLog::begin(TimePoint now, Duration productive) {
  end(now, productive);
  if (starts_.size() == kMost) starts_.pop_front();
  WorkersStart start;
  start.number = ++count_;
  start.at = now - job_start_;
  starts_.push_back(std::move(start));
  taken_.assign(starts_.size(), {});
  begun_ = now;
  open_ = true;
}

/// The last work goes first: a job resumes at a step, and what came after it is done again.
void StartLog::lose(Duration lost) {
  for (std::size_t i = starts_.size(); i-- > 0;) {
    const Duration here = std::min(lost, starts_[i].productive);
    starts_[i].productive -= here;
    taken_[i] += here;
    lost -= here;
  }
}

/// Of the oldest first: what is kept lies before what is lost.
void StartLog::regain(Duration time) {
  productive_ += time;
  for (std::size_t i = 0; i < starts_.size(); ++i) {
    const Duration here = std::min(time, taken_[i]);
    starts_[i].productive += here;
    taken_[i] -= here;
    time -= here;
  }
}

void StartLog::settle(Duration productive) {
  const Duration gained = productive - std::exchange(productive_, productive);
  if (gained < Duration::zero()) return lose(-gained);
  if (!starts_.empty()) starts_.back().productive += gained;
}

void StartLog::step(std::int64_t number, Duration productive) {
  settle(productive);
  if (!open_) return;
  auto& start = starts_.back();
  if (!start.first_step) start.first_step = number;
  start.last_step = number;
}

void StartLog::end(TimePoint now, Duration productive) {
  if (!open_) return;
  settle(productive);
  open_ = false;
  starts_.back().ran = std::max(now - begun_, Duration::zero());
}

void StartLog::why(std::string text, bool better) {
  if (starts_.empty() || (!starts_.back().ended.empty() && !better)) return;
  starts_.back().ended = std::move(text);
}

std::vector<WorkersStart> StartLog::starts(TimePoint now, Duration productive) const {
  StartLog copy = *this;
  copy.settle(productive);
  if (open_) copy.starts_.back().ran = std::max(now - begun_, Duration::zero());
  // Steps that are told when the group has gone are of that start, too.
  for (auto& start : copy.starts_) start.ran = std::max(start.ran, start.productive);
  return {copy.starts_.begin(), copy.starts_.end()};
}

namespace {

constexpr std::array<std::string_view, 8> kPhases = {"joining",  "starting", "running", "settling",
                                                     "stopping", "waiting",  "barrier", "ended"};

}  // namespace

std::string_view phase_name(NodePhase phase) {
  return kPhases[static_cast<std::size_t>(phase)];
}

std::optional<NodePhase> phase_named(std::string_view name) {
  const auto found = std::ranges::find(kPhases, name);
  if (found == kPhases.end()) return std::nullopt;
  return static_cast<NodePhase>(found - kPhases.begin());
}

std::optional<NodePhase> phase_of(const telemetry::Record& record) {
  if (record.name != "phase") return std::nullopt;
  const auto* name = std::get_if<std::string>(record.find("phase"));
  return name == nullptr ? std::nullopt : phase_named(*name);
}

std::string_view stage_name(RestartStage stage) {
  constexpr std::array<std::string_view, kRestartStages> kNames = {
      "exit", "detect", "stop", "rendezvous", "spawn", "first_step", "redo"};
  return kNames[static_cast<std::size_t>(stage)];
}

Duration RestartPath::total() const {
  return std::accumulate(stages.begin(), stages.end(), Duration::zero());
}

RestartPath* RestartLog::going_on() {
  if (next_) return &*next_;
  return open_ ? &paths_.back() : nullptr;
}

/// What a path that is cut short was doing belongs to it; but where no step was ever reported,
/// it is unknown when its start was over.
void RestartLog::settle(TimePoint now) {
  auto* path = going_on();
  if (path == nullptr || (stage_ >= RestartStage::FirstStep && !last_step_)) return;
  path->stages[static_cast<std::size_t>(stage_)] += std::max(now - since_, Duration::zero());
  since_ = std::max(since_, now);  // what workers tell may be older
}

void RestartLog::begin(RestartStage stage, TimePoint now) {
  settle(now);
  open_ = false;
  next_.emplace();
  next_->at = now - job_start_;
  since_ = now;
  next_->last_step = last_step_;
  stage_ = stage;
}

void RestartLog::advance(RestartStage stage, TimePoint now) {
  settle(now);
  since_ = now;
  stage_ = stage;
}

void RestartLog::phase(NodePhase phase, TimePoint now) {
  switch (phase) {
    case NodePhase::Settling:
      return begin(RestartStage::Detect, now);
    case NodePhase::Stopping:
      return next_ ? advance(RestartStage::Stop, now) : begin(RestartStage::Stop, now);
    case NodePhase::Waiting:
      return advance(RestartStage::Rendezvous, now);
    case NodePhase::Joining:
      advance(RestartStage::Rendezvous, now);
      if (!next_) return;
      if (paths_.size() == kMost) paths_.erase(paths_.begin()), ++forgotten_;
      paths_.push_back(*std::exchange(next_, std::nullopt));
      open_ = true;
      return;
    case NodePhase::Starting:
      return advance(RestartStage::Spawn, now);
    case NodePhase::Running:
      return advance(RestartStage::FirstStep, now);
    case NodePhase::Barrier:
    case NodePhase::Ended:
      settle(now);
      next_.reset();
      open_ = false;
  }
}

Duration RestartLog::noticed_after(Duration time) {
  if (!next_) return {};
  const Duration before = std::max(time - next_->of(RestartStage::Detect), Duration::zero());
  // The failure was before the news of it.
  next_->at -= before;
  next_->stages[static_cast<std::size_t>(RestartStage::Detect)] += before;
  return before;
}

void RestartLog::exited_in(Duration time) {
  auto* path = going_on();
  if (path == nullptr || path->of(RestartStage::Exit) > Duration::zero()) return;
  path->at -= time;
  path->stages[static_cast<std::size_t>(RestartStage::Exit)] = time;
}

void RestartLog::restarting(std::string cause, TimePoint now) {
  // Nothing has failed on this node: its way begins with the stop.
  if (!next_) begin(RestartStage::Stop, now);
  next_->cause = std::move(cause);
}

void RestartLog::step(std::int64_t number, TimePoint now) {
  last_step_ = number;
  if (!open_ || next_) return;
  auto& path = paths_.back();
  settle(now);
  if (!path.first_step) path.first_step = number;
  stage_ = RestartStage::Redo;
  path.caught_up = !path.last_step || number >= *path.last_step;
  // Until the step of the failure is reached again all steps are done for the second time.
  open_ = !path.caught_up;
}

}  // namespace elastrun::goodput
