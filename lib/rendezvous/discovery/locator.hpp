// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "net/endpoint.hpp"
#include "net/frame.hpp"
#include "rendezvous/coordinator/coordinator.hpp"
#include "rendezvous/election/election.hpp"
#include "rendezvous/membership/rules.hpp"
#include "store/server.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace elastrun::rendezvous {

/// Finds out whether the world that an earlier coordinator recorded has ended, when no member of it
/// joins. The agent of group rank 0 holds the port of its store as long as it lives, whether
/// anybody listens there or not; so if it was on this machine, and the port is free, that agent is
/// gone.
///
/// Nothing can be proved of another machine. That it refuses a connection says the same as a
/// firewall that rejects it, and as a port that is held for a worker which does not listen yet.
class PreviousWorldProbe {
 public:
  explicit PreviousWorldProbe(Clock& clock);
  /// Runs `gone` on the loop if that is so, also when it becomes so later.
  void probe(const RecordedWorld& recorded, Then gone);
  void stop() {
    again_->disarm();
    gone_ = nullptr;
  }

  /// This machine's network as no other one has it: its addresses are the same only there.
  static std::string own_network();

 private:
  void look();

  Clock& clock_;
  const std::unique_ptr<Alarm> again_;
  std::uint16_t port_ = 0;
  Then gone_;
};

/// What an elected coordinator writes beside its lease about its worlds, and makes of what an
/// earlier one has written.
class WorldRegister {
 public:
  explicit WorldRegister(Clock& clock);

  /// Asks for a world to be recorded; `done` runs once `recorded` is called. One at a time: a later
  /// one takes the place of one that is still to be recorded.
  void record(const WorldRecord& world, Then done);
  void recorded() {
    if (const auto recorded = std::exchange(recorded_, {})) recorded();
  }
  /// The job is over: members that come back late must learn it.
  void conclude(const Done& verdict);
  /// Whether a record belongs beside the lease: a coordinator without a world leaves the one that
  /// it has found.
  bool has_any() const { return !latest_.by.empty(); }
  /// Its coordinator goes, and leaves that much of it.
  void leave(const Survivors& survivors) {
    recorded_ = nullptr;
    latest_.survivors = survivors, latest_.left = true;
  }
  /// Members come back out of it: once that has taken a while, `write` is to record who has not.
  void watch_survivors(const Coordinator& coordinator, Then write);
  /// It, with what is left of it, the members that leave and the time that they have.
  std::string text(const Coordinator& coordinator);
  /// Tells the coordinator what may be at work for so long, or is over, and who leaves, and finds
  /// out what is gone.
  void inherit(const std::string& record, Coordinator& coordinator, Duration isolation);
  /// Whether the record that was found, and that nothing has replaced, tells of a job that is over.
  bool tells_of_end() const { return tells_of_end_; }
  /// Whether another leader has recorded a world since `inherit`.
  bool is_strange(const std::string& record) const {
    const auto recorded = decode_record(record);
    // What this leader inherited is another one's record, but no news.
    return recorded && recorded->by != nonce_ && record != inherited_;
  }
  void stop();

 private:
  // Who decides would form the next world now, as far as those go who are not there.
  std::optional<Survivors> survivors_of(const Coordinator& coordinator) const {
    if (latest_.verdict || !coordinator.is_needed() || coordinator.is_fenced()) return std::nullopt;
    const Survivors survivors = coordinator.survivors();
    return survivors.world == latest_.world.id ? std::optional(survivors) : std::nullopt;
  }

  Clock& clock_;
  const std::string nonce_;
  PreviousWorldProbe probe_;
  RecordedWorld latest_;
  const std::unique_ptr<Alarm> look_;
  bool looks_ = false;
  std::optional<std::pair<int, int>> recorded_survivors_;  // members, and those at work
  std::string inherited_;
  Then recorded_;
  bool tells_of_end_ = false;
};

