// SPDX-License-Identifier: Apache-2.0
#include "launcher/workers/worker_messages.hpp"

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <variant>

namespace elastrun::agent {
namespace {

using Parts = WorkerMessages::Parts;
struct Said {
  pid_t sender = 0;
  const workers::Worker& worker;
  workers::Message& message;
};

void to_observers(const Parts& to, Said said) {
  to.observers.worker_said(said.worker, said.message);
}

void to_records(const Parts& to, Said said) {
  to.hang.wrote();
  to.records.heard(said.worker, std::move(said.message));
}

void to_timers(const Parts& to, Said said) {
  to.hang.wrote();
  to.timers.heard(said.sender, std::get<workers::TimerSet>(said.message));
}

void to_stacks(const Parts& to, Said said) {
  to.hang.offered(said.sender, said.worker, std::get<workers::StacksOffered>(said.message));
}

void to_agent(const Parts& to, Said said) {
  to.observers.worker_said(said.worker, said.message);
  to.returned(said.worker.pid);
}

void to_nothing(const Parts&, Said) {}

struct Row {
  std::size_t type;
  void (*consumer)(const Parts&, Said);
};

template <class Type, class... All>
consteval std::size_t index_in(std::type_identity<std::variant<All...>>) {
  std::size_t index = 0;
  (void)((std::is_same_v<Type, All> || (++index, false)) || ...);
  return index;
}
template <class Type>
consteval Row row(void (*consumer)(const Parts&, Said)) {
  return {index_in<Type>(std::type_identity<workers::Message>()), consumer};
}

constexpr std::array kTable = {
    row<workers::StepDone>(to_observers), row<workers::CheckpointDone>(to_observers),
    // WorkerRecords, an observer, has samples as well as the live page, which charts them.
    row<workers::MetricSample>(to_observers), row<workers::WorkerEvent>(to_records),
    row<workers::Returned>(to_agent), row<workers::TimerSet>(to_timers),
    row<workers::StacksOffered>(to_stacks), row<workers::PhaseEntered>(to_observers),
    row<workers::GoodputEntries>(to_observers),
    // Not from workers, who could have their neighbours asked again and again.
    row<workers::StacksAsked>(to_nothing), row<workers::PreemptAsked>(to_nothing),
    // The channel keeps these for itself.
    row<workers::SentFrom>(to_nothing), row<workers::NotTold>(to_nothing),
    row<workers::SamplesTold>(to_records)};

consteval bool is_in_order() {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (kTable[i].type != i) return false;
  }
  return kTable.size() == std::variant_size_v<workers::Message>;
}
static_assert(is_in_order(), "one row for each type of message, in the order of the variant");

}  // namespace

void WorkerMessages::heard(workers::Channel::Sender from, workers::Message message) const {
  const auto* worker = parts_.worker_of(from.worker != 0 ? from.worker : from.process);
  if (worker != nullptr) {
    return kTable[message.index()].consumer(parts_, {from.process, *worker, message});
  }
  if (std::holds_alternative<workers::StacksAsked>(message)) return parts_.hang.asked();
  if (const auto* ask = std::get_if<workers::PreemptAsked>(&message)) {
    return parts_.preempt("elastrunctl preempt", ask->deadline);
  }
  // An orphan of a worker that has ended: if it has returned, it waits for no other.
  parts_.release(from.process);
}

void WorkerMessages::refused(pid_t worker) const {
  if (const auto* one = parts_.worker_of(worker)) parts_.records.refused(*one, 1);
}

}  // namespace elastrun::agent
