// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/hang/hang_watch.hpp"
#include "agent/hang/stack_desk.hpp"
#include "agent/hang/stack_offers.hpp"
#include "agent/loop/observer.hpp"

#include <boost/asio/io_context.hpp>
#include <functional>
#include <string>
#include <vector>

namespace elastrun::agent {

/// What a node has for workers that stand still: who offers stacks, the desk that takes them, the
/// watch that tells of no progress.
class HangResponse final : public Observer {
 public:
  struct Parts {
    boost::asio::io_context& loop;
    Clock& clock;
    process::Launcher& launcher;
    const spec::JobSpec& spec;
    Observer& observers;  // hear of `hang`; may include this object
    std::function<const workers::Worker*(pid_t)> worker_of;
    std::function<void(rendezvous::Report)> report;
    std::function<void(const std::string& text)> answer;  // as StackDesk's
    std::function<TimePoint()> activity;                  // as HangWatch's
    std::function<std::vector<std::string>()> environment;
  };
  explicit HangResponse(const Parts& parts);

  const StackOffers& offers() const { return offers_; }
  const std::vector<JobHang>& hangs() const { return watch_.all(); }
  rendezvous::Session::OnPush before(rendezvous::Session::OnPush on_push);
  /// What a process said over the channel; `worker`: to which it belongs, or null. False: it may be
  /// of interest to others, too.
  bool heard(pid_t sender, const workers::Worker* worker, const workers::Message& message);

  void child_signalled() { watch_.child_signalled(); }

  void phase(Phase phase, TimePoint now) override { watch_.phase(phase, now); }
  void round_ready(const rendezvous::Round& round, Duration waited) override;
  void started(const rendezvous::Round& round, const std::vector<workers::Worker>& group,
               Duration took) override;
  void stopped(const std::vector<workers::Worker>& group, Duration took) override;

 private:
  StackOffers offers_;
  HangWatch watch_;
  StackDesk desk_;
};

}  // namespace elastrun::agent
