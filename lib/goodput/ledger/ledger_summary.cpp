// SPDX-License-Identifier: Apache-2.0
// What a ledger answers when it is asked; none of it changes the ledger.
#include "goodput/ledger/ledger.hpp"

#include <algorithm>
#include <iterator>
#include <limits>

namespace elastrun::goodput {

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
