// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <algorithm>
#include <boost/circular_buffer.hpp>
#include <cstddef>
#include <cstdint>
#include <fmt/format.h>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace elastrun::hangs {

/// Work of workers that may take its time: a phase other than training, one a worker, and what
/// goodput recorders report as begun, several. Each excuses its worker for a time: what the script
/// has said; else kOfLongest times the longest of that name so far, and kShortest at least; kFirst
/// for the first one. Pure; memory does not grow.
class Excuses {
 public:
  static constexpr Duration kFirst = std::chrono::minutes(30);
  static constexpr Duration kShortest = std::chrono::minutes(10);
  static constexpr int kOfLongest = 5;
  static constexpr std::size_t kMostOpen = 64;    // of one worker
  static constexpr std::size_t kMostNames = 256;  // that are learnt; further ones have kFirst

  /// `what` says what a worker does: "saving a checkpoint".
  struct Excuse {
    int rank = 0;
    std::string what;
    TimePoint since;
    Duration at_most{};
    TimePoint end() const { return since + at_most; }
    bool operator==(const Excuse&) const = default;
  };

  /// In place of the phase that this worker was in; none: it trains.
  void phase(int rank, const std::string& what, std::optional<Duration> at_most, TimePoint now) {
    // The phase before ends with it, and its time is learnt.
    train(rank, now);
    all_.insert_or_assign({false, rank, {}},
                          Excuse{rank, what, now, at_most.value_or(learnt(what))});
  }
  void train(int rank, TimePoint now) { close({false, rank, {}}, now); }
  bool in_phase(int rank) const { return all_.contains({false, rank, {}}); }
  void open(int rank, const std::string& what, TimePoint now) {
    const auto open =
        std::ranges::count_if(all_, [rank](const auto& one) { return is_open(one.first, rank); });
    if (std::cmp_greater_equal(open, kMostOpen)) return;
    // The first begin counts: the same begin told again does not make the excuse longer.
    all_.try_emplace({true, rank, what}, Excuse{rank, what, now, learnt(what)});
  }
  /// False: it was not open.
  bool close(int rank, const std::string& what, TimePoint now) {
    return close({true, rank, what}, now);
  }
  /// False: nothing was open. How long it took is not known.
  bool close_all(int rank) {
    return std::erase_if(all_, [rank](const auto& one) { return is_open(one.first, rank); }) > 0;
  }
  /// A new group; what was learnt stays.
  void clear() { all_.clear(); }

  /// True if one of them holds.
  bool any(TimePoint now) const { return next_end(now).has_value(); }
  /// When the next one of those that hold ends.
  std::optional<TimePoint> next_end(TimePoint now) const {
    std::optional<TimePoint> next;
    for (const auto& [_, one] : all_) {
      if (now < one.end()) next = std::min(next.value_or(one.end()), one.end());
    }
    return next;
  }
  /// Lists excuses that hold no more, though their workers have not ended them: phases first.
  std::vector<Excuse> overdue(TimePoint now) const {
    std::vector<Excuse> over;
    for (const auto& [_, one] : all_) {
      if (now >= one.end()) over.push_back(one);
    }
    return over;
  }

 private:
  using Key = std::tuple<bool, int, std::string>;  // no phase, rank, what is open
  static bool is_open(const Key& key, int rank) {
    return std::get<bool>(key) && std::get<int>(key) == rank;
  }
  bool close(const Key& key, TimePoint now) {
    const auto found = all_.find(key);
    if (found == all_.end()) return false;
    const auto& excuse = found->second;
    // The names are the workers', who may invent one after the other.
    if (longest_.size() < kMostNames || longest_.contains(excuse.what)) {
      auto& longest = longest_[excuse.what];
      longest = std::max(longest, now - excuse.since);
    }
    all_.erase(found);
    return true;
  }
  Duration learnt(const std::string& what) const {
    const auto found = longest_.find(what);
    return found == longest_.end() ? kFirst : std::max(kShortest, kOfLongest * found->second);
  }

  std::map<Key, Excuse> all_;
  std::map<std::string, Duration> longest_;  // by what it was
};

/// How long a job may go without a step, learnt from the time between its steps: the largest of
/// kShortest, ten times the median of the last kRemembered, and three times the longest so far, but
/// half an hour above that at most. A silent evaluation or recompilation is as long as the longest
/// only the second time, so kShortest is meant for the first one. Pure; memory does not grow.
class PaceLimit {
 public:
  static constexpr Duration kShortest = std::chrono::minutes(10);
  static constexpr int kStepsToLearn = 20;
  static constexpr std::size_t kRemembered = 256;

