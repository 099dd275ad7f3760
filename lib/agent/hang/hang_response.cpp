// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/hang_response.hpp"

namespace elastrun::agent {

HangResponse::HangResponse(const Parts& parts)
    : watch_({.clock = parts.clock,
              .spec = parts.spec,
              .observers = parts.observers,
              .report = parts.report,
              .activity = parts.activity,
              .has_ended =
                  [worker_of = parts.worker_of](pid_t pid) {
                    const auto* worker = worker_of(pid);
                    return worker == nullptr || worker->exit.has_value();
                  }}),
      desk_({.loop = parts.loop,
             .clock = parts.clock,
             .launcher = parts.launcher,
             .offers = offers_,
             .worker_of = parts.worker_of,
             .report = parts.report,
             .answer = parts.answer,
             .on_hang = [this](const auto& report) { watch_.hangs(report); },
             .environment = parts.environment}) {}

/// What a node last said may be as old as its looks are apart: it looks again before all are held
/// to have hung.
rendezvous::Session::OnPush HangResponse::before(rendezvous::Session::OnPush on_push) {
  return [this, next = desk_.before(std::move(on_push))](rendezvous::Push push) {
    const auto* order = std::get_if<rendezvous::TakeStacks>(&push);
    if (order != nullptr && order->hang) watch_.look_now();
    next(std::move(push));
  };
}

bool HangResponse::heard(pid_t sender, const workers::Worker* worker,
                         const workers::Message& message) {
  // Not from workers, who could have their neighbours asked again and again.
  const bool asks = std::holds_alternative<workers::StacksAsked>(message);
  if (asks && worker == nullptr) desk_.asked();
  const auto* offer = std::get_if<workers::StacksOffered>(&message);
  if (offer != nullptr && worker != nullptr) offers_.heard(sender, *offer);
  if (worker != nullptr) watch_.heard(worker->rank, message);
  return asks || offer != nullptr;
}

void HangResponse::round_ready(const rendezvous::Round& round, Duration waited) {
  offers_.forget();
  watch_.round_ready(round, waited);
}

void HangResponse::started(const rendezvous::Round& round,
                           const std::vector<workers::Worker>& group, Duration took) {
  desk_.started(round, group, took);
  watch_.started(round, group, took);
}

void HangResponse::stopped(const std::vector<workers::Worker>& group, Duration took) {
  desk_.stopped(group, took);
}

}  // namespace elastrun::agent
