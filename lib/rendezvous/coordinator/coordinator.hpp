// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "core/system_clock.hpp"
#include "net/frame.hpp"
#include "net/link.hpp"
#include "net/listener.hpp"
#include "rendezvous/membership/state.hpp"
#include "rendezvous/wire/admission.hpp"
#include "rendezvous/wire/messages.hpp"
#include "spec/agreed_rules.hpp"
#include "store/server.hpp"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace elastrun::rendezvous {

/// Runs a coordinator that has successors, and must know or allow what that one does. The
/// defaults are those of one that has none.
class CoordinatorOwner {
 public:
  virtual ~CoordinatorOwner() = default;
  /// Asked before every decision: may this process still decide? A process that was paused finds
  /// the messages of its agents before any timer has run, and must not act on them.
  virtual bool may_decide() { return true; }
  /// Whether each world is recorded, where a successor finds it, before it is given out.
  virtual bool records_worlds() const { return false; }
  /// Does that, and runs `recorded` later.
  virtual void record_world(const std::string& /*run_id*/, const WorldRecord&, Then /*recorded*/) {}
  /// A job is over, or has no agents any more and nothing of it is at work.
  virtual void job_over(const std::string& /*run_id*/) {}
  /// More agents have been lost to silence than are left, and nothing is decided yet: perhaps it is
  /// we who are cut off.
  virtual void cut_off() {}
  /// Coordinator::stopping_groups has changed: a successor must find them recorded, too.
  virtual void stopping_changed() {}
  /// While a round is being formed, Coordinator::survivors has changed.
  virtual void survivors_changed() {}
  /// An agent says, once, that it has seen a higher epoch than ours.
  virtual void newer_epoch(std::int64_t) {}
};

struct CoordinatorSettings {
  /// The job it serves. Empty: any number of jobs, each forgotten when its last agent has gone.
  std::string run_id;
  /// Which start of it, as the scheduler tells; agents of another one are refused. Empty:
  /// unknown.
  std::string start;
  /// Not hosted by an agent (`elastrunctl store`): each job goes by the rules of the agent that
  /// comes first, and agents that lose this coordinator wait for it to come back.
  bool stand_alone = false;
  Rules rules;
  std::string master_addr;  // given to every round; empty: that of group rank 0
  std::uint16_t master_port = 0;
  /// 0: not elected yet. Agents that come first, by an entry whose writer does not know yet that
  /// it has won, are greeted once it does: what they say of the last world goes with its record.
  std::int64_t epoch = 1;
  Duration heartbeat = std::chrono::seconds(5);  // keep_alive_interval
  int heartbeats_missed = 3;                     // keep_alive_max_attempt
  CoordinatorOwner* owner = nullptr;             // borrowed; null: without successors
  /// What an earlier life of this coordinator has recorded, by run id.
  std::map<std::string, WorldRecord> known_worlds{};
};

/// Who is in, who is missing, which phase each node waits in and for how long
/// (elastrun-protocol(7)). Pure.
json::object describe(const State& state, TimePoint now);

/// Agents on the machine of their coordinator. A connection that has ended says little: a proxy may
/// have done it, and the agent be back in a moment. But here it can be seen whether its processes
/// have ended (kill -9 of all of them, their cgroup's end): then the job need not wait for it.
class LocalAgents {
 public:
  /// `gone` runs on the loop, once for each peer that is found so.
  LocalAgents(Clock& clock, std::function<void(Peer)> gone)
      : clock_(clock), gone_(std::move(gone)), look_(clock.make_alarm()) {}

  /// It has said which its processes are. Of other machines nothing is kept.
  void note(Peer peer, const AgentProcesses& processes) {
    if (are_ours(processes)) here_[peer] = processes;
  }
  /// Whether it is one of these, and nothing between it and us can be cut: it comes `from` an
  /// address of this machine itself.
  bool is_here(Peer peer, const boost::asio::ip::address& from) const;
  /// Its connection has ended; `without_word`: it has not said that it would. Then its processes
  /// are looked at for kTimeToReturn.
  void lose(Peer peer, bool without_word);

 private:
  static constexpr Duration kLook = std::chrono::milliseconds(2);

  struct Lost {
    AgentProcesses processes;
    TimePoint until;
  };
  void look();

  Clock& clock_;
  const std::function<void(Peer)> gone_;
  const std::unique_ptr<Alarm> look_;
  std::unordered_map<Peer, AgentProcesses> here_;
  std::unordered_map<Peer, Lost> lost_;
};

