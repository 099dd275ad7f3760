// SPDX-License-Identifier: Apache-2.0

#include "goodput/ledger/ledger.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

namespace elastrun::goodput {
namespace {

using Name = std::pair<std::string_view, Bucket>;
constexpr std::array<Name, 25> kNames = {{{"train", Bucket::Running},
                                          {"training", Bucket::Running},
                                          {"eval", Bucket::Evaluation},
                                          {"evaluate", Bucket::Evaluation},
                                          {"evaluation", Bucket::Evaluation},
                                          {"eval_step", Bucket::Evaluation},
                                          {"val", Bucket::Evaluation},
                                          {"validate", Bucket::Evaluation},
                                          {"validation", Bucket::Evaluation},
                                          {"test", Bucket::Evaluation},
                                          {"testing", Bucket::Evaluation},
                                          {"save", Bucket::Checkpoint},
                                          {"load", Bucket::Checkpoint},
                                          {"restore", Bucket::Checkpoint},
                                          {"checkpoint", Bucket::Checkpoint},
                                          {"checkpoint_save", Bucket::Checkpoint},
                                          {"checkpoint_restore", Bucket::Checkpoint},
                                          {"data", Bucket::DataLoading},
                                          {"data_loading", Bucket::DataLoading},
                                          {"init", Bucket::Initialization},
                                          {"device_init", Bucket::Initialization},
                                          {"setup", Bucket::Preparation},
                                          {"preparation", Bucket::Preparation},
                                          {"compile", Bucket::Preparation},
                                          {"unexplained", Bucket::Unexplained}}};

// A number that jumps further does not count steps that were done.
constexpr std::uint32_t kFarthest = 1 << 20;

/// What is said of a bucket: its name, where the reference books it, and what it is for people.
struct BucketRow {
  std::string_view name, source, meaning;
};
constexpr BucketRow kRows[kBuckets] = {
    {"startup", "OTHER", "until the workers first ran"},
    {"rendezvous", "OTHER", "waiting for other nodes"},
    {"running", "PROGRAM_STARTUP", "the workers ran"},
    {"productive", "OTHER", "training steps"},
    {"lost", "WASTED_PROGRESS", "done again after a failure"},
    {"checkpoint", "CHECKPOINT_SAVE", "saving and loading"},
    {"restart", "INFRASTRUCTURE_RECOVERY", "from failure to next start"},
    {"stopping", "OTHER", "ending the job"},
    {"queued", "INFRASTRUCTURE_RECOVERY", "until it was started again"},
    {"device_init", "ACCELERATOR_INITIALIZATION", "devices, ranks get ready"},
    {"preparation", "TRAINING_PREP", "imports, setting up"},
    {"data_loading", "DATA_LOADING_SYNC", "steps that wait for data"},
    {"custom", "CUSTOM_BADPUT_EVENTS", "events that scripts name"},
    {"hang", "OTHER", "no step beyond the limit"},
    // The reference's example of a custom event.
    {"evaluation", "CUSTOM_BADPUT_EVENTS.EVALUATION", "evaluating the model"},
    {"stalled", "OTHER", "a step that did not come"},
    {"unexplained", "OTHER", "long steps, or what was not told"}};

const BucketRow& row_of(Bucket bucket) {
  return kRows[static_cast<std::size_t>(bucket)];
}

}  // namespace

Bucket bucket_of_phase(std::string_view name) {
  const auto small = to_lower(name.substr(0, 32));
  const auto* found = std::ranges::find(kNames, std::string_view(small), &Name::first);
  return found == kNames.end() ? Bucket::Custom : found->second;
}

std::optional<bool> says_loading(std::string_view name) {
  const auto small = to_lower(name.substr(0, 32));
  if (small == "load" || small == "restore" || small == "checkpoint_restore") return true;
  if (small == "save" || small == "checkpoint_save") return false;
  return std::nullopt;
}

std::string_view bucket_name(Bucket bucket) {
  return row_of(bucket).name;
}

std::string_view badput_source(Bucket bucket, bool steps_known) {
  return bucket == Bucket::Running && !steps_known ? "OTHER" : row_of(bucket).source;
}

std::string_view bucket_meaning(Bucket bucket, const Ledger::Summary& summary) {
  if (bucket == Bucket::Running && summary.steps_known()) return "before their first step";
  if (bucket == Bucket::Lost && summary.restarts == 0) return "steps that were not saved";
  return row_of(bucket).meaning;
}

namespace {

using Span = Timeline::Span;

Span pure(Bucket bucket, Duration from, Duration to) {
  Span span{from, to, {}};
  span.buckets[static_cast<std::size_t>(bucket)] = to - from;
  return span;
}

Span both(const Span& one, const Span& next) {
  Span span{one.from, next.to, one.buckets};
  for (std::size_t i = 0; i < kBuckets; ++i) span.buckets[i] += next.buckets[i];
  return span;
}

/// Which spans to join with the one after them: disjoint pairs, the shortest first, `most` at most.
std::vector<bool> shortest_pairs(const std::vector<Span>& spans, std::size_t most) {
  std::vector<std::size_t> order(spans.size() - 1);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {},
                           [&](std::size_t i) { return spans[i + 1].to - spans[i].from; });
  std::vector<bool> used(spans.size()), joined(spans.size());
  for (const std::size_t i : order) {
    if (most == 0) break;
    if (used[i] || used[i + 1]) continue;
    used[i] = used[i + 1] = joined[i] = true;
    --most;
  }
  return joined;
}

}  // namespace