  void count_step() { ++steps_; }
  void learn(Duration step) {
    longest_ = std::max(longest_, step);
    times_.push_back(step);
  }
  bool is_known() const { return steps_ >= kStepsToLearn && !times_.empty(); }
  /// Nothing: not known yet.
  std::optional<Duration> limit() const {
    if (!is_known()) return std::nullopt;
    const Duration above = std::min(kOfLongest * longest_, longest_ + kMostAboveLongest);
    std::vector all(times_.begin(), times_.end());
    const auto median = all.begin() + std::ssize(all) / 2;
    std::ranges::nth_element(all, median);
    return std::max({kShortest, kOfMedian * *median, above});
  }

 private:
  static constexpr int kOfMedian = 10, kOfLongest = 3;
  static constexpr Duration kMostAboveLongest = std::chrono::minutes(30);

  std::int64_t steps_ = 0;  // of the job, on this node
  boost::circular_buffer<Duration> times_{kRemembered};
  Duration longest_{};
};

/// --hang-timeout: a number of seconds, or learnt from the steps that workers report. Also without
/// the option (Off), but then a hang is only told.
struct HangTimeout {
  enum class Kind { Off, Auto, Fixed } kind = Kind::Off;
  Duration limit{};  // Fixed only
  bool operator==(const HangTimeout&) const = default;
};

/// One node's report on the progress of its workers.
struct NodeProgress {
  enum class Kind {
    Moves,    // within the limit
    Stands,   // no progress for longer than that
    Excused,  // it need not: a worker evaluates, or is stopped
  } kind = Kind::Moves;
  /// Steps tell of it here, and not output or the store alone: such nodes decide for those that
  /// have no steps. A node that has no opinion any more says that it moves, without steps.
  bool by_steps = false;
  bool operator==(const NodeProgress&) const = default;
};

/// Decides if the workers of one node make progress. Pure: `now` is that of an AwakeClock, so that
/// a suspended machine does not count as a hang.
///
/// Progress is a step or a checkpoint of any worker, and a report to the account of goodput; as
/// long as a group has reported no step itself, also output, any other report, or a change in the
/// store. A limit that is a number is kFirstStep times as long before the first step if steps are
/// to be expected. Else it is that of PaceLimit, known once the job has shown 20 steps here and its
/// current group one.
class HangRule {
 public:
  static constexpr int kFirstStep = 5;
  static constexpr int kOfStopped = 10;  // limits, for which a stopped worker excuses the job
  static constexpr Duration kLongest = std::chrono::hours(24 * 365);  // of a number
  static constexpr std::string_view kTraining = "train";
  static constexpr Duration kLongestLook = std::chrono::seconds(15);
  // A limit of milliseconds must not make the looks a busy loop.
  static constexpr Duration kShortestLook = std::chrono::milliseconds(50);

  explicit HangRule(HangTimeout timeout)
      : timeout_{timeout.kind, std::min(timeout.limit, kLongest)} {}

  /// A group runs; it is being stopped, or its workers have succeeded.
  void begin(TimePoint now) {
    running_ = true;
    group_steps_ = counts_steps_ = false;
    progress_at_ = looked_at_ = now;
    stopped_since_.reset();
    last_steps_.clear();
    excuses_.clear();
  }
  void end() { running_ = false; }

  /// Workers of the job have what they can report steps with.
  void expect_steps() { expects_steps_ = true; }
  /// A step that a script reports to be watched by it.
  void step(int rank, TimePoint now) {
    if (!running_) return;
    seen_step(rank, now);
    counts_steps_ = true;
  }
  /// A step for the account of goodput: told by hooks, or by a script that does not know of this.
  /// Output goes on to be progress: it may be that of an evaluation.
  void seen_step(int rank, TimePoint now) {
    if (!running_) return;
    closed_all(rank, now);
    // After the line above, which forgets the last steps where something was open: otherwise the
    // time of a save would be learnt as that of a step.
    const auto [last, first] = last_steps_.try_emplace(rank, now);
    if (!first) pace_.learn(now - std::exchange(last->second, now));
    pace_.count_step();
    group_steps_ = true;
    progressed(now);
  }
  /// Whatever else shows that a worker goes on.
  void went_on(TimePoint now) { progressed(now); }
  void checkpoint(TimePoint now) {
    // What was saved lies between two steps, whose time says nothing then.
    last_steps_.clear();
    progressed(now);
  }
  /// This worker is in a phase; in any but kTraining it may take its time (Excuses).
  void phase(int rank, std::string_view name, std::optional<Duration> at_most, TimePoint now) {
    if (!running_) return;
    last_steps_.clear();  // the others wait for this one
    if (name == kTraining || name.empty()) {
      excuses_.train(rank, now);
    } else {
      excuses_.phase(rank, fmt::format("in the phase '{}'", name), at_most, now);
    }
    progressed(now);
  }
  /// It has begun or ended something else that may take its time; a step ends all of that.
  void opened(int rank, const std::string& what, TimePoint now) {
    if (!running_) return;
    last_steps_.clear();
    excuses_.open(rank, what, now);
    progressed(now);
  }
  void closed(int rank, const std::string& what, TimePoint now) {
    progressed(now);
    if (excuses_.close(rank, what, now)) last_steps_.clear();
  }
  /// Whatever it was about, its end may be lost.
  void closed_all(int rank, TimePoint now) {
    if (!excuses_.close_all(rank)) return;
    last_steps_.clear();
    progressed(now);
  }
  /// This worker has ended: its open work is not waited for. A second call changes nothing.
  void ended(int rank, TimePoint now) {
    closed_all(rank, now);
    if (excuses_.in_phase(rank)) phase(rank, kTraining, {}, now);
  }
  /// Workers wrote or reported something else, or changed something in the store.
  void wrote(TimePoint now) {
    // Threads beside the one that hangs may go on to write: where a script reports its steps,
    // output proves nothing.
    if (!counts_steps_) progressed(now);
  }
  /// Looked at the workers: whether one is stopped or traced. The time since the last look counts
  /// only if none is, or after kOfStopped limits.
  void looked(bool any_stopped, TimePoint now) {
    if (any_stopped && !stopped_since_) stopped_since_ = now;
    if (waits_for_stopped(now)) {
      // Those that go on after that have the time that they had left.
      progress_at_ = std::min(now, progress_at_ + (now - std::max(looked_at_, progress_at_)));
      last_steps_.clear();
    }
    if (!any_stopped) stopped_since_.reset();
    looked_at_ = now;
  }

