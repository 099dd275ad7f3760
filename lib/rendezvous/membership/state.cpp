// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/state.hpp"

#include "core/text.hpp"
#include "rendezvous/membership/wording.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace elastrun::rendezvous {

Push to_push(const Notice& notice) {
  if (const auto* seated = std::get_if<Seated>(&notice)) {
    return RoundReady{round_of(*seated->world, seated->group_rank)};
  }
  return *std::get<std::shared_ptr<const Push>>(notice);
}

State::State(Rules rules, std::string run_id, std::string master_addr, std::uint16_t master_port)
    : rules_(rules),
      run_id_(std::move(run_id)),
      master_addr_(std::move(master_addr)),
      master_port_(master_port),
      budget_(rules.max_restarts) {}

void State::tell(Peer peer, Push push) {
  deliveries_.push_back({peer, std::make_shared<const Push>(std::move(push))});
}

void State::tell_all(const std::vector<Attendee*>& whom, Push push) {
  const auto shared = std::make_shared<const Push>(std::move(push));
  for (const Attendee* attendee : whom) deliveries_.push_back({attendee->peer, shared});
}

Turnout State::turnout() const {
  return {roster_.returning(), roster_.count(Seat::Waiting) - roster_.returning(),
          roster_.count(Seat::Stopping), previous_size_, succession_};
}

// An agent that is there twice is one whose old connection has died without telling us: it keeps
// its place, or a round would be formed without it.
Attendee* State::find_again(Peer peer, const Node& node, TimePoint now) {
  Attendee* known = roster_.find(node);
  if (known == nullptr || known->peer == peer) return roster_.find(peer);
  const std::string why = "came back over a new connection";
  if (phase_ == Phase::Verdict || roster_.find(peer) != nullptr) {
    depart(known->peer, why, now, Loss::Closed);
    return roster_.find(peer);
  }
  if (phase_ == Phase::Running && (known->seat == Seat::Running || known->seat == Seat::Finished)) {
    const auto kind = Cause::Kind::NodeLost;
    break_up({.kind = kind, .node = node.id, .text = departed_text(*known, kind, why)}, false, now);
  }
  roster_.rebind(*known, peer);
  return known;
}

Attendee* State::meet(Peer peer, const Node& node, const Past& past, TimePoint now) {
  Attendee* known = find_again(peer, node, now);
  if (is_too_late(peer, past) || (known == nullptr && !admit(peer, node))) return nullptr;
  if (roster_.empty() && phase_ == Phase::Gathering) begin_gathering(now, now);
  learn(past);
  std::erase_if(gone_, [&node](const Gone& gone) { return gone.node.id == node.id; });
  // Whatever was feared of it is settled; another coordinator's world has one less to wait for.
  const std::string name = agent_name(node);
  clearance_.fence.release(name);
  clearance_.fence.hear(name, past.round, now, now + rules_.silence + node.grace);
  return known != nullptr ? known : &roster_.add(peer, node, false, now);
}

void State::join(Peer peer, Node node, const Past& past, TimePoint now) {
  const bool is_new = roster_.find(node) == nullptr && roster_.find(peer) == nullptr;
  Attendee* attendee = meet(peer, node, past, now);
  if (attendee == nullptr) return;
  if (!is_new) return come_back(*attendee, std::move(node), now);
  if (phase_ == Phase::Gathering && past.round > 0 && past.round == number_) {
    clearance_.broken();
    roster_.set_returning(*attendee, true);
  }
  advance(now);
}

void State::arrive_stopping(Peer peer, const Node& node, const Past& past, Duration left,
                            TimePoint now) {
  Attendee* member = meet(peer, node, past, now);
  if (member == nullptr) return;
  roster_.move(*member, Seat::Stopping, now);
  member->round = past.round;
  stopping(peer, left, now);
  advance(now);
}