Bucket Span::most() const {
  return static_cast<Bucket>(std::ranges::max_element(buckets) - buckets.begin());
}

void Timeline::spend(Bucket bucket, Duration time) {
  if (time <= Duration::zero()) return;
  const Duration from = spans_.empty() ? Duration::zero() : spans_.back().to;
  spans_.push_back(pure(bucket, from, from + time));
  if (spans_.size() > 1) join(spans_.size() - 2);
  // At twice the number, so that each span costs a constant share of the sorting.
  if (spans_.size() > 2 * kSpans) thin_out();
}

void Timeline::move(Bucket from, Bucket to, Duration time, Duration until) {
  for (std::size_t i = spans_.size(); i-- > 0 && time > Duration::zero();) {
    if (spans_[i].from < until) time -= move_in(i, from, to, time, until);
  }
  // What was not found before `until` was booked later than the fact says. From the end of all
  // there is nothing later, so this goes one level deep.
  if (time > Duration::zero() && !spans_.empty() && until < spans_.back().to) {
    move(from, to, time, spans_.back().to);
  }
}

/// How much of it was moved. A span of one bucket is divided where it has to be.
Duration Timeline::move_in(std::size_t index, Bucket from, Bucket to, Duration time,
                           Duration until) {
  const Span span = spans_[index];
  if (span.of(from) <= Duration::zero() || from == to) return {};
  if (!span.is_pure()) {
    const Duration moved = std::min(time, span.of(from));
    in(index, from) -= moved;
    in(index, to) += moved;
    return moved;
  }
  const Duration end = std::min(until, span.to);
  const Duration begin = std::max(span.from, end - time);
  spans_[index] = pure(to, begin, end);
  const auto at = spans_.begin() + static_cast<std::ptrdiff_t>(index);
  if (end < span.to) spans_.insert(at + 1, pure(from, end, span.to));
  if (span.from < begin) {
    spans_.insert(spans_.begin() + static_cast<std::ptrdiff_t>(index),
                  pure(from, span.from, begin));
    ++index;
  }
  join(index);
  if (index > 0) join(index - 1);
  return end - begin;
}

/// Makes it and the next one, if there is one, a single span if both are of one and the same
/// bucket.
void Timeline::join(std::size_t index) {
  if (index + 1 >= spans_.size()) return;
  const Span& one = spans_[index];
  const Span& next = spans_[index + 1];
  if (one.most() != next.most() || !one.is_pure() || !next.is_pure()) return;
  spans_[index] = both(one, next);
  spans_.erase(spans_.begin() + static_cast<std::ptrdiff_t>(index) + 1);
}

void Timeline::thin_out() {
  while (spans_.size() > kSpans) {
    // A few at a time: of disjoint pairs that were to halve it, the last ones would be long.
    const auto most = std::min(spans_.size() - kSpans, spans_.size() / 4);
    const auto joined = shortest_pairs(spans_, most);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      const Span span = joined[i] ? both(spans_[i], spans_[i + 1]) : spans_[i];
      if (joined[i]) ++i;
      spans_[kept++] = span;
    }
    spans_.resize(kept);
  }
}

std::optional<Duration> WorkCounts::mean_save() const {
  return saves > 0 ? std::optional(saving / saves) : std::nullopt;
}

std::optional<Duration> WorkCounts::mean_step() const {
  return steps > 0 ? std::optional(stepping / steps) : std::nullopt;
}

std::optional<double> WorkCounts::checkpoint_interval() const {
  const auto all = checkpoints > 0 ? checkpoints : saves;
  if (all == 0 || steps == 0) return std::nullopt;
  return static_cast<double>(steps) / static_cast<double>(all);
}

void WorkCounter::start() {
  last_step_.reset();
  last_checkpoint_.reset();
  since_step_ = {};
  saved_ = true;
  failed_ = hangs_ = false;
}

void WorkCounter::failed() {
  if (failed_) return;
  failed_ = true;
  ++counts_.failures;
}

void WorkCounter::passed(Bucket bucket, Duration time) {
  // What comes before the first step of a start says nothing about the pace.
  if (!last_step_) return;
  if (bucket == Bucket::Running || bucket == Bucket::DataLoading) since_step_ += time;
  if (bucket == Bucket::Checkpoint) counts_.saving += time;
}

/// What comes before the first step of a start is loading.
void WorkCounter::save_begins() {
  if (!last_step_ || saved_) return;
  saved_ = true;
  ++counts_.saves;
}

