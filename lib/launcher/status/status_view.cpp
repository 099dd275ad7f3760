// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/status_view.hpp"

#include <fmt/format.h>

namespace elastrun::agent {

StatusView::StatusView(logs::StatusLine& line, const spec::JobSpec& job)
    : line_(line),
      several_nodes_(job.max_nodes > 1),
      place_(fmt::format("at {}: ", job.rdzv_endpoint)),
      workers_(job.nproc_per_node) {
  if (job.max_restarts > 0) status_.max_restarts = job.max_restarts;
}

void StatusView::phase(Phase phase, TimePoint) {
  status_.phase = phase_text(phase);
  if (phase == Phase::Joining && !several_nodes_) status_.phase = "starting";
  if (phase == Phase::Joining || phase == Phase::Waiting) status_.workers_up = 0;
  // None of them runs, and on 80 columns there must be room for where the others have to come.
  const bool meets = phase == Phase::Joining && several_nodes_;
  status_.workers = meets ? 0 : workers_;
  if (meets) status_.detail = place_;
  over_ = phase == Phase::Ended;
  if (over_) return line_.hide();
  line_.show(status_);
}

void StatusView::progress(const std::string& text) {
  if (over_) return;
  status_.detail = status_.workers == 0 && several_nodes_ ? place_ + text : text;
  line_.show(status_);
}

void StatusView::round_ready(const rendezvous::Round& round, Duration) {
  status_.nodes = round.group_world_size();
  if (status_.max_restarts) status_.restarts = *status_.max_restarts - round.restarts_left;
  status_.detail.clear();
}

void StatusView::started(const rendezvous::Round&, const std::vector<workers::Worker>& group,
                         Duration) {
  status_.workers_up = static_cast<int>(group.size());
  line_.show(status_);
}

void StatusView::failed(const workers::Judgement& judgement) {
  status_.workers_up = workers_ - static_cast<int>(judgement.failures.size());
  line_.show(status_);
}

void StatusView::restarting(const rendezvous::Restart& order) {
  if (status_.max_restarts) status_.restarts = *status_.max_restarts - order.restarts_left;
  status_.detail = order.cause.text;
}

void StatusView::hang(const JobHang& hang) {
  status_.detail = hangs::hang_text(hang.stacks);
  line_.show(status_);
}

void StatusView::ended(const JobResult&, const std::vector<workers::Worker>*) {
  line_.hide();
}

/// Of rank 0: the others are about there, too.
void StatusView::worker_said(const workers::Worker& worker, const workers::Message& message) {
  const auto step = workers::step_of(message);
  if (over_ || worker.rank != 0 || !step) return;
  status_.detail = fmt::format("step {}", *step);
  line_.show(status_);
}

}  // namespace elastrun::agent
