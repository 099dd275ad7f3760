// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/leave_taking.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

namespace elastrun::rendezvous {

Leavers leavers_of(const Jobs& jobs) {
  Leavers all;
  for (const auto& [run_id, job] : jobs) {
    all.add(job->state.world_fence().fence.leavers());
  }
  return all;
}

void LeaveTaking::look(const Jobs& jobs, bool say_so) {
  if (!then_) return;
  const Leavers leavers = leavers_of(jobs);
  const TimePoint now = clock_.now();
  if (!leavers.are_at_work(now)) {
    limit_->disarm();
    // Not inside this call, which a message of a leaver has brought about: `then` may end the
    // coordinator that is still reading it.
    return boost::asio::post(loop_, [alive = lifetime_.token(), then = std::exchange(then_, {})] {
      if (alive) then();
    });
  }
  if (say_so && !std::exchange(told_, true)) {
    log::info("rendezvous",
              "{} of the nodes that leave may still be saving: this node coordinates the job until "
              "they have ended, for {} at most",
              leavers.count, format_duration(leavers.until - now));
  }
  limit_->arm(leavers.until, [this, &jobs] { look(jobs); });
}

}  // namespace elastrun::rendezvous