void WorkCounter::step(std::int64_t number) {
  if (last_step_ && number > *last_step_ && !hangs_) {
    const auto done = static_cast<std::uint64_t>(number) - static_cast<std::uint64_t>(*last_step_);
    if (done <= kFarthest) {
      counts_.steps += static_cast<std::int64_t>(done);
      counts_.stepping += since_step_;
    }
  }
  if (last_step_ == number) return;  // it was told already
  last_step_ = number;
  since_step_ = {};
  saved_ = hangs_ = false;
}

void WorkCounter::checkpoint(std::optional<std::int64_t> number) {
  if (number && number == last_checkpoint_) return;
  last_checkpoint_ = number;
  ++counts_.checkpoints;
}

void CustomTimes::enter(std::string_view name, Duration so_far) {
  times_ = times(so_far);
  entered_ = so_far;
  name_ = name.empty() ? std::string(kOther) : to_lower(cut(name, kLongest));
  // The names are the script's: those that do not fit count together.
  if (times_.size() >= kMost && !times_.contains(name_)) name_ = kOther;
}

std::map<std::string, Duration> CustomTimes::times(Duration so_far) const {
  auto all = times_;
  if (so_far > entered_) {
    all[name_.empty() ? std::string(kOther) : name_] += so_far - entered_;
    return all;
  }
  // Time was taken out of the bucket again, and of which name is not known.
  Duration taken = entered_ - so_far;
  for (auto& [name, time] : all) {
    const Duration part = std::min(time, taken);
    time -= part;
    taken -= part;
  }
  std::erase_if(all, [](const auto& one) { return one.second == Duration::zero(); });
  return all;
}

namespace {

/// Whether workers go on after it where they were.
bool is_within_a_start(Bucket bucket) {
  // By their order: the phases of a script are the last ones.
  return bucket == Bucket::Running || bucket == Bucket::Checkpoint ||
         bucket >= Bucket::Initialization;
}

// Steps do not become that much faster.
constexpr int kTimesRushed = 10;
// Below it nothing was saved between a step and its checkpoint.
constexpr Duration kShortestSave = std::chrono::milliseconds(1);
// Between two steps a script that tells both begin and end always does a little.
constexpr Duration kShortestGap = std::chrono::milliseconds(5);

}  // namespace

Ledger::Ledger(TimePoint job_start) : start_(job_start), last_(job_start) {}

/// What all starts took until their first steps, and these longer than others.
Duration Ledger::until_first_steps(const std::array<Duration, kBuckets>& buckets) {
  return buckets[static_cast<std::size_t>(Bucket::Running)] +
         buckets[static_cast<std::size_t>(Bucket::Preparation)] +
         buckets[static_cast<std::size_t>(Bucket::Initialization)];
}

/// Where seconds go at the moment.
Bucket Ledger::bucket_now() const {
  if (hanging_) return Bucket::Hang;
  return current_ == Bucket::Running && steps_seen_ ? Bucket::Productive : current_;
}

/// Books the time since the last fact.
void Ledger::settle(TimePoint now) {
  // `last_` never goes back, though facts may be told with earlier times.
  const Duration passed = std::max(now - last_, Duration::zero());
  last_ += passed;
  const Bucket bucket = bucket_now();
  of(bucket) += passed;
  if (timeline_) timeline_->spend(bucket, passed);
  // Time of a hang does not count as work that could be lost, and does not lead to a step.
  if (hanging_) return;
  counter_.passed(current_, passed);
  since_progress_[static_cast<std::size_t>(bucket)] += passed;
  if (bucket == Bucket::Productive) {
    unmarked_ += passed;
    since_step_ += passed;
  }
  if (bucket == Bucket::Running) {
    running_ += passed;
    uncovered_ += passed;
    lead_ += passed;
  }
}

/// The latest `time` in `from` before `until`.
void Ledger::move(Bucket from, Bucket to, Duration time, TimePoint until) {
  of(from) -= time;
  of(to) += time;
  if (timeline_) timeline_->move(from, to, time, until - start_);
}

void Ledger::progressed() {
  since_progress_ = {};
  hanging_ = false;
}

void Ledger::world(std::int64_t ranks) {
  if (ranks == ranks_) return;
  several_worlds_ = several_worlds_ || ranks_ > 0;
  ranks_ = ranks;
  usual_.clear();  // others have another pace
}