void State::hear_of(const Past& world, Duration grace, TimePoint now) {
  // What an elected coordinator has to fear stands in the register.
  if (rules_.hosted || world.round <= std::max(number_, floor_)) return;
  learn(world);
  clearance_.fence.begin(now, now + rules_.silence + grace);
}

void State::stopping(Peer peer, Duration left, TimePoint now) {
  Attendee* member = roster_.find(peer);
  if (member == nullptr || member->seat != Seat::Stopping) return;
  member->knows_stop = true;
  member->stops_by = now + left;
  gathering_.extend(member->stops_by);
}

// Whoever was a member hears how its job has ended; a new node, that it has come for nothing.
bool State::is_too_late(Peer peer, const Past& past) {
  if (past.round > 0 && past.round <= concluded_) {
    tell(peer, conclusion_);
    return true;
  }
  if (phase_ != Phase::Ended) return false;
  Done done = verdict_;
  if (!done.failed && past.round == 0) {
    done = {true, {.kind = Cause::Kind::Closed}};
    done.cause.text = already_over_text(run_id_);
  }
  tell(peer, std::move(done));
  return true;
}

// Two nodes that claim one fixed rank are a mistake that waiting would not mend.
bool State::admit(Peer peer, const Node& node) {
  if (!rules_.fixed_ranks) return true;
  if (node.node_rank < 0 || node.node_rank >= rules_.max_nodes) {
    tell(peer, Lost{rank_out_of_range_text(node, rules_.max_nodes), false});
    return false;
  }
  if (const Attendee* owner = roster_.with_node_rank(node.node_rank)) {
    tell(peer, Lost{rank_taken_text(node, owner->node), false});
    return false;
  }
  return true;
}

void State::learn(const Past& past) {
  // Whoever heard of a restart that its last coordinator could tell to some only: it is spent.
  budget_.learn(past.attempt);
  if (past.round <= std::max(number_, floor_)) return;
  floor_ = past.round;
  // The round that runs keeps its number: its members know no other one.
  if (phase_ != Phase::Gathering) return;
  // Somebody remembers more than we: another coordinator was here before us.
  number_ = past.round;
  previous_size_ = past.nodes;
  succession_ = true;
  roster_.forget_returning();
  if (!rules_.hosted) clearance_.fence.expect(past.round, past.nodes, 0);
}

void State::come_back(Attendee& attendee, Node node, TimePoint now) {
  const Seat before = attendee.seat;
  // A fixed rank is a promise; a new one now would leave a hole or a rival.
  if (rules_.fixed_ranks) node.node_rank = attendee.node.node_rank;
  if (before == Seat::Waiting) {
    roster_.describe(attendee, std::move(node));
    return advance(now);
  }
  if (before == Seat::Failed) return;
  if (before != Seat::Stopping && phase_ == Phase::Running) {
    // It left its group by its own will: the others cannot go on without it, nor wait for nothing.
    break_up({.kind = Cause::Kind::NodeLeft, .node = node.id, .text = rejoined_text(node)}, false,
             now);
  }
  if (attendee.seat != Seat::Stopping) return;
  const bool of_last_world = attendee.round == number_;
  if (of_last_world) clearance_.broken();
  roster_.describe(attendee, std::move(node));
  roster_.move(attendee, Seat::Waiting, now);
  // Too late for its seat.
  if (phase_ != Phase::Gathering || !of_last_world) roster_.set_returning(attendee, false);
  advance(now);
}

void State::started(Peer peer, std::int64_t round) {
  Attendee* attendee = roster_.find(peer);
  if (attendee != nullptr && round == number_ && attendee->seat == Seat::Running) {
    attendee->started = true;
  }
}

