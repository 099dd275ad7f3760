// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "net/link.hpp"
#include "rendezvous/coordinator/coordinator.hpp"
#include "rendezvous/membership/preemption.hpp"
#include "rendezvous/membership/standstill.hpp"
#include "rendezvous/membership/state.hpp"
#include "rendezvous/wire/messages.hpp"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace elastrun::rendezvous {

/// One job at a coordinator: its state, the links of its agents, and what drives the one and feeds
/// the others. After each fact that `state` is given, `deliver` must be called.
class Job {
 public:
  /// `before_deciding` runs before anything is decided because time has passed or an answer has
  /// come. Of `settings` are used: master_addr, master_port, epoch, record_world,
  /// leavers_changed, remnant_changed, job_over.
  Job(Rules rules, const Coordinator::Settings& settings, std::string run_id, Clock& clock,
      std::function<void()> before_deciding);
  ~Job() { lifetime_.end(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// What an agent that has joined says.
  void report(Peer peer, FromAgent message);
  /// Answers a client that is not an agent of the job with a StacksReport: where its workers stand.
  void ask_stacks(Peer peer, const std::shared_ptr<net::Link>& link);
  /// Workers that are stopped or traced, by rank, and by what.
  std::map<int, std::string> held() const { return standstill_.held(); }
  /// The link of an agent has ended, and why.
  void lost(Peer peer, const std::string& why, Loss loss);

  /// Before a fact: if this machine stood still, the wait for nodes goes on for as long. Facts of
  /// that time are read before any alarm rings.
  void note_pause();
  /// Tells the agents what the state has to tell, has the world recorded that waits for it, and
  /// arms the alarm.
  void deliver();
  /// Agents on this very machine come over loopback, an address that is of no use to the others: in
  /// a world with other machines they get the address under which those have found us.
  void note_reachable(const net::Link& link);

  State state;
  std::unordered_map<Peer, std::shared_ptr<net::Link>> links;
  /// Agents of earlier releases, which end a connection over words of stacks, or of saving.
  std::unordered_set<Peer> without_stacks, without_saves;

 private:
  void record_world();
  void arm();
  void tell_standstill(Peer peer, FromAgent message, TimePoint now);
  void tell_preemption(Peer peer, const FromAgent& message, TimePoint now);
  void preempt(const std::string& why, Duration deadline);
  void note_assigned(Peer peer, const Assigned& assigned);
  void note_renewing(Peer peer);
  void look_at_round();
  void deliver_stacks();

  Clock& clock_;
  const std::function<void(const std::string&, const WorldRecord&, std::function<void()>)>
      record_world_;
  const std::function<void(const std::string&)> job_over_;
  const std::function<void()> leavers_changed_, remnant_changed_;
  const std::function<void()> before_deciding_;
  const std::unique_ptr<Alarm> alarm_;
  std::optional<TimePoint> armed_;
  TimePoint expected_;  // when that rings
  bool recording_ = false, told_end_ = false;
  int leavers_ = 0, stopping_ = 0;
  Standstill standstill_;
  Preemption preemption_;
  std::unordered_map<Peer, std::weak_ptr<net::Link>> askers_;
  // Answers of the register outlive the job; this tells them that it has gone.
  Lifetime lifetime_;
};

}  // namespace elastrun::rendezvous