void Ledger::enter(Bucket bucket, TimePoint now, std::string_view name) {
  settle(now);
  if (bucket == Bucket::Custom) custom_.enter(name, of(bucket));
  const Bucket before = std::exchange(current_, bucket);
  if (!begun_ && bucket != Bucket::Running) lead_ = {};
  if (bucket == Bucket::Checkpoint) {
    counter_.save_begins();
    // Where a script does not say which, what comes before the first step of a start is loading.
    checkpoints_.enter(says_loading(name).value_or(!stepped_) ? kLoading : "save", of(bucket));
  }
  if (!is_within_a_start(bucket)) return progressed();
  // A phase of the script, not another start of the workers.
  if (is_within_a_start(before)) return;
  break_off(Bucket::Restart, std::nullopt);
  // What the first start took would have been needed anyway; all later ones are repeated.
  if (ran_ && restarts_ == 0) before_restarts_ = until_first_steps(buckets_);
  restarts_ += std::exchange(ran_, true) ? 1 : 0;
  steps_seen_ = stepped_ = resting_ = false;
  safe_before_ = safe_step_.value_or(0);
  first_steps_.clear();
  running_ = lead_ = perhaps_begun_ = {};
  numbers_.start();
  counter_.start();
  progressed();
}

/// At most `most` of what went to `from` since the last progress is Hang; how much that was.
Duration Ledger::hang_takes(Bucket from, Duration most) {
  auto& booked = since_progress_[static_cast<std::size_t>(from)];
  const Duration taken = std::clamp(most, Duration::zero(), std::min(booked, of(from)));
  booked -= taken;
  move(from, Bucket::Hang, taken, last_);
  if (from == Bucket::Running) {
    running_ -= std::min(taken, running_);
    uncovered_ -= std::min(taken, uncovered_);
    lead_ -= std::min(taken, lead_);
  }
  if (from == Bucket::Productive) {
    unmarked_ -= std::min(taken, unmarked_);
    since_step_ -= std::min(taken, since_step_);
  }
  return taken;
}

void Ledger::hang(Duration standing, TimePoint now) {
  settle(now);
  // Told twice, or when the group is being stopped already: the report of a hang waits for the
  // stacks.
  if (hanging_ || !is_within_a_start(current_)) return;
  // What it does now, it does last.
  Duration taken = hang_takes(bucket_now(), standing);
  for (std::size_t i = 0; i < kBuckets; ++i) {
    taken += hang_takes(static_cast<Bucket>(i), standing - taken);
  }
  hanging_ = true;
  counter_.hangs();
}

void Ledger::resume(std::int64_t step, TimePoint now) {
  settle(now);
  step = numbers_.of_step(step, kept_.last(), safe_step_, stride_);
  // Only the first step of a start tells where the job resumed.
  if (!stepped_) resume_at(step);
}

void Ledger::begin_step(std::int64_t step, TimePoint now) {
  settle(now);
  step = numbers_.of_step(step, kept_.last(), safe_step_, stride_);
  progressed();
  resting_ = false;
  saved_ = {};
  if (!stepped_) {
    resume_at(step);
    begun_ = true;
    lead_ = {};
  } else if (step < kept_.last()) {
    go_back(step, stepped_at_);
  }
  if (stepped_ && !std::exchange(under_way_, true)) {
    apart_ = last_ > stepped_at_;
    const Duration gap = std::min(unmarked_, since_step_);
    if (gap >= kShortestGap) leave_unexplained(gap);
  }
  under_way_ = true;
  since_step_ = {};
}

/// What of the time since the last step, which counts as the next one's, was perhaps none.
void Ledger::leave_unexplained(Duration time) {
  move(Bucket::Productive, Bucket::Unexplained, time, last_);
  unmarked_ -= std::min(time, unmarked_);
  gap_ += time;
  counter_.unexplained(time);
}

/// What was done from `step` on is done again; the time that it took.
KeptSteps::Done Ledger::go_back(std::int64_t step, TimePoint until) {
  const auto lost = kept_.take_back(step);
  move(Bucket::Productive, Bucket::Lost, lost.time, until);
  move(Bucket::Unexplained, Bucket::Lost, lost.gap, until);
  if (safe_step_ >= step) safe_step_ = step - 1;  // that checkpoint is done again, too
  if (first_ && step <= first_->step) first_.reset();
  if (undone_ && step < undone_->first) undone_.reset();  // what it would restore is lost as well
  exposed_ = late_ = saved_ = {};
  usual_.forget(step);
  broken_ = false;
  return lost;
}

/// The first step of this start is `step`.
void Ledger::resume_at(std::int64_t step) {
  if (!undone_ && !(kept_.last() >= step)) return void(go_back(step, broken_at_));
  auto undone = undone_ ? *std::exchange(undone_, {})
                        : Undone{.kept = kept_, .first = step, .stride = stride_};
  undone.lost += go_back(step, broken_at_);
  undone.first = std::min(undone.first, step);
  if (undone.lost.time + undone.lost.gap > Duration::zero()) undone_ = std::move(undone);
}