  bool is_running() const { return running_; }
  /// True if --hang-timeout stops the job and does not only report.
  bool is_asked_for() const { return timeout_.kind != HangTimeout::Kind::Off; }
  /// A worker does what may take its time, or is stopped.
  bool is_excused(TimePoint now) const { return excuses_.any(now) || waits_for_stopped(now); }
  /// Lists what workers have taken too long for.
  std::vector<Excuses::Excuse> overdue(TimePoint now) const { return excuses_.overdue(now); }
  bool by_steps() const {
    return counts_steps_ || (group_steps_ && timeout_.kind != HangTimeout::Kind::Fixed);
  }  // NodeProgress
  /// True if there is a limit; cheaper than to ask for it.
  bool is_known() const {
    return timeout_.kind == HangTimeout::Kind::Fixed || (group_steps_ && pace_.is_known());
  }
  /// Nothing: this node has no opinion yet.
  std::optional<NodeProgress> progress(TimePoint now) const {
    if (!is_running()) return std::nullopt;
    if (is_excused(now)) return NodeProgress{NodeProgress::Kind::Excused, by_steps()};
    const auto limit = this->limit();
    if (!limit) return std::nullopt;
    const bool stands = standing(now) >= *limit;
    return NodeProgress{stands ? NodeProgress::Kind::Stands : NodeProgress::Kind::Moves,
                        by_steps()};
  }
  /// How long there has been no progress.
  Duration standing(TimePoint now) const { return now - progress_at_; }
  /// The limit is kFirstStep times the number that was asked for.
  bool waits_for_first_step() const {
    return timeout_.kind == HangTimeout::Kind::Fixed && expects_steps_ && !group_steps_;
  }
  /// After which it stands; none: not known yet.
  std::optional<Duration> limit() const {
    if (!is_known()) return std::nullopt;
    if (timeout_.kind != HangTimeout::Kind::Fixed) return pace_.limit();
    return waits_for_first_step() ? kFirstStep * timeout_.limit : timeout_.limit;
  }
  /// When to look again: after a quarter of the limit, 15 s at most, or when an excuse ends.
  TimePoint next_look(TimePoint now) const {
    const auto limit = this->limit();
    if (!limit) return now + kLongestLook;
    auto next = now + std::clamp<Duration>(*limit / 4, kShortestLook, kLongestLook);
    const auto sooner = [&](TimePoint then) {
      // What lies in the past is decided already, and would make the looks a busy loop.
      if (now < then) next = std::min(next, then);
    };
    sooner(progress_at_ + *limit);
    if (const auto end = excuses_.next_end(now)) sooner(*end);
    if (stopped_since_) sooner(*stopped_since_ + kOfStopped * *limit);
    return next;
  }

 private:
  void progressed(TimePoint now) { progress_at_ = std::max(progress_at_, now); }
  bool waits_for_stopped(TimePoint now) const {
    if (!stopped_since_) return false;
    const auto limit = this->limit();
    return !limit || now - *stopped_since_ < kOfStopped * *limit;
  }

  const HangTimeout timeout_;
  bool running_ = false;
  TimePoint progress_at_, looked_at_;
  std::optional<TimePoint> stopped_since_;
  std::map<int, TimePoint> last_steps_;  // by rank; a rank that was excused starts over
  Excuses excuses_;
  PaceLimit pace_;
  bool expects_steps_ = false;
  bool group_steps_ = false;   // this group has shown one
  bool counts_steps_ = false;  // and reports them itself
};

}  // namespace elastrun::hangs
