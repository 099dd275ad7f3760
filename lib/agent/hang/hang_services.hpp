// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/hang/expiration_timers.hpp"
#include "agent/hang/hang_watch.hpp"
#include "agent/hang/hung_stacks.hpp"
#include "agent/hang/stack_collector.hpp"
#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"

namespace elastrun::agent {

/// What a node has for workers that stand still: who offers stacks, the collector that takes them,
/// the watch that tells of no progress, the expiration timers.
class HangServices final : public Observer {
 public:
  /// Opens the FIFO of the timers, if there is to be one; the guardian removes its folder if this
  /// agent is killed. Borrows all.
  HangServices(RunContext& run, rendezvous::Session& session, WorkerChannel& channel);
  HangServices(const HangServices&) = delete;
  HangServices& operator=(const HangServices&) = delete;

  ExpirationTimers& timers() { return timers_; }
  const ExpirationTimers& timers() const { return timers_; }
  /// Takes what the rendezvous says of stacks, and says whether it did.
  bool took(const rendezvous::Push& push);
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
  guardian::Agent& guardian_;
  StackOffers offers_;
  ExpirationTimers timers_;
  HangWatch watch_;
  StackCollector collector_;
};

}  // namespace elastrun::agent