/// Whether this start warmed up, and loaded its checkpoint then: far fewer steps fit into `time`
/// than lie before `step`, and an earlier start has done those. What the first step took back is
/// kept after all, up to the load, and the steps until then are lost.
bool Ledger::redo_undone(std::int64_t step, Duration time) {
  if (!undone_) return false;
  const auto resumed = step - undone_->stride + 1;
  const auto before = kept_.last();
  const auto usual = before ? usual_.time(step - *before) : std::nullopt;
  if (!usual || time >= *usual / 2 || resumed <= *before + 1) return false;
  if (undone_->kept.last() < resumed - 1) return false;
  auto undone = *std::exchange(undone_, {});
  go_back(undone.first, last_);
  move(Bucket::Lost, Bucket::Productive, undone.lost.time, broken_at_);
  move(Bucket::Lost, Bucket::Unexplained, undone.lost.gap, broken_at_);
  kept_ = std::move(undone.kept);
  regained_ += undone.lost.time - go_back(resumed, broken_at_).time;
  safe_step_ = resumed - 1;
  stride_ = undone.stride;
  return true;
}

void Ledger::step(std::int64_t step, TimePoint now, bool watched) {
  settle(now);
  step = numbers_.of_step(step, kept_.last(), safe_step_, stride_);
  progressed();
  under_way_ = resting_ = false;
  if (is_within_a_start(current_)) steps_seen_ = true;
  if (!std::exchange(stepped_, true)) {
    first_step(step);
  } else if (step == kept_.last()) {
    // The same step, told by another way: the time since is a part of it.
    kept_.prolong({.time = std::exchange(unmarked_, {}), .gap = std::exchange(gap_, {})});
  } else {
    next_step(step, watched || apart_);
  }
  apart_ = false;
  counter_.step(step);
  last_step_ = step;
  stepped_at_ = last_;
  since_step_ = saved_ = {};
}

void Ledger::first_step(std::int64_t step) {
  resume_at(step);
  const auto before = std::max({kept_.last().value_or(0), safe_before_, std::int64_t{0}});
  kept_.add(step, {1, std::exchange(unmarked_, {})}, ranks_);
  first_ = {.step = step, .before = before, .most = lead_, .credited = {}, .at = last_};
  // All of it is the step's, and what it takes beyond others compiles and warms up.
  if (begun_) move(Bucket::Running, Bucket::Preparation, lead_, last_);
  credit_first(usual_.time());
}

/// As much of the first step of this start as is usual was work, the rest led to it. Where not all
/// steps are told, it may be several.
void Ledger::credit_first(std::optional<Duration> usual) {
  if (!first_ || !usual) return;
  const auto steps = std::clamp<std::int64_t>(first_->step - first_->before, 1, stride_);
  const double all = static_cast<double>(usual->count()) * static_cast<double>(steps);
  const auto most = static_cast<double>(first_->most.count());
  const Duration work(static_cast<std::int64_t>(std::min(all, most)));
  const Duration more = work - first_->credited;
  if (!kept_.prolong(first_->step, {.steps = steps - first_->steps, .time = more})) {
    return first_.reset();
  }
  first_->credited += more;
  first_->steps = steps;
  const auto rest = begun_ ? Bucket::Preparation : Bucket::Running;
  if (more > Duration::zero()) move(rest, Bucket::Productive, more, first_->at);
  if (more < Duration::zero()) move(Bucket::Productive, rest, -more, first_->at);
}

/// No second one follows, which would say what is usual: of the only step that the job told, all
/// was work, if its begin was told, too.
void Ledger::end_first_step() {
  if (begun_ && usual_.known() == 0) credit_first(Duration::max());
}

void Ledger::next_step(std::int64_t step, bool watched) {
  Duration time = std::exchange(unmarked_, {}), gap = std::exchange(gap_, {});
  const Duration covered = std::exchange(covered_, {});
  const bool unclear = std::exchange(unclear_, false);
  const auto before = kept_.last();
  // The script went back by itself, say after a loss that exploded.
  if (before && step < *before) {
    go_back(step, stepped_at_);
    return kept_.add(step, {1, time, gap}, ranks_);
  }
  double apart = static_cast<double>(step) - static_cast<double>(before.value_or(step - 1));
  if (apart <= kFarthest && redo_undone(step, time)) {
    apart = static_cast<double>(step - kept_.last().value_or(step - 1));
  }
  const auto steps = stride_ = apart <= kFarthest ? static_cast<std::int64_t>(apart) : 1;
  const Duration perhaps_saved = take_back_save(time, covered, steps);
  gap += perhaps_saved;
  // With what a checkpoint covered of this step: of steps that are saved in the middle only the
  // rest is new, and a median of such rests says nothing about the pace.
  if (covered > Duration::zero()) late_ = {};
  catch_up(time, steps);
  kept_.add(step, {steps, time, gap}, ranks_);
  if (late_ > Duration::zero()) return;
  const bool measure = !unclear && perhaps_saved == Duration::zero();
  // Also what is too long: if all become slow, that is the new pace.
  usual_.add({.last = step,
              .count = steps,
              .time = time,
              .covered = covered,
              .measure = measure,
              .watched = watched});
  correct_excesses();
  if (!measure || late_ > Duration::zero()) return;
  if (first_steps_.size() == kFirstSteps) return first_.reset();
  first_steps_.push_back((time + covered) / steps);
  auto median = first_steps_.begin() + (std::ssize(first_steps_) - 1) / 2;
  std::ranges::nth_element(first_steps_, median);
  credit_first(*median);
}