void State::fail(Peer peer, std::int64_t round, Cause cause, TimePoint now) {
  Attendee* attendee = roster_.find(peer);
  if (attendee == nullptr || round != number_ || attendee->seat != Seat::Running) return;
  // The others of its group are being stopped.
  attendee->knows_stop = true;
  attendee->stops_by = now + attendee->node.grace;
  clearance_.doubtful(attendee->stops_by);
  if (phase_ == Phase::Verdict) {
    roster_.move(*attendee, Seat::Failed, now);
    return finish_if_all_done(now);
  }
  if (phase_ != Phase::Running) return;
  if (budget_.spend()) return break_up(cause, true, now);
  roster_.move(*attendee, Seat::Failed, now);
  verdict_ = {true, std::move(cause)};
  phase_ = Phase::Verdict;
  verdict_at_ = now + rules_.verdict_window;
  finish_if_all_done(now);
}

void State::succeed(Peer peer, std::int64_t round, TimePoint now) {
  Attendee* attendee = roster_.find(peer);
  if (attendee == nullptr || round != number_ || attendee->seat != Seat::Running) return;
  clearance_.broken();
  roster_.move(*attendee, Seat::Finished, now);
  ending_ = true;  // a job that is ending is not stopped for newcomers
  growth_at_.reset();
  finish_if_all_done(now);
}

void State::leave(Peer peer, const std::string& why, TimePoint now, Duration grace) {
  const Attendee* attendee = roster_.find(peer);
  if (attendee == nullptr) {
    // It was told to stop by somebody else, and has not joined here: it has no name yet.
    const std::string name = fmt::format("peer {}", peer);
    if (grace > Duration::zero()) clearance_.fence.hold(name, peer, now + grace, false);
    return;
  }
  const auto kind = Cause::Kind::NodeLeft;
  if (attendee->seat == Seat::Finished) {
    clearance_.broken();
  } else if (attendee->seat != Seat::Waiting) {
    const TimePoint until = now + std::max(grace, attendee->node.grace);
    const bool of_last_world = attendee->seat != Seat::Stopping || attendee->round == number_;
    clearance_.fence.hold(agent_name(attendee->node), peer, until, of_last_world);
    clearance_.doubtful(until);
  }
  remove(*attendee,
         {.kind = kind, .node = attendee->node.id, .text = departed_text(*attendee, kind, why)},
         now);
}

void State::depart(Peer peer, const std::string& why, TimePoint now, Loss loss) {
  const Attendee* attendee = roster_.find(peer);
  if (attendee == nullptr) {
    // One that had said goodbye. If its connection is merely broken, only time tells.
    if (loss == Loss::Closed) clearance_.fence.shorten(peer, now + kTimeToReturn);
    if (loss == Loss::Ended && !clearance_.left(peer)) return;
    return advance(now);
  }
  const auto kind = Cause::Kind::NodeLost;
  doubt(*attendee, now, loss);
  remove(*attendee,
         {.kind = kind, .node = attendee->node.id, .text = departed_text(*attendee, kind, why)},
         now);
}

void State::remove(const Attendee& attendee, const Cause& cause, TimePoint now) {
  const Seat seat = attendee.seat;
  constexpr std::size_t kMostGone = 16;
  if (gone_.size() == kMostGone) gone_.erase(gone_.begin());
  gone_.push_back({attendee.node, cause.text, now});
  roster_.remove(attendee.peer);
  if (phase_ == Phase::Ended) return;
  if (phase_ == Phase::Running && seat == Seat::Running) return break_up(cause, false, now);
  // One that had finished has done its part, and was not the last: that one would have ended the
  // job.
  if (phase_ == Phase::Verdict) return finish_if_all_done(now);
  advance(now);
}

// For how long the group of a member that was lost may be at work.
void State::doubt(const Attendee& attendee, TimePoint now, Loss loss) {
  if (attendee.seat == Seat::Waiting) return;
  const bool of_last_world = attendee.seat != Seat::Stopping || attendee.round == number_;
  if (attendee.seat == Seat::Finished || loss == Loss::Ended) {
    if (of_last_world) clearance_.doubtful(now);
    return;
  }
  const TimePoint back_by = now + kTimeToReturn;
  if (loss == Loss::Closed) {
    if (of_last_world) clearance_.doubtful(back_by);
  } else if (of_last_world) {
    clearance_.doubtful(now + rules_.reaction + attendee.node.grace);
  }
  std::optional<TimePoint> until;
  if (loss != Loss::Silent) until = back_by;
  // It was told to stop, and has heard that: it may be saving for as long as it has said.
  if (loss != Loss::Closed && attendee.knows_stop) until = std::max(until, {attendee.stops_by});
  if (!until) return;
  clearance_.fence.hold(agent_name(attendee.node), attendee.peer, *until, of_last_world);
}

