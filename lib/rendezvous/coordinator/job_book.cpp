// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/job_book.hpp"

#include "core/json.hpp"
#include "rendezvous/wire/status.hpp"

#include <algorithm>

namespace elastrun::rendezvous {
namespace {

// For how long a member that was lost may go on until it stops its group (see HeartbeatLease), also
// if it has just been paused, with a quarter for clocks that differ and machines that are busy.
Duration reaction_of(const Coordinator::Settings& settings) {
  return settings.heartbeat * 2 + settings.heartbeat * settings.heartbeats_missed / 4;
}
// As long as the links of both sides bear it, and the same quarter.
Duration silence_of(const Coordinator::Settings& settings) {
  return settings.heartbeat * (settings.heartbeats_missed + 2) * 5 / 4;
}

}  // namespace

JobBook::JobBook(const Coordinator::Settings& settings, Clock& clock,
                 std::function<void()> before_deciding)
    : settings_(settings),
      clock_(clock),
      before_deciding_(std::move(before_deciding)),
      // Agents of an earlier life of this store look for it twice in that time.
      ready_at_(settings.stand_alone ? clock.now() + kTimeToFollow : TimePoint()),
      doubts_over_(clock.make_alarm()) {
  for (const auto& world : settings.known_worlds) {
    MemberFence fence;
    fence.expect(world.id, world.nodes, 0);
    fenced_jobs_.inherit(world.run_id, {world.id, 0, world.nodes}, clock.now() + world.at_work,
                         std::move(fence));
  }
  forget_doubts();
}

Job& JobBook::open(const std::string& run_id, const Rules& rules, bool held) {
  auto& job = jobs[run_id];
  if (job) return *job;
  Rules own = rules;
  own.reaction = reaction_of(settings_);
  own.silence = silence_of(settings_);
  own.hosted = !settings_.stand_alone;
  job = std::make_unique<Job>(own, settings_, run_id, clock_, before_deciding_);
  // A world of which this store has forgotten may still be at work, and its members look for us: a
  // new one waits until they have had the time.
  if (clock_.now() < ready_at_) job->state.inherit({}, ready_at_);
  fenced_jobs_.hand_to(job->state);
  if (over_) job->state.conclude(over_->first, over_->second);
  job->state.hold(held, clock_.now());
  forget_doubts();
  return *job;
}

// Worlds of which no member has come in time. The list of worlds is told now, not with the next
// job.
void JobBook::forget_doubts() {
  for (const auto& run_id : fenced_jobs_.pass(clock_.now())) {
    if (settings_.job_over && !jobs.contains(run_id)) settings_.job_over(run_id);
  }
  const auto next = fenced_jobs_.next_end();
  if (!next || !settings_.job_over) return doubts_over_->disarm();
  doubts_over_->arm(*next, [this] { forget_doubts(); });
}

void JobBook::forget(const Job& job) {
  const State& state = job.state;
  if (state.phase() == Phase::Ended) {
    ended_ = state.verdict();
    // Members that were out of reach come late.
    if (!settings_.run_id.empty()) over_ = {state.past().last(), state.verdict()};
  }
  // A copy: the job goes with its name.
  const std::string run_id = state.run_id();
  const bool at_work = state.world_fence().is_up(clock_.now());
  fenced_jobs_.keep(state, clock_.now());
  jobs.erase(run_id);
  forget_doubts();
  if (!at_work && settings_.job_over) settings_.job_over(run_id);
}

void JobBook::inherit(const PreviousWorld& previous, TimePoint until, MemberFence fence,
                      const Leavers& leavers) {
  fence.inherit(leavers);
  for (auto& [run_id, job] : jobs) job->state.inherit(previous, until, fence);
  fenced_jobs_.inherit(settings_.run_id, previous, until, std::move(fence));
}

void JobBook::disinherit(Duration left) {
  fenced_jobs_.disinherit(left, clock_.now());
  forget_doubts();
  for (auto& [run_id, job] : jobs) {
    job->state.disinherit(left, clock_.now());
    job->deliver();
  }
}

void JobBook::conclude(const WorldId& last, const Done& verdict) {
  over_ = {last, verdict};
  for (auto& [run_id, job] : jobs) job->state.conclude(last, verdict);
}

std::optional<Done> JobBook::verdict() const {
  for (const auto& [run_id, job] : jobs) {
    if (job->state.phase() == Phase::Ended) return job->state.verdict();
  }
  return ended_;
}

bool JobBook::is_over_for(const Hello& hello) const {
  if (hello.epoch > 0 || hello.wants_status || hello.at_work) return false;
  // One of another start is refused before: this one is merely late.
  if (!settings_.start.empty() && !hello.start.empty()) return false;
  const auto job = jobs.find(hello.run_id);
  // All have left, and the agent that hosts us is about to: one that we took in would be lost.
  if (job == jobs.end()) return !settings_.stand_alone && ended_ && ended_->failed;
  return job->second->state.phase() == Phase::Ended && job->second->state.verdict().failed &&
         !job->second->state.awaits_latecomers();
}

bool JobBook::is_needed() const {
  return std::ranges::any_of(
      jobs, [](const auto& job) { return job.second->state.phase() == Phase::Joining; });
}

Remnant JobBook::remnant() const {
  Remnant all;
  for (const auto& [run_id, job] : jobs) {
    const Remnant left = job->state.remnant(clock_.now());
    all.members += left.members;
    all.at_work.add(left.at_work);
    if (left.world.is_later_than(all.world)) all.world = left.world;
  }
  return all;
}

bool JobBook::is_fenced() const {
  const TimePoint now = clock_.now();
  return fenced_jobs_.are_any(now) || std::ranges::any_of(jobs, [now](const auto& job) {
           return job.second->state.world_fence().is_up(now);
         });
}

std::string JobBook::status() const {
  const TimePoint now = clock_.now();
  json::array described;
  for (const auto& [run_id, job] : jobs) {
    described.emplace_back(describe(job->state, job->held(), now));
  }
  if (described.empty() && !settings_.stand_alone) {
    described.emplace_back(describe(State(settings_.rules, settings_.run_id), {}, now));
  }
  return json::serialize(
      json::object{{"stand_alone", settings_.stand_alone}, {"jobs", std::move(described)}});
}

}  // namespace elastrun::rendezvous