/// What was taken for a gap and is the pace by now; or for a step, before there was a measure.
void Ledger::correct_excesses() {
  for (const auto& [step, more] : usual_.take_corrections()) {
    const KeptSteps::Done change{.time = -more, .gap = more};
    if (!kept_.prolong(step, change)) continue;
    if (undone_ && step < undone_->first) undone_->kept.prolong(step, change);
    if (more > Duration::zero()) {
      move(Bucket::Productive, Bucket::Unexplained, more, last_);
      counter_.unexplained(more);
      if (step == kept_.last()) late_ = more;
    } else {
      move(Bucket::Unexplained, Bucket::Productive, -more, last_);
      counter_.made_up(-more);
    }
  }
}

/// Steps that come in a rush after a gap were done in it, and told late.
void Ledger::catch_up(Duration& time, std::int64_t steps) {
  if (late_ <= Duration::zero()) return;
  const Duration usual = *usual_.time(steps);
  // A step that was done now, faster perhaps than those before, not one that is told late.
  if (time >= usual / kTimesRushed) {
    late_ = {};
    return;
  }
  const Duration made_up = std::min(late_, usual - time);
  // A step whose mark has gone keeps its gap, or it could lose more than is unexplained.
  if (const auto step = usual_.made_up(made_up); step && !kept_.prolong(*step, {.gap = -made_up}))
    return void(late_ = {});
  move(Bucket::Unexplained, Bucket::Productive, made_up, last_);
  late_ -= made_up;
  time += made_up;
  counter_.made_up(made_up);
}

/// The time since the last step was a save, as far as it is not that of a step under way. Whether
/// that is not known.
bool Ledger::book_save(std::int64_t step) {
  if (!stepped_ || !last_step_) return false;
  // One that a background thread has saved, of a step that is long over.
  if (step >= 0 && step < last_step_) return false;
  // What a phase says of it is in its bucket already.
  if (since_progress_[static_cast<std::size_t>(Bucket::Checkpoint)] > Duration::zero()) {
    return false;
  }
  // The checkpoint may be told before the end of its step, or where only some steps are told.
  auto under_way = step > *last_step_ ? step - *last_step_ : std::int64_t{under_way_ ? 1 : 0};
  if (step < 0) under_way = std::max(under_way, stride_ - 1);
  const auto work = under_way > 0 ? usual_.time(under_way) : std::optional(Duration::zero());
  if (!work) return true;
  const Duration save = std::min(unmarked_, since_step_) - *work;
  if (save < kShortestSave) return false;
  checkpoints_.enter("save", of(Bucket::Checkpoint));
  move(Bucket::Productive, Bucket::Checkpoint, save, last_);
  unmarked_ -= save;
  since_step_ -= save;
  saved_ += save;
  counter_.saved(save);
  return false;
}

/// The save went on in the background if the step after it took no time beyond that. Where steps
/// vary as much as both took, or the step took less than others, part of it may have been: what.
Duration Ledger::take_back_save(Duration& time, Duration covered, std::int64_t steps) {
  const auto saved = std::exchange(saved_, {});
  const auto usual = usual_.time(steps);
  if (saved <= Duration::zero() || !usual) return {};
  const Duration rest = time + covered, all = rest + saved;
  const Duration missing =
      std::min({saved, std::max(*usual - rest, Duration::zero()), of(Bucket::Checkpoint)});
  if (missing > Duration::zero() && all <= *usual + *usual / 10) {
    move(Bucket::Checkpoint, Bucket::Productive, missing, last_);
    counter_.took_back_save(missing);
    time += missing;
    return {};
  }
  Duration unclear = missing > *usual / 10 ? missing : Duration::zero();
  if (all <= *usual_.at_most(steps)) unclear = std::min(saved, of(Bucket::Checkpoint));
  move(Bucket::Checkpoint, Bucket::Unexplained, unclear, last_);
  counter_.took_back_save(unclear);
  counter_.unexplained(unclear);
  return unclear;
}

void Ledger::checkpoint(std::int64_t step, TimePoint now) {
  settle(now);
  checkpoint_seen_ = true;
  uncovered_ = {};
  undone_.reset();
  if (step >= 0) step = numbers_.of_checkpoint(step, kept_.last());
  const bool unclear = book_save(step);
  progressed();
  const auto covered = step >= 0 ? std::optional(step) : last_step_;
  if (covered) last_checkpoint_ = covered;
  counter_.checkpoint(covered);
  if (!covered) return;
  safe_step_ = std::max(safe_step_, covered);
  resting_ = covered >= last_step_ && !under_way_;
  if ((step >= 0 && covered <= last_step_) || !stepped_) return;
  // The step under way is told after its checkpoint; its pace is that of the whole.
  const Duration time = std::exchange(unmarked_, {});
  if (step >= 0) covered_ += time;
  kept_.prolong({.time = time, .gap = std::exchange(gap_, {})});  // it holds steps never told
  since_step_ = {};
  if (!unclear || !kept_.last() || time < kShortestSave) return;
  unclear_ = true;
  move(Bucket::Productive, Bucket::Unexplained, time, last_);
  kept_.prolong({.time = -time, .gap = time});
  counter_.unexplained(time);
  usual_.add({.last = *kept_.last(),
              .count = std::max<std::int64_t>(step - last_step_.value_or(step), 1),
              .time = time,
              .excess = time,
              .measure = false});
}

