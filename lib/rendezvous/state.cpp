// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/state.hpp"

#include "core/text.hpp"
#include "rendezvous/wording.hpp"

#include <algorithm>
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

void State::join(Peer peer, Node node, const Past& past, TimePoint now) {
  if (const Attendee* old = roster_.find(node); old != nullptr && old->peer != peer) {
    // An agent that is there twice is one whose old connection died without telling us.
    depart(old->peer, Cause::Kind::NodeLost, "came back over a new connection", now);
  }
  if (is_too_late(peer, past)) return;
  if (Attendee* known = roster_.find(peer)) return come_back(*known, std::move(node), now);
  if (!admit(peer, node)) return;
  if (roster_.empty() && phase_ == Phase::Gathering) begin_gathering(now, now);
  learn(past);
  std::erase_if(gone_, [&node](const Gone& gone) { return gone.node.id == node.id; });
  const bool returning = phase_ == Phase::Gathering && past.round > 0 && past.round == number_;
  if (returning) clearance_.broken();
  roster_.add(peer, std::move(node), returning, now);
  advance(now);
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
  if (past.round <= number_) return;
  // Somebody remembers more than we: another coordinator was here before us.
  number_ = past.round;
  previous_size_ = past.nodes;
  succession_ = true;
  roster_.forget_returning();
}

void State::come_back(Attendee& attendee, Node node, TimePoint now) {
  const Seat before = attendee.seat;
  if (before == Seat::Waiting || before == Seat::Failed) return;
  if (before != Seat::Stopping && phase_ == Phase::Running) {
    // It left its group by its own will: the others cannot go on without it, nor wait for nothing.
    break_up({.kind = Cause::Kind::NodeLeft, .node = node.id, .text = rejoined_text(node)}, false,
             now);
  }
  if (attendee.seat != Seat::Stopping) return;
  // A fixed rank is a promise; a new one now would leave a hole or a rival.
  if (rules_.fixed_ranks) node.node_rank = attendee.node.node_rank;
  clearance_.broken();
  roster_.describe(attendee, std::move(node));
  roster_.move(attendee, Seat::Waiting, now);
  if (phase_ != Phase::Gathering) roster_.forget_returning();  // too late for its seat
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
  clearance_.doubtful(now + attendee->node.grace);  // the others of its group are being stopped
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

void State::depart(Peer peer, Cause::Kind kind, const std::string& why, TimePoint now,
                   Duration at_work) {
  Attendee* attendee = roster_.find(peer);
  if (attendee == nullptr && kind == Cause::Kind::NodeLeft) {
    if (at_work > Duration::zero()) clearance_.leaving_late(peer, now + at_work);
    return;
  }
  if (attendee == nullptr) {
    // One that had said goodbye. If its connection is merely broken, only time tells.
    if (at_work == Duration::zero() && clearance_.left(peer)) advance(now);
    return;
  }
  const Seat seat = attendee->seat;
  const Cause cause{
      .kind = kind, .node = attendee->node.id, .text = departed_text(*attendee, kind, why)};
  constexpr std::size_t kMostGone = 16;
  if (gone_.size() == kMostGone) gone_.erase(gone_.begin());
  gone_.push_back({attendee->node, cause.text, now});
  doubt(*attendee, kind, now, at_work);
  roster_.remove(peer);
  if (phase_ == Phase::Ended) return;
  if (phase_ == Phase::Running && seat == Seat::Running) return break_up(cause, false, now);
  // One that had finished has done its part, and was not the last: that one would have ended the
  // job.
  if (phase_ == Phase::Verdict) return finish_if_all_done(now);
  advance(now);
}

// For how long the group of a member that goes may be at work.
void State::doubt(const Attendee& attendee, Cause::Kind kind, TimePoint now, Duration at_work) {
  const Duration grace = attendee.node.grace;
  if (attendee.seat == Seat::Waiting) return;
  if (kind == Cause::Kind::NodeLeft && attendee.seat != Seat::Finished) {
    return clearance_.leaving(attendee.peer, now + grace);
  }
  clearance_.doubtful(at_work == Duration::zero() ? now : now + at_work + grace);
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

void State::inherit(const Past& past, TimePoint until, const Leavers& leavers) {
  clearance_.inherited(until, leavers);
  learn(past);
}

void State::disinherit(TimePoint now) {
  clearance_.broken();
  if (phase_ == Phase::Gathering) advance(now);
}

void State::conclude(std::int64_t rounds, Done verdict) {
  concluded_ = number_ = rounds;
  conclusion_ = std::move(verdict);
}

void State::license(const WorldNote& note, TimePoint now) {
  clearance_.license(note);
  if (phase_ == Phase::Gathering) advance(now);
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
    if (clearance_.leavers() > 0) given_up = std::max(given_up, *limit);
    due = std::min(*limit, given_up);
  }
  if (clearance_.held() || unlicensed_) due = given_up;
  return std::min(due, progress_at_);
}

}  // namespace elastrun::rendezvous
