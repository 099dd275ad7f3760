// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/membership/world_id.hpp"
#include "rendezvous/wire/messages.hpp"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::rendezvous {

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

}  // namespace elastrun::rendezvous