/// Whether it is the coordinator that is cut off, rather than its members: since the last world
/// more of them have been lost to silence than agents are left. Those who were lost then form the
/// larger part, and could go on if another leader was elected among them. Pure.
class CutOffDetector {
 public:
  /// An agent has been silent for too long; whether it is the coordinator that is cut off.
  /// `before`: the phase of its job until then. `left`: agents that are connected still, the
  /// coordinator's own included.
  bool silent(Phase before, std::size_t left) {
    // A world that is complete has forgotten those who were lost before it was formed.
    if (before != Phase::Joining) lost_ = 0;
    ++lost_;
    return before == Phase::Joining && lost_ > left;
  }
  /// An agent has come, or come back.
  void came() { lost_ -= lost_ > 0 ? 1 : 0; }

 private:
  std::size_t lost_ = 0;
};

/// The one that steps `State` for all agents of a job, over their connections, and tells each what
/// the state has decided; it decides by itself only who is silent and who does not belong to this
/// job. The port at which agents find it can also serve the workers' store of this node (static
/// rendezvous: everybody meets at MASTER_ADDR:MASTER_PORT).
class Coordinator {
 public:
  /// Listens from now on; where `ports` are given at the first of them that is free, whatever
  /// `listener` says. Fails with Io if none is.
  static Result<std::unique_ptr<Coordinator>> open(boost::asio::io_context& loop, Clock& clock,
                                                   std::shared_ptr<const net::Sealer> sealer,
                                                   net::Listener::Settings listener,
                                                   CoordinatorSettings settings,
                                                   std::optional<spec::PortRange> ports = {});
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;

  std::uint16_t port() const { return listener_->port(); }
  /// Connections of workers go to these stores from now on: to the next one if none is current, or
  /// the coordinator has given out its round. Without a store they are closed, as before.
  void share_store(const store::Stores& stores);

  /// Ends in good order: agents of a job that is over have `limit` to fetch the last word and go;
  /// agents of one that is not are told that the coordinator goes, because of `why`. Then `retired`
  /// runs on the loop, at once if no agent is left.
  void retire(const std::string& why, bool another_follows, Duration limit, Then retired);
  /// A coordinator that may have been succeeded forms no rounds until it knows better.
  // Agents stay connected: perhaps no successor was elected, and a running world needs no decision.
  void hold(bool held) {
    held_ = held;
    change_jobs([&](State& state) { state.hold(held, clock_.now()); });
  }
  /// Stops the running world: it may not be the only one any more.
  void suspend(const std::string& why) {
    change_jobs([&](State& state) { state.suspend(why, clock_.now()); });
  }
  /// An earlier coordinator's world may be at work; `disinherit`: that world has ended, and its
  /// unheard members end within `left`.
  void inherit(const InheritedWorld& world) {
    for (auto& [run_id, job] : jobs_) job->state.inherit(world);
    unattended_[settings_.run_id] = world;
  }
  void disinherit(Duration left);
  /// The job whose last world that was is over: members of it that come late are told so.
  void conclude(const WorldId& last, const Done& verdict) {
    over_ = {last, verdict};
    for (auto& [run_id, job] : jobs_) job->state.conclude(last, verdict);
  }
  /// Elected, or elected again: agents hear the new epoch and go on.
  void set_epoch(std::int64_t epoch);
  /// Tells all remaining agents that this coordinator goes: Lost with `requeue`, or, if another one
  /// will follow, just the end of the connection. Serves no agent after that.
  void resign(const std::string& why, bool another_follows);

  /// Runs `then` on the loop once no agent that has said goodbye can be at work any more, since
  /// only this coordinator knows of them: their links have ended, or the time that each had named
  /// is over. In one log line if that takes long.
  void await_stopping_groups(Then then) {
    on_all_stopped_ = std::move(then);
    look_for_stopping_groups();
  }
  /// Those of all jobs together.
  StoppingGroups stopping_groups() const {
    StoppingGroups all = stopping_groups_of_jobs();
    for (const auto& [run_id, world] : unattended_) all.add(world.fence.stopping_groups());
    return all;
  }

  /// Agents connected at the moment (not status queries).
  std::size_t agents() const { return agents_; }
  /// Whether other agents than that of this process are connected.
  bool serves_others() const { return agents_ > 1; }
  /// Whether a job waits for something that only an entitled coordinator can decide.
  bool is_needed() const {
    return std::ranges::any_of(
        jobs_, [](const auto& job) { return job.second->state.phase() == Phase::Joining; });
  }
  /// Members of the last world, and for how long they may be at work if we leave them now.
  Survivors survivors() const;
  /// Whether others may be at work, whom we wait for.
  bool is_fenced() const;
  /// How the job has ended, if it has.
  std::optional<Done> verdict() const;
  /// What `elastrunctl status` shows: all jobs, as JSON.
  std::string status() const;