void State::close(const std::string& why, TimePoint now) {
  if (phase_ == Phase::Ended) return;
  Cause cause{.kind = Cause::Kind::Closed};
  cause.text = why;
  end({true, std::move(cause)}, now);
}

void State::suspend(const std::string& why, TimePoint now) {
  if (phase_ != Phase::Running) return;
  break_up({.kind = Cause::Kind::CoordinatorLost, .text = why}, false, now);
}

void State::inherit(const Past& past, TimePoint until, const Fence& fence) {
  learn(past);
  clearance_.inherited(until);
  clearance_.fence = fence;
}

void State::disinherit(TimePoint now) {
  clearance_.broken();
  // Its coordinator has died on this machine: whoever has lost it knows that, and looks for us.
  clearance_.fence.begin(now, now + kTimeToFollow);
  if (phase_ == Phase::Gathering) advance(now);
}

void State::conclude(std::int64_t rounds, Done verdict) {
  concluded_ = number_ = floor_ = rounds;
  conclusion_ = std::move(verdict);
}

void State::license(const WorldNote& note, TimePoint now) {
  clearance_.license(note);
  if (phase_ == Phase::Gathering) advance(now);
}

Past State::last_world() const {
  return {std::max(number_, floor_), attempt(), previous_size_};
}

Leavers State::at_work(TimePoint now) const {
  Leavers all;
  for (const auto& [peer, attendee] : roster_.all()) {
    const bool stopping = attendee.seat == Seat::Stopping;
    if (!stopping && attendee.seat != Seat::Running) continue;
    all.add({1, stopping ? attendee.stops_by : now + rules_.silence + attendee.node.grace});
  }
  return all;
}

void State::hold(bool held, TimePoint now) {
  clearance_.hold(held);
  if (!held && phase_ != Phase::Ended) advance(now);
}

void State::finish_if_all_done(TimePoint now) {
  if (roster_.count(Seat::Running) > 0) return;
  end(phase_ == Phase::Verdict ? verdict_ : Done{}, now);
}

void State::end(Done verdict, TimePoint) {
  verdict_ = std::move(verdict);
  phase_ = Phase::Ended;
  growth_at_.reset();
  verdict_at_.reset();
  const auto shared = std::make_shared<const Push>(verdict_);
  for (const auto& [peer, attendee] : roster_.all()) deliveries_.push_back({peer, shared});
}

void State::tick(TimePoint now) {
  if (phase_ == Phase::Verdict && verdict_at_ && now >= *verdict_at_) return end(verdict_, now);
  if (phase_ == Phase::Gathering || phase_ == Phase::Running) advance(now);
}

std::optional<TimePoint> State::deadline() const {
  if (phase_ == Phase::Verdict) return verdict_at_;
  if (phase_ == Phase::Running) return growth_at_;
  if (phase_ == Phase::Ended || roster_.empty()) return std::nullopt;
  TimePoint given_up = gathering_.given_up(rules_, turnout());
  // What is overdue must not wake us again and again while something else is waited for.
  TimePoint due = gathering_.deadline(rules_, turnout());
  if (const auto limit = clearance_.limit()) {
    given_up = std::max(given_up, clearance_.fence.limit().value_or(given_up));
    due = std::min(*limit, given_up);
  }
  if (clearance_.held() || unlicensed_) due = given_up;
  return std::min(due, progress_at_);
}

}  // namespace elastrun::rendezvous
