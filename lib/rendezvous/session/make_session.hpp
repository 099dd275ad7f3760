// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "net/frame.hpp"
#include "rendezvous/discovery/locator.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/membership/rules.hpp"
#include "rendezvous/session/handler.hpp"
#include "rendezvous/session/session.hpp"
#include "rendezvous/wire/messages.hpp"
#include "spec/agreed_rules.hpp"
#include "spec/job_spec.hpp"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace elastrun::rendezvous {

/// A session that pushes from the loop, as long as it is open. Loop and clock must outlive it.
class PushingSession : public Session {
 public:
  ~PushingSession() override { lifetime_.end(); }
  void open(OnPush on_push) override { on_push_ = std::move(on_push); }
  std::string backend() const override { return backend_; }
  std::string run_id() const override { return run_id_; }

 protected:
  PushingSession(boost::asio::io_context& loop, Clock& clock, std::string backend,
                 std::string run_id)
      : loop_(loop), clock_(clock), backend_(std::move(backend)), run_id_(std::move(run_id)) {}
  /// Pushes, later: the agent may call close() from within `on_push_`.
  void push(Push push) {
    boost::asio::post(loop_, [this, alive = lifetime_.token(), push = std::move(push)]() mutable {
      if (alive && !closed_) on_push_(std::move(push));
    });
  }

  boost::asio::io_context& loop_;
  Clock& clock_;
  const std::string backend_, run_id_;
  bool closed_ = false;

 private:
  OnPush on_push_;
  // Posted pushes outlive the session; this tells them that it has gone.
  Lifetime lifetime_;
};

/// Those of `all`, the addresses of this machine, from which its workers may come to the store
/// instead of `address`: theirs is that of the route to the store, which need not be the one by
/// which their agent came to the coordinator. Without loopback, which is every machine's own, and
/// kMaxAlternateAddresses at most.
std::vector<std::string> alternate_addresses(const std::string& address,
                                             const std::vector<boost::asio::ip::address>& all);

/// An agent's own part in the job, across connections and coordinators. Pure.
class Membership {
 public:
  /// `instance`: for a node that names none.
  explicit Membership(std::string instance) : instance_(std::move(instance)) {}

  /// Its group is gone: it asks for membership.
  void want(Node self) {
    self_ = std::move(self);
    state_ = MemberState::Wanted;
  }
  void sit(const Round& round) {
    previous_ = {round.id(), round.restarts(), round.group_world_size(), round.group_rank};
    restarts_left_ = round.restarts_left;
    state_ = MemberState::Held;
    renews_ = false;
    stops_by_.reset();
  }
  /// A worker has failed: the group is being stopped, although it is a member.
  void fail(TimePoint now) { stops_by_ = now + self_.grace; }
  /// Its group has to stop; false: it was not a member. `renews`: its role alone starts again.
  bool give_up(TimePoint now, bool renews = false) {
    if (state_ != MemberState::Held) return false;
    state_ = MemberState::None;
    renews_ = renews;
    if (!stops_by_) fail(now);
    return true;
  }
  /// The coordinator restarts all of the job, or a part of it.
  void hear(const Restart& order) {
    if (order.attempt_spent) ++previous_.attempt;
    restarts_left_ = order.restarts_left;
    if (order.memory) checkpoint_ = std::max(checkpoint_, order.memory->checkpoint);
  }
  /// A worker here has saved: with --restart-policy auto that gives the restarts back.
  void saved(std::int64_t checkpoint, const Rules& rules) {
    if (!rules.restart_policy_auto || checkpoint <= checkpoint_) return;
    checkpoint_ = checkpoint, restarts_left_ = rules.max_restarts;
  }
  /// Whether that is the round that it was in, in which its role starts again.
  bool is_started_again(const Round& round) const {
    return renews_ && round.again && wants_membership() && round.id() == previous_.id;
  }
  /// It goes for good, and its group ends within `grace`; 0: it has none.
  void leave(TimePoint now, Duration grace) {
    leaves_ = true;
    stops_by_ = now + grace;
  }
  /// Learns of a world that it does not belong to.
  void learn(const PreviousWorld& world) {
    if (world.id.is_later_than(knows_.id)) knows_ = world;
  }

  bool wants_membership() const { return state_ == MemberState::Wanted; }
  const PreviousWorld& previous() const { return previous_; }
  const std::string& role() const { return self_.role; }
  /// How long its group may be at work, which is being stopped; none if it is not.
  std::optional<Duration> at_work(TimePoint now) const {
    if ((state_ != MemberState::None && !leaves_) || previous_.id.round == 0) return std::nullopt;
    return std::max<Duration>(stops_by_.value_or(now) - now, Duration::zero());
  }
  bool is_saving(TimePoint now) const { return at_work(now).value_or(Duration()) > Duration(); }

  /// What it says of itself. `address`: if it has named none.
  Join describe(const std::string& address, const Rules& rules, int node_rank);
  /// What its agent is told when its coordinator is lost.
  Restart restart_after_loss(const std::string& why) const;
  /// Under which name it was described last.
  const std::string& id() const { return id_; }