void Ledger::untold_checkpoint(TimePoint now) {
  settle(now);
  progressed();
  numbers_.untold(kept_.last());
}

/// The step that was under way is done again, as far as one was; what of the time since the last
/// step or checkpoint the workers took to end.
Duration Ledger::break_off(Bucket then, std::optional<Duration> ending) {
  end_first_step();
  Duration lost = std::exchange(unmarked_, {});
  Duration exit = std::clamp(ending.value_or(Duration::zero()), Duration::zero(), lost);
  lost -= exit;
  const auto due = usual_.time(stride_);
  // With all saved, and no begin of a step told, there is a step only if it took some time.
  if (resting_ && (!ending || (due && lost < *due / 10))) {
    exit += std::exchange(lost, {});
  } else if (due && lost > *due && !ending) {
    exit += lost - *due;
    lost = *due;
  } else if (const Duration stall = usual_.excess(lost, stride_, true); stall > Duration::zero()) {
    move(Bucket::Productive, Bucket::Stalled, stall, last_);
    lost -= stall;
  }
  move(Bucket::Productive, then, exit, last_);
  move(Bucket::Productive, Bucket::Lost, lost, last_);
  if (lost > Duration::zero()) perhaps_begun_ = resting_ ? lost : Duration::zero();
  move(Bucket::Unexplained, Bucket::Lost, std::exchange(gap_, {}), last_);
  // Its time stays what it is, but for what steps of later starts show to be far beyond one.
  if (first_) {
    usual_.add(
        {.last = first_->step, .count = first_->steps, .time = first_->credited, .measure = false});
    correct_excesses();
  }
  covered_ = since_step_ = late_ = saved_ = {};
  first_.reset();
  undone_.reset();
  begun_ = under_way_ = apart_ = unclear_ = false;
  return exit;
}

Duration Ledger::failed(TimePoint now, Bucket then, std::optional<Duration> ending) {
  settle(now);
  current_ = then;
  progressed();
  broken_at_ = last_;
  // Only where something was done that may have to be done again.
  broken_ = broken_ || kept_.last() || uncovered_ > Duration::zero();
  const Duration exit = break_off(then, ending);
  running_ = {};
  // Without steps it is unknown where the next start resumes: all since the last checkpoint may be
  // lost.
  exposed_ += std::exchange(uncovered_, {});
  return exit;
}

void Ledger::left_after_save(Bucket to, TimePoint now) {
  settle(now);
  move(Bucket::Lost, to, std::exchange(perhaps_begun_, {}), last_);
}

void Ledger::end_steps(Bucket to, TimePoint now) {
  settle(now);
  end_first_step();
  // What came after the last step led to no other one.
  const Duration idle = std::min(std::exchange(since_step_, {}), of(Bucket::Productive));
  move(Bucket::Productive, to, idle, last_);
  unmarked_ -= std::min(idle, unmarked_);
  saved_ = gap_ = {};
  since_progress_[static_cast<std::size_t>(Bucket::Productive)] = {};
}

void Ledger::rebook(Bucket from, Bucket to, Duration time, TimePoint now) {
  settle(now);
  move(from, to, std::clamp(time, Duration::zero(), of(from)), last_);
}

void Ledger::rebook_running(Bucket to, TimePoint now) {
  settle(now);
  // From its first step on a start says itself what led there.
  if (steps_seen_ || stepped_ || begun_) return;
  uncovered_ -= std::min(running_, uncovered_);
  move(Bucket::Running, to, std::exchange(running_, {}), last_);
  lead_ = {};
  since_progress_ = {};
}

// What a ledger answers when it is asked; none of it changes the ledger.

double to_share(Duration part, Duration whole) {
  if (whole <= Duration::zero()) return 0;
  return static_cast<double>(part.count()) / static_cast<double>(whole.count());
}

bool Share::is_known() const {
  constexpr std::int64_t kThousandth = 1000;
  return steps_known && loss_known && of(Bucket::Unexplained) * kThousandth <= whole;
}

double Share::most() const {
  const auto good =
      steps_known ? of(Bucket::Productive) + of(Bucket::Unexplained) : of(Bucket::Running);
  return to_share(good, whole);
}

double Share::least() const {
  if (!is_bounded()) return 0;
  return to_share(std::max(of(Bucket::Productive) - doubtful, Duration::zero()), whole);
}

