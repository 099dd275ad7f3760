// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/membership/roster.hpp"
#include "rendezvous/membership/round.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::rendezvous {

/// Whether the workers of a job stand still, by what its nodes say of their own, and where they
/// stand: all nodes are asked for the stacks of their workers when the job hangs, or when a client
/// asks. Pure: what is to be told to whom piles up until `take`.
///
/// The job hangs when no node is excused and all stand; if some count steps, all of those; not
/// before the workers of all nodes have been started, for which the others wait. That is told once,
/// until one of them moves again; not at all if that is before the stacks are there.
class Standstill {
 public:
  /// From the first question to the report, with or without all answers.
  static constexpr Duration kTimeToAnswer = std::chrono::seconds(5);

  /// A member of a round that is given out, and its workers. The first one of a new round forgets
  /// the last one: clients then get the answers that have come.
  void assigned(Peer peer, std::int64_t round, const Node& node, int first_rank);
  /// Its workers run; any message about them implies it, too.
  void started(Peer peer, std::int64_t round, TimePoint now) {
    if (round == round_) change(peer, now, [](Watched& member) { member.started = true; });
  }
  /// Its workers are stopped, and start again in the same round: it is `assigned` once more. What
  /// it says until then is of those that go.
  void renews(Peer peer);
  /// All of its workers have succeeded.
  void finished(Peer peer, TimePoint now) {
    change(peer, now, [](Watched& member) { member.finished = true; });
  }
  void gone(Peer peer, TimePoint now);
  /// No round runs: until the next one no member counts as hanging, not even one that was found so.
  /// What their coordinator does about it must not hit the workers that come after them.
  void broken_up() {
    runs_ = false;
    forget_hang();
  }

  void says(Peer peer, const ProgressReport& progress, TimePoint now) {
    if (progress.round != round_) return;
    change(peer, now, [&](Watched& member) { member.progress = progress, member.started = true; });
  }
  void answers(Peer peer, NodeStacks stacks, TimePoint now);
  /// `peer`, which need not be a member, gets the StacksReport; several may ask at once.
  void asks(Peer peer, TimePoint now) {
    call(now, false);
    call_->askers.insert(peer);
    finish_if_answered(now);
  }
  void tick(TimePoint now) {
    if (call_ && now >= call_->until) finish(now);
  }

  /// What holds workers that are stopped or traced: by rank.
  std::map<int, std::string> held() const;

  /// Of `tick`.
  std::optional<TimePoint> deadline() const {
    return call_ ? std::optional(call_->until) : std::nullopt;
  }
  /// What is told to several is there once: a report to all nodes of a large job would be more than
  /// its memory.
  using Told = std::vector<std::pair<Peer, std::shared_ptr<const Push>>>;
  Told take() { return std::exchange(told_, {}); }

 private:
  using Kind = hangs::NodeProgress::Kind;
  struct Watched {
    std::string node;
    int first_rank = 0, workers = 0;
    std::optional<ProgressReport> progress;
    bool started = false, finished = false;
    bool renews = false;
  };
  /// What a member may still add to the answer: it reports each of its workers once.
  struct Allowance {
    std::vector<bool> told;  // of each of its workers
    std::size_t dumps = 0;
  };
  struct Call {
    std::int64_t id = 0;
    TimePoint until;
    bool hang = false;
    TimePoint stands_since;  // if it hangs
    std::map<Peer, Allowance> awaited;
    std::set<Peer> askers;
    std::vector<hangs::StackGroup> groups;
    std::vector<std::string> dumps;
    std::vector<hangs::SilentNode> silent;
  };
  void add_silent(const Watched& member, const std::vector<bool>& told);

  /// Of a member whose workers do not just start again.
  template <class Change>
  void change(Peer peer, TimePoint now, Change change) {
    const auto member = watched_.find(peer);
    if (member == watched_.end() || member->second.renews) return;
    tally(member->second, -1);
    change(member->second);
    tally(member->second, +1);
    decide(now);
  }
  void tally(const Watched& member, int sign);
  int saying(bool by_steps, Kind kind) const {
    return saying_[by_steps][static_cast<std::size_t>(kind)];
  }
  bool is_hanging() const;
  Duration standing() const;
  void decide(TimePoint now);
  /// Stacks that only the hang has asked for are useless then.
  void forget_hang() {
    if (!call_) return;
    call_->hang = false;
    if (call_->askers.empty()) call_.reset();
  }
  /// Whether it is one of those by which the job hangs, if it does.
  bool has_say(const Watched& member) const {
    const bool by_steps = saying(true, Kind::Stands) > 0;
    return !member.finished && member.progress && member.progress->what.by_steps == by_steps;
  }
  void call(TimePoint now, bool hang);
  void finish_if_answered(TimePoint now) {
    if (call_ && call_->awaited.empty()) finish(now);
  }
  int speaker() const;
  void finish(TimePoint now);
  void tell(Peer peer, const std::shared_ptr<const Push>& push) { told_.emplace_back(peer, push); }

  std::int64_t round_ = 0, last_call_ = 0;
  std::map<Peer, Watched> watched_;
  std::array<std::array<int, 3>, 2> saying_{};  // that say so and have not finished
  int starting_ = 0;                            // that have neither started nor finished
  bool runs_ = false;                           // the round
  bool hangs_ = false;                          // and that has been told
  std::optional<Call> call_;
  Told told_;
};

}  // namespace elastrun::rendezvous