 private:
  // One job: its state, the links of its agents, and what drives the one and feeds the others.
  // After each fact that `state` is given, `deliver` must be called.
  struct Job {
    State state;
    const std::unique_ptr<Alarm> alarm;
    std::unordered_map<Peer, std::shared_ptr<net::Link>> links{};
    std::unordered_map<Peer, std::weak_ptr<net::Link>> askers{};  // for stacks
    std::optional<TimePoint> armed{};
    TimePoint expected{};  // when that rings
    bool recording = false, told_end = false;
    int stopping_groups = 0, stopping = 0;
  };
  // A connection, from its first byte on.
  struct Connection {
    std::shared_ptr<net::Link> link;
    Job* job = nullptr;          // once it has said hello as an agent
    std::optional<Hello> hello;  // until it has joined
    bool greeted = false;
    std::string host;    // its name, by its hello
    int missed = 0;      // heartbeats in a row
    bool ended = false;  // it has said that its group has ended
  };

  Coordinator(boost::asio::io_context& loop, Clock& clock,
              std::shared_ptr<const net::Sealer> sealer, CoordinatorSettings settings);
  void serve(boost::asio::ip::tcp::socket socket, std::string first_bytes);
  void finish_retiring();
  // Before each decision: a process that was paused reads what has arrived, and sees the ends of
  // connections, before the timer rings that says its lease is over.
  void check_entitlement() {
    for (auto& [run_id, job] : jobs_) note_pause(*job);
    if (!held_ && settings_.owner != nullptr && !settings_.owner->may_decide()) hold(true);
  }
  void note_pause(Job& job);
  void report(Job& job, Peer peer, FromAgent message);
  void deliver(Job& job);
  void record_world(Job& job);
  void arm(Job& job);
  void hear(Peer peer, const std::string& payload);
  // The agent that replaces it is not its twin once it has gone.
  void note_life(Peer peer, const Connection& connection, const FromAgent& message) {
    if (connection.job == nullptr || std::holds_alternative<Leaving>(message)) return;
    if (connection.job->state.hear(peer, clock_.now())) deliver(*connection.job);
  }
  void welcome(Peer peer, Connection& connection, const Hello& hello);
  void ask_stacks(Peer peer, Connection& connection, const std::string& run_id);
  bool take_in(Peer peer, Connection& connection, Join& join);
  void enter(Peer peer, Connection& connection, const Rules& rules);
  void dismiss(Peer peer, const std::string& text) { dismiss(peer, Refusal{text}); }
  void dismiss(Peer peer, const Refusal& refusal);
  void lose(Peer peer, const Error& error);
  void remove(Peer peer, const std::string& why, Loss loss);
  void forget_lost(Peer peer);
  void watch_heartbeats();

  // The jobs
  Job& job_of(const std::string& run_id, const Rules& rules);
  template <class Change>
  void change_jobs(Change change) {
    for (auto& [run_id, job] : jobs_) {
      change(job->state);
      deliver(*job);
    }
  }
  void forget(const Job& job);
  void forget_fences();
  bool is_over_for(const Hello& hello) const;
  StoppingGroups stopping_groups_of_jobs() const {
    StoppingGroups all;
    for (const auto& [run_id, job] : jobs_)
      all.add(job->state.world_fence().fence.stopping_groups());
    return all;
  }
  void look_for_stopping_groups(bool say_so = false);

  boost::asio::io_context& loop_;
  Clock& clock_;
  const std::shared_ptr<const net::Sealer> sealer_;
  CoordinatorSettings settings_;
  const TimePoint ready_at_;
  // After a pause of this process it is not the others who were silent. What they have said
  // meanwhile has not been read yet; those who were paused with us need as long to wake.
  PauseTolerantAlarm heartbeat_;
  LocalAgents local_agents_;
  Then retired_, on_all_stopped_;
  bool told_stopping_ = false;
  const std::unique_ptr<Alarm> stopping_due_, fences_due_, retired_by_;
  Peer last_peer_ = 0;
  std::unordered_map<Peer, Connection> connections_;
  RateLimitedLog refusals_{"rendezvous"};
  std::map<std::string, std::shared_ptr<Job>> jobs_;  // by run id
  // Jobs without a connected agent whose worlds, or nodes that leave, may be at work.
  std::map<std::string, InheritedWorld> unattended_;
  std::optional<std::pair<WorldId, Done>> over_;  // an earlier job of this run id
  std::optional<Done> ended_;
  CutOffDetector cut_off_detector_;
  std::size_t agents_ = 0;
  bool held_ = false;
  std::unique_ptr<net::Listener> listener_;
  Lifetime lifetime_;  // posted reactions outlive it
};

}  // namespace elastrun::rendezvous
