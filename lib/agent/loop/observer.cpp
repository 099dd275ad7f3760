// SPDX-License-Identifier: Apache-2.0
#include "agent/loop/observer.hpp"

namespace elastrun::agent {

void Observers::phase(Phase phase, TimePoint now) {
  for (auto* one : all_) one->phase(phase, now);
}
void Observers::progress(const std::string& text) {
  for (auto* one : all_) one->progress(text);
}
void Observers::round_ready(const rendezvous::Round& round, Duration waited) {
  for (auto* one : all_) one->round_ready(round, waited);
}
void Observers::started(const rendezvous::Round& round, const std::vector<workers::Worker>& group,
                        Duration took) {
  for (auto* one : all_) one->started(round, group, took);
}
void Observers::joined(bool all) {
  for (auto* one : all_) one->joined(all);
}

void Observers::failed(const workers::Judgement& judgement) {
  for (auto* one : all_) one->failed(judgement);
}
void Observers::restarting(const rendezvous::Restart& order) {
  for (auto* one : all_) one->restarting(order);
}
void Observers::role_restarting(const rendezvous::Restart& order) {
  for (auto* one : all_) one->role_restarting(order);
}
void Observers::stopped(const std::vector<workers::Worker>& group, Duration took) {
  for (auto* one : all_) one->stopped(group, took);
}
void Observers::timer_expired(const ExpiredTimer& timer) {
  for (auto* one : all_) one->timer_expired(timer);
}
void Observers::timer_killed(const ExpiredTimer& timer) {
  for (auto* one : all_) one->timer_killed(timer);
}
void Observers::hang(const JobHang& hang) {
  for (auto* one : all_) one->hang(hang);
}
void Observers::worker_said(const workers::Worker& worker, const workers::Message& message) {
  for (auto* one : all_) one->worker_said(worker, message);
}
void Observers::held(const std::map<int, std::string>& ranks) {
  for (auto* one : all_) one->held(ranks);
}
void Observers::ended(const JobResult& result, const std::vector<workers::Worker>* last_group) {
  for (auto* one : all_) one->ended(result, last_group);
}

}  // namespace elastrun::agent
