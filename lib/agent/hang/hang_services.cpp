// SPDX-License-Identifier: Apache-2.0

#include "agent/hang/hang_services.hpp"

#include "rendezvous/membership/standstill.hpp"
#include "rendezvous/wire/messages.hpp"
#include "system/process_stacks.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::agent {
namespace {

// The coordinator reports after kTimeToAnswer at the latest; as much again is for the way.
constexpr Duration kLost = 2 * rendezvous::Standstill::kTimeToAnswer;
constexpr Duration kDumpsLimit = std::chrono::milliseconds(500);

}  // namespace

HangServices::HangServices(RunContext& run, rendezvous::Session& session, workers::Channel& channel)
    : run_(run),
      session_(session),
      channel_(channel),
      timers_(run, offers_),
      watch_(run, session),
      hung_stacks_(run, offers_),
      calls_(run.loop.get_executor()),
      dumps_limit_(run.clock.make_alarm()) {
  timers_.open_pipe();
}

bool HangServices::took(const rendezvous::Push& push) {
  const auto* order = std::get_if<rendezvous::TakeStacks>(&push);
  // What a node last said may be as old as its looks are apart: it looks again before all are held
  // to have hung.
  if (order != nullptr && order->hang) watch_.look_now();
  if (order != nullptr) take(*order);
  const auto* report = std::get_if<rendezvous::StacksReport>(&push);
  if (report != nullptr) reported(*report);
  return order != nullptr || report != nullptr;
}

void HangServices::heard(const Moment& one) {
  dispatch(one, *this);
  timers_.heard(one);
  watch_.heard(one);
}

void HangServices::asked() {
  const auto now = run_.clock.now();
  // An answer is lost with the connection to the coordinator.
  // One question for all clients; after kLost its answer will not come any more.
  if (asked_at_ && now - *asked_at_ < kLost) return;
  asked_at_ = now;
  session_.report(rendezvous::AskStacks{});
}

void HangServices::on(const moment::Started& seen) {
  began_ = run_.clock.wall() - seen.took;
  workers_.clear();
  for (const auto& worker : seen.group) workers_.push_back({worker.rank, worker.pid, worker.pid});
}

/// Of a worker that is a script, or numactl(8), the first of its processes that has something to
/// tell; the data loaders of Python come later.
std::vector<HangServices::Subject> HangServices::subjects() const {
  auto subjects = workers_;
  for (const pid_t process : offers_.processes()) {
    const auto* worker = run_.worker_of(process);
    const auto subject = worker == nullptr
                             ? subjects.end()
                             : std::ranges::find(subjects, worker->pid, &Subject::worker);
    if (subject == subjects.end() || offers_.of(subject->process)) continue;
    // The worker itself may be a wrapper such as a shell.
    if (offers_.of(process)) subject->process = process;
  }
  return subjects;
}

void HangServices::take(const rendezvous::TakeStacks& order) {
  const auto subjects = this->subjects();
  const auto taking = std::make_shared<Taking>(order.id, subjects);
  if (order.hang) {
    calls_.make(
        "the pipes of the flight recorder",
        [subjects, environment = run_.environment, since = began_] {
          std::vector<system::FlightRecorder> recorders;
          for (const auto& one : subjects) {
            // A worker may have another environment than its agent, by its job file or its script.
            const auto own = system::environment_of(one.process);
            recorders.push_back(
                system::flight_recorder_of(own.empty() ? environment : own, one.rank));
          }
          return system::find_dumps(recorders, since);
        },
        [this, taking](std::vector<std::string> dumps) {
          taking->dumps = std::move(dumps);
          report(*taking);
        });
  } else {
    taking->dumps.emplace();
  }
  std::vector<pid_t> pids;
  for (const auto& subject : subjects) pids.push_back(subject.process);
  hung_stacks_.take(pids, [this, taking](HungStacks::Stacks stacks) {
    taking->stacks = std::move(stacks);
    report(*taking);
    if (taking->dumps) return;
    // A folder that does not answer holds the stacks up no longer than this.
    dumps_limit_->arm(run_.clock.now() + kDumpsLimit, [this, taking] {
      if (!taking->dumps) taking->dumps.emplace();
      report(*taking);
    });
  });
}

/// Once, when all is there.
void HangServices::report(Taking& taking) {
  // Called by the stacks, the dumps and the limit for these, in any order.
  if (!taking.stacks || !taking.dumps || std::exchange(taking.is_told, true)) return;
  std::vector<hangs::WorkerStack> all;
  for (const auto& subject : taking.subjects) {
    all.push_back({subject.rank, std::move((*taking.stacks)[subject.process])});
  }
  for (auto& part :
       rendezvous::parts_of({taking.id, hangs::group(all), std::move(*taking.dumps), true})) {
    session_.report(std::move(part));
  }
}

void HangServices::reported(const rendezvous::StacksReport& report) {
  // A report comes to all nodes, and clients wait on those that have asked.
  if (std::exchange(asked_at_, std::nullopt)) {
    channel_.answer(rendezvous::encode(rendezvous::FromCoordinator(rendezvous::Push(report))));
  }
  if (report.hang) watch_.hangs(report);
}

void HangServices::offered(pid_t sender, const workers::Worker& worker,
                           const workers::StacksOffered& offer) {
  offers_.heard(sender, offer);
  watch_.heard(worker.rank, offer);
}

void HangServices::end(JobResult& result, files::BlockingCalls& files) {
  result.expired_timers = timers_.expired();
  result.hangs = watch_.all();
  timers_.close_pipe(files);
}

}  // namespace elastrun::agent
