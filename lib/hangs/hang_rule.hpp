// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <algorithm>
#include <boost/circular_buffer.hpp>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
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
  void open(int rank, const std::string& what, TimePoint now);
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
  std::optional<TimePoint> next_end(TimePoint now) const;
  /// Lists excuses that hold no more, though their workers have not ended them: phases first.
  std::vector<Excuse> overdue(TimePoint now) const;

 private:
  using Key = std::tuple<bool, int, std::string>;  // no phase, rank, what is open
  static bool is_open(const Key& key, int rank) {
    return std::get<bool>(key) && std::get<int>(key) == rank;
  }
  bool close(const Key& key, TimePoint now);
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

  explicit HangRule(HangTimeout timeout)
      : timeout_{timeout.kind, std::min(timeout.limit, kLongest)} {}

  /// A group runs; it is being stopped, or its workers have succeeded.
  void begin(TimePoint now);
  void end() { running_ = false; }

  /// Workers of the job have what they can report steps with.
  void expect_steps() { expects_steps_ = true; }
  /// A step that a script reports to be watched by it.
  void step(int rank, TimePoint now);
  /// A step for the account of goodput: told by hooks, or by a script that does not know of this.
  /// Output goes on to be progress: it may be that of an evaluation.
  void seen_step(int rank, TimePoint now);
  /// Whatever else shows that a worker goes on.
  void went_on(TimePoint now) { progressed(now); }
  void checkpoint(TimePoint now);
  /// This worker is in a phase; in any but kTraining it may take its time (Excuses).
  void phase(int rank, std::string_view name, std::optional<Duration> at_most, TimePoint now);
  /// It has begun or ended something else that may take its time; a step ends all of that.
  void opened(int rank, const std::string& what, TimePoint now);
  void closed(int rank, const std::string& what, TimePoint now);
  /// Whatever it was about, its end may be lost.
  void closed_all(int rank, TimePoint now);
  /// This worker has ended: its open work is not waited for. A second call changes nothing.
  void ended(int rank, TimePoint now);
  /// Workers wrote or reported something else, or changed something in the store.
  void wrote(TimePoint now);
  /// Looked at the workers: whether one is stopped or traced. The time since the last look counts
  /// only if none is, or after kOfStopped limits.
  void looked(bool any_stopped, TimePoint now);

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
  std::optional<NodeProgress> progress(TimePoint now) const;
  /// How long there has been no progress.
  Duration standing(TimePoint now) const { return now - progress_at_; }
  /// The limit is kFirstStep times the number that was asked for.
  bool waits_for_first_step() const {
    return timeout_.kind == HangTimeout::Kind::Fixed && expects_steps_ && !group_steps_;
  }
  /// After which it stands; none: not known yet.
  std::optional<Duration> limit() const;
  /// When to look again: after a quarter of the limit, 15 s at most, or when an excuse ends.
  TimePoint next_look(TimePoint now) const;

 private:
  void progressed(TimePoint now) { progress_at_ = std::max(progress_at_, now); }
  bool waits_for_stopped(TimePoint now) const;

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
