// SPDX-License-Identifier: Apache-2.0
#include "launcher/workers/worker_messages.hpp"

#include <concepts>
#include <utility>
#include <variant>

namespace elastrun::agent {
namespace {

template <class Type, class... All>
concept OneOf = (std::same_as<Type, All> || ...);

template <class... Consumers>
struct Overloads : Consumers... {
  using Consumers::operator()...;
};

}  // namespace

void WorkerMessages::heard(workers::Channel::Sender from, workers::Message message) const {
  const auto* worker = agent_.worker_of(from.worker != 0 ? from.worker : from.process);
  if (worker != nullptr) return heard(from.process, *worker, std::move(message));
  if (std::holds_alternative<workers::StacksAsked>(message)) return hang_.asked();
  if (const auto* ask = std::get_if<workers::PreemptAsked>(&message)) {
    return agent_.preempt("elastrunctl preempt", ask->deadline);
  }
  // An orphan of a worker that has ended: if it has returned, it waits for no other.
  channel_.release(from.process);
}

void WorkerMessages::heard(pid_t sender, const workers::Worker& worker,
                           workers::Message message) const {
  using namespace workers;
  const auto tell_observers = [&] { observers_.heard(moment::WorkerSaid{worker, message}); };
  std::visit(
      Overloads{
          // WorkerRecords, an observer, has samples as well as the live page, which charts them.
          [&](const OneOf<StepDone, CheckpointDone, MetricSample, PhaseEntered,
                          GoodputEntries> auto&) { tell_observers(); },
          [&](const Returned&) { tell_observers(), agent_.returned(worker.pid); },
          [&](const OneOf<WorkerEvent, SamplesTold> auto&) {
            hang_.wrote();
            records_.heard(worker, std::move(message));
          },
          [&](const TimerSet& timer) {
            hang_.wrote();
            hang_.timers().heard(sender, timer);
          },
          [&](const StacksOffered& offer) { hang_.offered(sender, worker, offer); },
          // Not from workers, who could have their neighbours asked again and again; the channel
          // keeps the last two for itself.
          [](const OneOf<StacksAsked, PreemptAsked, SentFrom, NotTold> auto&) {}},
      message);
}

void WorkerMessages::refused(pid_t worker) const {
  if (const auto* one = agent_.worker_of(worker)) records_.refused(*one, 1);
}

}  // namespace elastrun::agent