/// Where the coordinator of a job is.
struct Place {
  net::Endpoint endpoint;
  std::int64_t epoch = 0;  // of its election; 0 without an election
  bool here = false;       // in this process
};

/// How the agents of a job find, or become, its coordinator. The only thing in which the dynamic
/// back ends differ.
class Locator {
 public:
  virtual ~Locator() { lifetime_.end(); }

  /// Answers once on the loop, never inside this call. May make this process the host, if it is its
  /// turn. Fails with Usage or Rendezvous if a retry is useless, with another code if it may help.
  void locate(Answer<Place> answer) {
    answer_ = std::move(answer);
    look();
  }
  /// The coordinator at that place has taken us in.
  virtual void accept(const Place&) {}
  /// That place does not answer: give another one as soon as possible; the same one only now and
  /// then, in case it comes back.
  virtual void reject(const Place&) {}
  /// What this node knows of its job: the highest epoch, which any later coordinator's must exceed,
  /// and the size of its world, for as many agents look for that one at the same time.
  virtual void learn(std::int64_t /*epoch*/, int /*nodes*/) {}
  /// Takes the answer away.
  virtual void cancel() { answer_ = nullptr; }
  /// Whether another coordinator takes the place of one that was lost.
  virtual bool elects() const = 0;
  /// Runs `moved` on the loop when a newer coordinator is known than the one located last.
  virtual void on_moved(Then) {}
  /// Workers of this node's store may come through the host's port.
  virtual void share_store(const store::Stores&) {}
  /// Whether this process is the host, and agents of other nodes are connected to it.
  virtual bool serves_others() const { return false; }
  /// Stops being the host, if it is one (Coordinator::retire); `retired` runs on the loop.
  virtual void retire(const std::string& why, Duration limit, Then retired) = 0;

 protected:
  Locator(boost::asio::io_context& loop, Clock& clock, std::shared_ptr<const net::Sealer> sealer,
          SessionSettings settings)
      : loop_(loop), clock_(clock), sealer_(std::move(sealer)), settings_(std::move(settings)) {}
  /// A coordinator in this process.
  CoordinatorSettings coordinator() const;
  /// Brings about that an answer is given.
  virtual void look() = 0;
  bool is_asked() const { return answer_ != nullptr; }
  /// Later: the caller of locate() has not armed its own timers yet.
  void give(Result<Place> place);

  boost::asio::io_context& loop_;
  Clock& clock_;
  const std::shared_ptr<const net::Sealer> sealer_;
  const SessionSettings settings_;
  Lifetime lifetime_;

 private:
  Answer<Place> answer_;
};

/// The coordinator of an endpoint that the user has given (`c10d`, `static`). Without
/// `config.is_host` this process hosts if the endpoint is an address of this machine and its port
/// is free; compared by interface addresses, never by names.
std::unique_ptr<Locator> make_fixed_locator(boost::asio::io_context& loop, Clock& clock,
                                            std::shared_ptr<const net::Sealer> sealer,
                                            SessionSettings settings, net::Endpoint endpoint);

/// Finds the coordinator by its leader lease, or becomes it when there is none (`etcd`, `file`).
///
/// The leader decides only while its lease lasts by its own clock, counted from before it asked for
/// it: when another one can take the lease, the old leader has stopped deciding, even if it was
/// paused meanwhile. Epochs do the rest: agents refuse a coordinator older than one they know.
/// A leader that cannot reach etcd or the file keeps its agents and their running round for
/// isolation_timeout, decides nothing new, and goes on under a new epoch when it is elected again.
///
/// Each world is recorded beside the lease before it is given out. A new coordinator forms none
/// until a member of the recorded one has come back, or the process of its group rank 0 is found to
/// be gone, or it must have stopped by itself.
std::unique_ptr<Locator> make_elected_locator(boost::asio::io_context& loop, Clock& clock,
                                              std::shared_ptr<const net::Sealer> sealer,
                                              std::unique_ptr<LeaderLease> lease,
                                              SessionSettings settings);

}  // namespace elastrun::rendezvous
