// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "rendezvous/coordinator/job.hpp"

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace elastrun::rendezvous {

using Jobs = std::map<std::string, std::unique_ptr<Job>>;

/// Those of all jobs together.
Leavers leavers_of(const Jobs& jobs);

/// A coordinator that goes waits for the members that have said goodbye: only it knows of them.
class LeaveTaking {
 public:
  LeaveTaking(boost::asio::io_context& loop, Clock& clock)
      : loop_(loop), clock_(clock), limit_(clock.make_alarm()) {}
  ~LeaveTaking() { lifetime_.end(); }

  /// Runs `then` on the loop when none of their groups can be at work any more. `jobs` is borrowed.
  void await(const Jobs& jobs, std::function<void()> then) {
    then_ = std::move(then);
    look(jobs);
  }
  bool is_awaited() const { return then_ != nullptr; }
  /// To be called when a link has ended, or a job.
  void look(const Jobs& jobs, bool say_so = false);

 private:
  boost::asio::io_context& loop_;
  Clock& clock_;
  const std::unique_ptr<Alarm> limit_;
  std::function<void()> then_;
  bool told_ = false;
  Lifetime lifetime_;
};

}  // namespace elastrun::rendezvous