 private:
  const std::string instance_;
  Node self_;
  std::string id_;
  PreviousWorld previous_, knows_;
  // None: not asked for since it was told to stop.
  enum class MemberState { None, Wanted, Held } state_ = MemberState::None;
  std::optional<TimePoint> stops_by_;
  int restarts_left_ = 0;         // as the coordinator would say
  std::int64_t checkpoint_ = -1;  // up to which it has refilled them
  bool leaves_ = false;
  bool renews_ = false;
};

/// A member's proof that its coordinator still counts on it. Pure. Proof is as old as the heartbeat
/// that was answered, not as the answer: an answer that the network has kept for a minute proves
/// nothing of that minute. So when a coordinator replaces a silent member, after `silence` without
/// a word from it, the member has stopped its group by itself not later than two heartbeat
/// intervals after that.
///
/// The second one is for a member that was paused, which finds its proof too old when it wakes:
/// perhaps everybody was paused, so it asks once, and waits one interval for the answer. If it was
/// replaced meanwhile, it hears that instead. While it sleeps nothing bounds what workers do that
/// do not sleep with it.
class HeartbeatLease {
 public:
  enum class Look {
    Sound,
    Ask,      // we were paused: a heartbeat must be sent now, then `sent`
    Waiting,  // for the answer to that
    Over,
  };

  /// The other side has been greeted at `proof`, and has answered.
  void begin(TimePoint proof, Duration heartbeat, int heartbeats_missed) {
    proof_ = proof;
    heartbeat_ = heartbeat;
    silence_ = heartbeat * heartbeats_missed;
    unanswered_.clear();
    answer_until_ = {};
    due_.reset();
  }
  void sent(TimePoint now) { unanswered_.push_back(now); }
  void answered() {
    if (unanswered_.empty()) return;
    proof_ = unanswered_.front();
    unanswered_.pop_front();
  }
  /// All that was sent.
  bool is_answered() const { return unanswered_.empty(); }

  /// To be asked when the alarm rings for which `next_look` was the time, and at each word.
  Look look(TimePoint now) {
    const bool paused = due_ && now - *due_ > heartbeat_;
    if (paused) due_ = answer_until_ = now + heartbeat_;
    if (!is_over(now)) return Look::Sound;
    if (paused) return Look::Ask;
    return now < answer_until_ ? Look::Waiting : Look::Over;
  }
  /// When to look again, at the latest; if it is sound then, the next heartbeat is to be sent.
  TimePoint next_look(TimePoint now) {
    due_ = is_over(now) ? std::max(end(), answer_until_) : std::min(now + heartbeat_, end());
    return *due_;
  }

  TimePoint end() const { return proof_ + silence_ + heartbeat_; }
  bool is_over(TimePoint now) const { return now >= end(); }
  Duration silence() const { return silence_; }

 private:
  TimePoint proof_;
  Duration heartbeat_ = std::chrono::seconds(5), silence_ = std::chrono::seconds(15);
  std::deque<TimePoint> unanswered_;
  std::optional<TimePoint> due_;  // none: it is not looked at
  TimePoint answer_until_;
};

/// One agent's connection to a coordinator, whichever way it is found, and across coordinators:
/// when one is lost and another may follow, this node's group is stopped and joins again there.
/// Fills in what the node leaves out: its address, its id, its instance.
std::unique_ptr<Session> make_remote_session(boost::asio::io_context& loop, Clock& clock,
                                             std::shared_ptr<const net::Sealer> sealer,
                                             std::unique_ptr<Locator> locator,
                                             SessionSettings settings, StorePlan store_plan = {});

struct HandlerSettings {
  const spec::JobSpec& job;     // must outlive the session
  BootstrapStoreInfo master{};  // wins over what the handler says; empty and 0: not fixed
  Duration close_timeout = std::chrono::seconds(30);  // for shutdown() to return
};

/// The session of an agent whose nodes are brought together by a user's handler. Rounds are the
/// handler's; restarts are counted here, for the job as far as the agents of a round know of each
/// other's (agree_on_round). As in torchelastic the other nodes are not told of a failure: they see
/// it in num_nodes_waiting when this node wants to join again.
///
/// Shares the handler with calls that it may not have returned from. Loop and clock must outlive
/// the session.
std::unique_ptr<Session> make_handler_session(boost::asio::io_context& loop, Clock& clock,
                                              Handler handler, HandlerSettings settings);

/// A session for jobs of several nodes (and for single nodes that are to meet others at an
/// endpoint, or wait as spares). Nothing is sent before `open`. Fails with Usage for a bad
/// endpoint, an unreadable secret or an unknown back end; warns in the log where a job without a
/// secret can be reached from other machines.
Result<std::unique_ptr<Session>> make_session(boost::asio::io_context& loop, Clock& clock,
                                              SessionSettings settings);

/// The rendezvous of a one-node job: the same State that a coordinator steps, in this process,
/// without sockets. min_nodes is 1; with max_nodes above 1 (`--standalone --nnodes 1:2`) the last
/// call passes before the only node starts, as in torchrun. Pushes arrive on `loop`. Loop and clock
/// must outlive the session.
std::unique_ptr<Session> make_local_session(boost::asio::io_context& loop, Clock& clock,
                                            SessionSettings settings);

}  // namespace elastrun::rendezvous
