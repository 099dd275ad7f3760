// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/hang/expiration_timers.hpp"
#include "agent/hang/hang_watch.hpp"
#include "agent/hang/hung_stacks.hpp"
#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"
#include "rendezvous/session/session.hpp"
#include "workers/channel.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::agent {

/// What a node has for workers that stand still: who offers stacks, the watch that tells of no
/// progress, the expiration timers. Takes the stacks of this node's workers when the rendezvous
/// wants them, and brings those of the whole job to processes of elastrunctl(1) on this machine.
class HangServices final : public Observer {
 public:
  /// Opens the FIFO of the timers, if there is to be one; the guardian removes its folder if this
  /// agent is killed. Borrows all.
  HangServices(RunContext& run, rendezvous::Session& session, workers::Channel& channel);
  HangServices(const HangServices&) = delete;
  HangServices& operator=(const HangServices&) = delete;

  ExpirationTimers& timers() { return timers_; }
  const ExpirationTimers& timers() const { return timers_; }
  /// Takes what the rendezvous says of stacks, and says whether it did.
  bool took(const rendezvous::Push& push);
  /// A process that belongs to no worker wants to know where the workers of the job stand.
  void asked();
  /// A process of a worker offers its stacks.
  void offered(pid_t sender, const workers::Worker& worker, const workers::StacksOffered& offer);
  /// A worker said something that is not of its training: it lives.
  void wrote() { watch_.wrote(); }
  void child_signalled() { watch_.child_signalled(); }
  /// After the run: what hung and what expired. Removes the FIFO, by a thread.
  void end(JobResult& result, files::BlockingCalls& files);

  void heard(const Moment& one) override;
  void on(const moment::Started& seen);
  void on(const moment::Stopped&) { workers_.clear(); }
  // Pids of the last group may be given away by now.
  void on(const moment::RoundReady&) { offers_.forget(); }

 private:
  struct Subject {
    int rank = 0;
    pid_t worker = 0, process = 0;  // the process of that worker that knows most
  };
  struct Taking {
    std::int64_t id = 0;
    std::vector<Subject> subjects;
    std::optional<HungStacks::Stacks> stacks{};
    std::optional<std::vector<std::string>> dumps{};
    bool is_told = false;
  };
  std::vector<Subject> subjects() const;
  void take(const rendezvous::TakeStacks& order);
  void report(Taking& taking);
  void reported(const rendezvous::StacksReport& report);

  RunContext& run_;
  rendezvous::Session& session_;
  workers::Channel& channel_;
  StackOffers offers_;
  ExpirationTimers timers_;
  HangWatch watch_;
  HungStacks hung_stacks_;
  files::BlockingCalls calls_;
  const std::unique_ptr<Alarm> dumps_limit_;
  std::vector<Subject> workers_;
  WallTime began_;                     // the group
  std::optional<TimePoint> asked_at_;  // and not answered yet
};

}  // namespace elastrun::agent
