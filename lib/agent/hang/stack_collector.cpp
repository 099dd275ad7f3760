// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/stack_collector.hpp"

#include "rendezvous/membership/standstill.hpp"
#include "rendezvous/wire/messages.hpp"
#include "system/flight_recorder.hpp"

#include <algorithm>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace elastrun::agent {
namespace {

// The coordinator reports after kTimeToAnswer at the latest; as much again is for the way.
constexpr Duration kLost = 2 * rendezvous::Standstill::kTimeToAnswer;
constexpr Duration kDumpsLimit = std::chrono::milliseconds(500);

}  // namespace

StackCollector::StackCollector(RunContext& run, rendezvous::Session& session,
                               const StackOffers& offers, WorkerChannel& channel, HangWatch& watch)
    : run_(run),
      session_(session),
      offers_(offers),
      channel_(channel),
      watch_(watch),
      calls_(run.loop.get_executor()) {}

bool StackCollector::took(const rendezvous::Push& push) {
  const auto* order = std::get_if<rendezvous::TakeStacks>(&push);
  if (order != nullptr) take(*order);
  const auto* report = std::get_if<rendezvous::StacksReport>(&push);
  if (report != nullptr) reported(*report);
  return order != nullptr || report != nullptr;
}

void StackCollector::asked() {
  const auto now = run_.clock.now();
  // An answer is lost with the connection to the coordinator.
  // One question for all clients; after kLost its answer will not come any more.
  if (asked_at_ && now - *asked_at_ < kLost) return;
  asked_at_ = now;
  session_.report(rendezvous::AskStacks{});
}

void StackCollector::on(const moment::Started& seen) {
  began_ = run_.clock.wall() - seen.took;
  workers_.clear();
  for (const auto& worker : seen.group) workers_.push_back({worker.rank, worker.pid, worker.pid});
}

/// Of a worker that is a script, or numactl(8), the first of its processes that has something to
/// tell; the data loaders of Python come later.
std::vector<StackCollector::Subject> StackCollector::subjects() const {
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

/// A worker may have another environment than its agent, by its job file or its script.
std::vector<std::string> StackCollector::dumps_of(const std::vector<Subject>& subjects,
                                                  const std::vector<std::string>& environment,
                                                  WallTime since) {
  std::vector<system::FlightRecorder> recorders;
  for (const auto& subject : subjects) {
    const auto own = system::environment_of(subject.process);
    recorders.push_back(system::flight_recorder_of(own.empty() ? environment : own, subject.rank));
  }
  return system::find_dumps(recorders, since);
}

void StackCollector::take(const rendezvous::TakeStacks& order) {
  if (!hung_stacks_) {
    hung_stacks_ =
        std::make_unique<HungStacks>(run_.loop, run_.clock, run_.launcher, run_.environment);
  }
  const auto subjects = this->subjects();
  std::vector<HungStacks::Hung> hung;
  for (const auto& subject : subjects) {
    // By a pidfd, and not by the number alone: that may be given to another process meanwhile,
    // which the signal that asks for a stack would end.
    const auto pidfd = ::syscall(SYS_pidfd_open, subject.process, 0);
    hung.push_back(
        {subject.process, UniqueFd(static_cast<int>(pidfd)), offers_.of(subject.process)});
  }
  const auto taking = std::make_shared<Taking>(order.id, subjects);
  if (order.hang) {
    calls_.make(
        "the pipes of the flight recorder",
        [subjects, environment = run_.environment, since = began_] {
          return dumps_of(subjects, environment, since);
        },
        [this, taking](std::vector<std::string> dumps) {
          taking->dumps = std::move(dumps);
          report(*taking);
        });
  } else {
    taking->dumps.emplace();
  }
  hung_stacks_->take(std::move(hung), [this, taking](HungStacks::Stacks stacks) {
    taking->stacks = std::move(stacks);
    if (!taking->dumps) await_dumps(taking);
    report(*taking);
  });
}

/// Stacks may be there first; a folder that does not answer holds them up no longer than this.
void StackCollector::await_dumps(std::shared_ptr<Taking> taking) {
  if (!dumps_limit_) dumps_limit_ = run_.clock.make_alarm();
  dumps_limit_->arm(run_.clock.now() + kDumpsLimit, [this, taking = std::move(taking)] {
    if (!taking->dumps) taking->dumps.emplace();
    report(*taking);
  });
}

/// Once, when all is there.
void StackCollector::report(Taking& taking) {
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

void StackCollector::reported(const rendezvous::StacksReport& report) {
  // A report comes to all nodes, and clients wait on those that have asked.
  if (std::exchange(asked_at_, std::nullopt)) {
    channel_.answer(rendezvous::encode(rendezvous::FromCoordinator(rendezvous::Push(report))));
  }
  if (report.hang) watch_.hangs(report);
}

}  // namespace elastrun::agent
