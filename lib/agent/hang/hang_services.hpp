// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/hang/expiration_timers.hpp"
#include "agent/hang/hang_watch.hpp"
#include "agent/hang/stack_collector.hpp"
#include "agent/hang/stack_offers.hpp"
#include "agent/loop/observer.hpp"
#include "process/guardian.hpp"

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace elastrun::agent {

/// What a node has for workers that stand still: who offers stacks, the collector that takes them,
/// the watch that tells of no progress, the expiration timers.
class HangServices final : public Observer {
 public:
  struct Parts {
    boost::asio::io_context& loop;
    Clock& clock;
    process::Launcher& launcher;
    guardian::Agent& guardian;  // removes the folder of the timers' FIFO
    const spec::JobSpec& spec;
    PostFact post;  // as HangWatch's and ExpirationTimers'
    std::function<const workers::Worker*(pid_t)> worker_of;
    std::function<void(rendezvous::Report)> report;
    std::function<void(const std::string& text)> answer;  // as StackCollector's
    std::function<void()> catch_up;                       // as ExpirationTimers'
    /// As HangWatch's; requests of timers count here.
    std::function<TimePoint()> activity;
    std::function<std::vector<std::string>()> environment;
  };
  /// Opens the FIFO of the timers, if there is to be one.
  static std::unique_ptr<HangServices> make(Parts parts);

  HangServices(const HangServices&) = delete;
  HangServices& operator=(const HangServices&) = delete;

  ExpirationTimers& timers() { return timers_; }
  rendezvous::Session::OnPush before(rendezvous::Session::OnPush on_push);
  /// A process that belongs to no worker wants to know where the workers stand.
  void asked() { collector_.asked(); }
  /// A process of a worker offers its stacks.
  void offered(pid_t sender, const workers::Worker& worker, const workers::StacksOffered& offer);
  /// A worker said something that is not of its training: it lives.
  void wrote() { watch_.wrote(); }
  void child_signalled() { watch_.child_signalled(); }
  /// After the run: what hung and what expired. Removes the FIFO, by a thread.
  void end(JobResult& result, files::BlockingCalls& files);

  void heard(const Moment& one) override {
    // Pids of the last group may be given away by now.
    if (std::holds_alternative<moment::RoundReady>(one)) offers_.forget();
    timers_.heard(one);
    collector_.heard(one);
    watch_.heard(one);
  }

 private:
  explicit HangServices(const Parts& parts);

  guardian::Agent& guardian_;
  StackOffers offers_;
  ExpirationTimers timers_;
  HangWatch watch_;
  StackCollector collector_;
};

}  // namespace elastrun::agent
