// SPDX-License-Identifier: Apache-2.0
#include "goodput/compat/goodput_calculator.hpp"

#include "goodput/compat/step_times.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <ranges>
#include <utility>

namespace elastrun::goodput {
namespace {

using EntryKind = MeasurementKind;

/// Seconds made shares of `total`, and OTHER is what is left.
struct Shares {
  double percent = 0;
  BadputTimes seconds;
  BadputTimes percents;
};

double share(double seconds, double total) {
  return seconds > 0 && seconds < total ? seconds / total * 100 : 0;
}

Shares shares_of(const MeasuredTimes& times, double total) {
  Shares shares{times.productive / total * 100, times.badput, {}};
  const auto zero_if_impossible = [total](double& seconds) {
    if (seconds < 0 || seconds > total) seconds = 0;
  };
  for (double& seconds : shares.seconds.seconds) zero_if_impossible(seconds);
  for (auto& [name, seconds] : shares.seconds.custom) zero_if_impossible(seconds);
  // What is loaded beside the steps takes nothing from the total; the sum below adds it again.
  double known = times.productive - shares.seconds[BadputType::DataLoadingAsync];
  for (const double seconds : shares.seconds.seconds) known += seconds;
  for (const auto& [name, seconds] : shares.seconds.custom) known += seconds;
  shares.seconds[BadputType::Other] = std::max(0.0, total - known);
  std::ranges::transform(shares.seconds.seconds, shares.percents.seconds.begin(),
                         [total](double seconds) { return share(seconds, total); });
  for (const auto& [name, seconds] : shares.seconds.custom) {
    shares.percents.custom[name] = share(seconds, total);
  }
  return shares;
}

/// To a whole number, of two that are as near to the even one, as Python; without libm (see
/// exponential.hpp).
double round_half_even(double number) {
  constexpr double kAllWhole = 0x1p52;  // from here on doubles have no fractions
  const double size = std::abs(number);
  // The sum has no room for a fraction, so the processor rounds it, to the even one (IEEE 754). It
  // must not be simplified: -ffast-math would take both terms away.
  return size < kAllWhole ? std::copysign(size + kAllWhole - kAllWhole, number) : number;
}

/// The original's datetimes have whole microseconds.
double as_datetime(double seconds) {
  return round_half_even(seconds * 1e6) / 1e6;
}

std::vector<StepSeconds> step_durations(std::span<const MeasurementEntry> entries) {
  std::vector<StepSeconds> durations;
  const MeasurementEntry* last = nullptr;
  for (const auto& entry : entries) {
    if (entry.kind != EntryKind::Step) continue;
    // Between other numbers lies more than one step.
    if (last != nullptr && entry.step == last->step + 1) {
      durations.push_back({last->step, entry.time - last->time});
    }
    last = &entry;
  }
  keep_last_of_each(durations);
  return durations;
}

std::vector<double> values_of(std::span<const StepSeconds> steps) {
  std::vector<double> values;
  values.reserve(steps.size());
  for (const auto& one : steps) values.push_back(one.seconds);
  return values;
}

/// Those that a metric of all deviations needs.
std::span<const StepSeconds> last_of(std::span<const StepSeconds> steps) {
  return steps.last(std::min(steps.size(), kMostDeviations));
}

/// Without ends of the job after which it has started again: with these the original takes its time
/// from the first start to such an end, and has no answer if that is too short for the steps.
std::vector<MeasurementEntry> without_stale_ends(std::span<const MeasurementEntry> entries) {
  std::vector<MeasurementEntry> kept;
  const auto starts = entries | std::views::reverse;
  const auto last = std::ranges::find(starts, EntryKind::JobStart, &MeasurementEntry::kind).base();
  std::copy_if(entries.begin(), last, std::back_inserter(kept),
               [](const auto& entry) { return entry.kind != EntryKind::JobEnd; });
  kept.insert(kept.end(), last, entries.end());
  return kept;
}

/// From the first job start to the last job end, or now, in whole microseconds.
Result<TimeSpan> job_span(std::span<const MeasurementEntry> entries, double now) {
  std::optional<double> begin, end;
  for (const auto& entry : entries) {
    if (entry.kind == EntryKind::JobStart && !begin) begin = entry.time;
    if (entry.kind == EntryKind::JobEnd) end = entry.time;
  }
  if (!begin) return fail(Code::Usage, "the log has no start of the job");
  const TimeSpan span{as_datetime(*begin), as_datetime(end.value_or(now))};
  if (span.length() <= 0) {
    return fail(Code::Usage, "the total time of the job is zero: it ends before it begins");
  }
  return span;
}

}  // namespace

/// All of them, or those of them in `room`.
GoodputCalculator::Entries GoodputCalculator::entries_until(
    double time, std::vector<MeasurementEntry>& room) const {
  const auto has_come = [time](const MeasurementEntry& entry) { return entry.log_time <= time; };
  if (std::ranges::all_of(log_.entries(), has_come)) return log_.entries();
  std::ranges::copy_if(log_.entries(), std::back_inserter(room), has_come);
  return room;
}

void GoodputCalculator::measure_again(Entries entries) {
  measured_ = measure(log_, entries, {kind_ == Kind::Elastic, nullptr});
  measured_entries_ = entries.size();
  disruptions_ = measured_->disruptions;
}

/// What cannot be computed leaves the deviations as they are until there are new steps, as there.
void GoodputCalculator::deviate_from(std::optional<double> ideal, std::vector<StepSeconds> steps) {
  if (!ideal) ideal = goodput::ideal_step_time(values_of(steps));
  if (steps.empty() || !ideal || *ideal == 0) return;
  for (auto& step : steps) step.seconds -= *ideal;
  deviations_.ideal = ideal;
  deviations_.seconds = std::move(steps);
}

void GoodputCalculator::deviate(Entries entries, std::optional<double> ideal) {
  const auto steps = std::ranges::count(entries, EntryKind::Step, &MeasurementEntry::kind);
  if (std::exchange(deviations_.steps, steps) == steps) return;
  deviate_from(ideal, step_durations(entries));
  for (auto& step : deviations_.seconds) step.seconds = std::abs(step.seconds);
}

const std::vector<StepSeconds>& GoodputCalculator::step_deviations(double now,
                                                                   std::optional<double> ideal) {
  std::vector<MeasurementEntry> room;
  until_ = std::max(until_, now);
  deviate(entries_until(until_, room), ideal);
  return deviations_.seconds;
}

Result<JobGoodput> GoodputCalculator::job(double now, std::optional<double> ideal,
                                          std::optional<double> until) {
  std::vector<MeasurementEntry> room;
  // What an earlier question has seen stays known, as with the original.
  until_ = std::max(until_, until.value_or(now));
  const auto entries = entries_until(until_, room);
  if (!measured_ || measured_entries_ != entries.size()) measure_again(entries);
  auto span = job_span(entries, now);
  if (!span) return std::unexpected(span.error());
  if (measured_->productive < 0 || measured_->productive > span->length()) {
    const auto current = without_stale_ends(entries);
    measure_again(current);
    span = job_span(current, now);
    if (!span || measured_->productive < 0 || measured_->productive > span->length()) {
      return fail(Code::Usage, "the productive time is not within the total time");
    }
  }
  const double total = span->length();
  auto shares = shares_of(*measured_, total);
  deviate(entries, ideal);
  JobGoodput answer;
  answer.percent = shares.percent;
  answer.badput_percent = std::move(shares.percents);
  answer.max_productive_step = measured_->max_productive_step;
  answer.productive_seconds = measured_->productive;
  answer.badput_seconds = std::move(shares.seconds);
  answer.total_seconds = total;
  answer.disruptions = disruptions_;
  answer.ideal_step_time = deviations_.ideal;
  answer.step_deviation_metric =
      deviation_metric(values_of(last_of(deviations_.seconds)), DeviationOver::Job);
  answer.slices = slices(entries, *span);
  return answer;
}

/// Those that the log got after the begin of the window and until its end; of windows that move
/// forward, from the begin of the first on. The entry's own time decides as well.
std::vector<MeasurementEntry> GoodputCalculator::entries_in(const TimeSpan& window) {
  const bool forward = last_window_ && last_window_->found &&
                       window.begin >= last_window_->span.begin &&
                       window.end > last_window_->span.end;
  const double read_from = forward ? last_window_->read_from : window.begin;
  std::vector<MeasurementEntry> kept;
  std::ranges::copy_if(log_.entries(), std::back_inserter(kept), [&](const auto& entry) {
    return entry.log_time > read_from && entry.log_time <= window.end && entry.time > window.begin;
  });
  last_window_ = Window{window, read_from, !kept.empty()};
  return kept;
}

Result<WindowGoodput> GoodputCalculator::window(const TimeSpan& window) {
  const auto entries = entries_in(window);
  if (entries.empty()) return fail(Code::Usage, "the log has no entry in the window");
  const double total = as_datetime(std::min(window.end, entries.back().time)) -
                       as_datetime(std::max(window.begin, entries.front().time));
  if (total <= 0) return fail(Code::Usage, "the entries of the window span no time");
  const auto times = measure(log_, entries, {kind_ == Kind::Elastic, nullptr});
  disruptions_ = times.disruptions;
  if (times.productive < 0 || times.productive > total) {
    return fail(Code::Usage, "the productive time is not within the total time");
  }
  auto shares = shares_of(times, total);
  return WindowGoodput{shares.percent, std::move(shares.percents), times.max_productive_step,
                       total,          times.disruptions,          slices(entries, window)};
}

Result<ExcludedGoodput> GoodputCalculator::job_without(std::vector<TimeSpan> spans, double now,
                                                       std::optional<double> ideal) {
  for (const auto& span : spans) {
    if (!(span.length() > 0)) return fail(Code::Usage, "an excluded span ends before it begins");
  }
  std::vector<MeasurementEntry> room;
  const auto entries = entries_until(now, room);
  const auto excluded = merged(std::move(spans));
  auto times = measure(log_, entries, {kind_ == Kind::Elastic, &excluded});
  disruptions_ = times.disruptions;
  ExcludedGoodput answer;
  answer.max_productive_step = times.max_productive_step;
  answer.excluded_seconds = times.excluded;
  answer.disruptions = times.disruptions;
  const auto span = job_span(entries, now);
  answer.total_seconds = (span ? span->length() : 0) - times.excluded;
  if (answer.total_seconds <= 0) return answer;
  auto shares = shares_of(times, answer.total_seconds);
  answer.percent = shares.percent;
  answer.badput_percent = std::move(shares.percents);
  answer.productive_seconds = times.productive;
  answer.badput_seconds = std::move(shares.seconds);
  keep_last_of_each(times.steps);
  // As deviate() leaves it, which would otherwise replace these deviations at the next question.
  deviations_.steps = std::ranges::count(entries, EntryKind::Step, &MeasurementEntry::kind);
  deviate_from(ideal, std::move(times.steps));
  return answer;
}

/// The counts are a step function; the time before the first of them weighs nothing.
std::optional<SliceEfficiency> GoodputCalculator::slices(std::span<const MeasurementEntry> entries,
                                                         const TimeSpan& span) const {
  if (kind_ != Kind::Elastic) return std::nullopt;
  std::vector<MeasurementEntry> counts;
  std::ranges::copy_if(entries, std::back_inserter(counts), [&](const auto& entry) {
    return entry.kind == EntryKind::SliceCounts && entry.time <= span.end;
  });
  std::ranges::stable_sort(counts, {}, &MeasurementEntry::time);
  SliceEfficiency sums;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto& slices = log_.slices(counts[i]);
    const double from = std::max(counts[i].time, span.begin);
    const double until =
        i + 1 < counts.size() ? std::max(counts[i + 1].time, span.begin) : span.end;
    // A share of no slices is NaN or infinite, and so would be the whole sum.
    if (slices.total == 0) continue;
    sums.stepping += slices.active / slices.total * (until - from);
    sums.available += slices.available / slices.total * (until - from);
  }
  return SliceEfficiency{sums.stepping / span.length(), sums.available / span.length(),
                         !counts.empty()};
}

}  // namespace elastrun::goodput
