// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/leave_taking.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <optional>
#include <utility>

namespace elastrun::rendezvous {

void LeaveTaking::look(const Jobs& jobs, bool say_so) {
  if (!then_) return;
  std::optional<TimePoint> limit;
  int leavers = 0;
  for (const auto& [run_id, job] : jobs) {
    limit = std::max(limit, job->state.clearance().leavers_limit());
    leavers += job->state.clearance().leavers();
  }
  const TimePoint now = clock_.now();
  if (!limit || *limit <= now) {
    limit_->disarm();
    return boost::asio::post(loop_, [alive = alive_, then = std::exchange(then_, {})] {
      if (*alive) then();
    });
  }
  if (say_so && !std::exchange(told_, true)) {
    log::info("rendezvous",
              "{} of the nodes that leave may still be saving: this node coordinates the job until "
              "they have ended, for {} at most",
              leavers, format_duration(*limit - now));
  }
  limit_->arm(*limit, [this, &jobs] { look(jobs); });
}

}  // namespace elastrun::rendezvous
