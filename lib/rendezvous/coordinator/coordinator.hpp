// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "net/seal.hpp"
#include "rendezvous/membership/join_phase.hpp"
#include "rendezvous/membership/member_fence.hpp"
#include "rendezvous/membership/phase.hpp"
#include "rendezvous/membership/roster.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/membership/world_fence.hpp"
#include "rendezvous/membership/world_id.hpp"
#include "rendezvous/wire/agent_processes.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace elastrun::rendezvous {

/// Agents on the machine of their coordinator. A connection that has ended says little: a proxy may
/// have done it, and the agent be back in a moment. But here it can be seen whether its processes
/// have ended (kill -9 of all of them, their cgroup's end): then the job need not wait for it.
class LocalAgents {
 public:
  /// `gone` runs on the loop, once for each peer that is found so.
  LocalAgents(Clock& clock, std::function<void(Peer)> gone)
      : clock_(clock), gone_(std::move(gone)), look_(clock.make_alarm()) {}

  /// It has said which its processes are. Of other machines nothing is kept.
  void note(Peer peer, const AgentProcesses& processes);
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
class LostContact {
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
/// the state has decided. Takes connections from a listener that it does not own; decides by itself
/// only who is silent and who does not belong to this job.
class Coordinator {
 public:
  /// A world that may be at work for so long.
  struct KnownWorld {
    std::string run_id;
    WorldId id;
    int nodes = 0;
    Duration at_work{};
  };
  struct Settings {
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
    /// Asked before every decision: may this process still decide? A process that was paused finds
    /// the messages of its agents before any timer has run, and must not act on them. Empty:
    /// always.
    std::function<bool()> entitled;
    /// Records a job's world where a successor finds it, before it is given out, and runs
    /// `recorded` later. Empty: without successors.
    std::function<void(const std::string& run_id, const WorldRecord&,
                       std::function<void()> recorded)>
        record_world;
    /// Runs when a job is over, or has no agents any more and nothing of it is at work. May be
    /// empty.
    std::function<void(const std::string& run_id)> job_over;
    /// What an earlier life of this coordinator has recorded.
    std::vector<KnownWorld> known_worlds;
    /// Runs when more agents have been lost to silence than are left, before anything is decided:
    /// perhaps it is we who are cut off. May be empty.
    std::function<void()> cut_off;
    /// Runs when `leavers` has changed: a successor must find them recorded, too. May be empty.
    std::function<void()> leavers_changed;
    /// Runs while a round is being formed, when `remnant` has changed. May be empty.
    std::function<void()> remnant_changed;
  };

  static std::unique_ptr<Coordinator> make(boost::asio::io_context& loop, Clock& clock,
                                           std::shared_ptr<const net::Sealer> sealer,
                                           Settings settings);
  virtual ~Coordinator() = default;

  /// Takes over a connection that began with the bytes of an agent.
  virtual void serve(boost::asio::ip::tcp::socket socket, std::string first_bytes) = 0;

  /// A coordinator that may have been succeeded forms no rounds until it knows better.
  virtual void hold(bool held) = 0;
  /// Stops the running world: it may not be the only one any more.
  virtual void suspend(const std::string& why) = 0;
  /// An earlier coordinator's world may be at work until then, and they who had said goodbye to it;
  /// `disinherit`: that world has ended, and its unheard members end within `left`.
  virtual void inherit(const WorldRecord& last, TimePoint until, const Leavers& leavers) = 0;
  /// It has broken up, and that is left of it. All of those come but `may_miss`.
  virtual void inherit_remnant(const PreviousWorld& previous, const Remnant& remnant, int may_miss,
                               const Leavers& leavers) = 0;
  virtual void disinherit(Duration left) = 0;
  /// The job whose last world that was is over: members of it that come late are told so.
  virtual void conclude(const WorldId& last, const Done& verdict) = 0;
  /// Elected, or elected again: agents hear the new epoch and go on.
  virtual void set_epoch(std::int64_t epoch) = 0;
  /// Runs `ask` (once per agent) when an agent says that it has seen a higher epoch than ours.
  virtual void on_newer_epoch(std::function<void(std::int64_t)> ask) = 0;
  /// Tells all remaining agents that this coordinator goes: Lost with `requeue`, or, if another one
  /// will follow, just the end of the connection. Serves no agent after that.
  virtual void resign(const std::string& why, bool another_follows) = 0;

  /// Runs `then` on the loop once no agent that has said goodbye can be at work any more: their
  /// links have ended, or the time that each had named is over. In one log line if that takes long.
  virtual void await_leavers(std::function<void()> then) = 0;
  virtual Leavers leavers() const = 0;

  /// Agents connected at the moment (not status queries).
  virtual std::size_t agents() const = 0;
  /// Whether a job waits for something that only an entitled coordinator can decide.
  virtual bool is_needed() const = 0;
  /// Members of the last world, and for how long they may be at work if we leave them now.
  virtual Remnant remnant() const = 0;
  /// Whether others may be at work, whom we wait for.
  virtual bool is_fenced() const = 0;
  /// How the job has ended, if it has.
  virtual std::optional<Done> verdict() const = 0;
  /// Runs on the loop each time the last agent has gone.
  virtual void on_deserted(std::function<void()> react) = 0;
  /// What `elastrunctl status` shows: all jobs, as JSON.
  virtual std::string status() const = 0;
};

}  // namespace elastrun::rendezvous