/// The step after which it resumes at best, as long as nothing says otherwise: of the last
/// checkpoint. None where all may be kept.
std::optional<std::int64_t> Ledger::resumes_after() const {
  return broken_ ? std::max(safe_step_, numbers_.perhaps_safe()) : std::nullopt;
}

/// What counts as lost if the job ended now.
KeptSteps::Done Ledger::lost_at_the_end() const {
  if (broken_ && !last_step_) return {.time = checkpoint_seen_ ? exposed_ : Duration::zero()};
  const auto safe = resumes_after();
  return safe ? kept_.above(*safe) : KeptSteps::Done();
}

/// Of what counts as kept: where the job resumed, or could, is not known.
Duration Ledger::doubtful() const {
  constexpr auto kFirst = std::numeric_limits<std::int64_t>::min();
  const auto after = [this](std::int64_t step) { return kept_.above(step).time; };
  Duration time{};
  if (const auto until = numbers_.doubtful()) time = after(kFirst) - after(*until);
  const auto saved = numbers_.perhaps_safe();
  if (!broken_ || !saved || saved <= safe_step_) return time;
  return std::max(time, after(safe_step_.value_or(kFirst)) - after(*saved));
}

/// How far the step that is under way is beyond its usual time, `passed` after the last fact. All
/// of it if nothing says what is usual.
Duration Ledger::excess_so_far(Duration passed) const {
  if (!stepped_) return {};
  const Duration time = unmarked_ + passed;
  return usual_.known() > 0 || apart_ ? usual_.excess(time, stride_, apart_) : time;
}

std::optional<Duration> Ledger::at_full_pace() const {
  if (!several_worlds_ || !last_step_) return std::nullopt;
  const bool lost = broken_ && safe_step_;
  const auto done = kept_.by_ranks(lost ? *safe_step_ : kept_.last().value_or(0));
  if (done.size() < 2) return std::nullopt;
  const auto& full = std::prev(done.end())->second;
  // Of the first step of a start no time is known before the second.
  if (full.steps <= 0 || full.time <= Duration::zero()) return std::nullopt;
  const double pace = static_cast<double>(full.time.count()) / static_cast<double>(full.steps);
  Duration all{};
  for (const auto& [ranks, one] : done) {
    const double most =
        std::min(pace * static_cast<double>(one.steps), static_cast<double>(one.time.count()));
    all += Duration(static_cast<std::int64_t>(most));
  }
  return all;
}

/// By hand and not by a copy that is settled: asked while the job runs, and steps are many.
Ledger::Summary Ledger::summary(TimePoint now) const {
  Summary summary{.elapsed = last_ - start_,
                  .buckets = buckets_,
                  .restarts = restarts_,
                  .last_step = last_step_,
                  .last_checkpoint = last_checkpoint_,
                  .loss_known = !broken_ || checkpoint_seen_,
                  .work = counter_.counts(),
                  .at_full_pace = at_full_pace()};
  summary.last_kept = kept_.last();
  if (const auto safe = resumes_after(); safe && safe < summary.last_kept) {
    summary.last_kept = safe;
  }
  summary.doubtful = doubtful();
  summary.loss_known = summary.loss_known && summary.doubtful <= Duration::zero();
  summary.untold_saves = numbers_.untold_saves();
  summary.begun_again = numbers_.begun_again();
  const auto in = [&summary](Bucket bucket) -> Duration& {
    return summary.buckets[static_cast<std::size_t>(bucket)];
  };
  const Duration passed = std::max(now - last_, Duration::zero());
  const Bucket bucket = bucket_now();
  summary.elapsed += passed;
  in(bucket) += passed;
  const auto lost = lost_at_the_end();
  in(work()) -= lost.time;
  in(Bucket::Unexplained) -= lost.gap;
  in(Bucket::Lost) += lost.time + lost.gap;
  summary.custom = custom_.times(summary.of(Bucket::Custom));
  const auto checkpoints = checkpoints_.times(summary.of(Bucket::Checkpoint));
  const auto loading = checkpoints.find(std::string(kLoading));
  if (loading != checkpoints.end()) summary.restoring = loading->second;
  const auto excess = excess_so_far(bucket == Bucket::Productive ? passed : Duration::zero());
  in(Bucket::Productive) -= excess;
  in(Bucket::Unexplained) += excess;
  if (restarts_ > 0 && last_step_) {
    const auto all = until_first_steps(summary.buckets);
    summary.repeated = std::max(all - before_restarts_, Duration::zero());
  }
  return summary;
}

std::vector<Timeline::Span> Ledger::timeline(TimePoint now) const {
  if (!timeline_) return {};
  Ledger copy = *this;
  copy.settle(now);
  copy.move(Bucket::Productive, Bucket::Unexplained, copy.excess_so_far({}), copy.last_);
  const auto lost = lost_at_the_end();
  copy.move(Bucket::Unexplained, Bucket::Lost, lost.gap, broken_at_);
  copy.move(work(), Bucket::Lost, lost.time, broken_at_);
  return copy.timeline_->spans();
}

}  // namespace elastrun::goodput
