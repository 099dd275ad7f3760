// SPDX-License-Identifier: Apache-2.0
#include "goodput_conversions.hpp"

#include "core/text.hpp"
#include "export/chrome_trace.hpp"
#include "export/record_line.hpp"
#include "export/tensorboard.hpp"
#include "goodput/journals/measurement_journal.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace elastrun::ctl {
namespace {

using exporter::TraceEvent;
using goodput::Bucket;
using Span = goodput::Timeline::Span;

const goodput::History& history_of(const GoodputAnswer& answer, const goodput::History& journal) {
  return answer.measured ? answer.measured->history : journal;
}

/// For Perfetto: what the launcher's own trace has, on one axis for all submissions, and above it
/// the account: what the time went to, and each restart with its stages.
class ToChromeTrace final : public GoodputConversion {
 public:
  std::string begin() override { return std::string(exporter::kTraceBegin); }

  std::string record(telemetry::Record record, const GoodputInput& input) override {
    // Each submission has a monotonic clock with a zero of another day; the time since the start of
    // the job is one axis for all.
    record.stamp.mono = TimePoint() + input.journal.elapsed();
    return lines_.of(record);
  }

  std::string end(const GoodputInput& input, const GoodputAnswer& answer) override {
    const auto journal = input.journal.history();
    const auto& history = history_of(answer, journal);
    std::string text =
        exporter::trace_process(kAccount, fmt::format("goodput of {}", printable(answer.name)), -1);
    for (const auto& span : history.spans) text += line_of(span);
    for (const auto& path : input.journal.restarts()) text += lines_of(path);
    for (const auto& point : history.steps) text += line_of(point);
    text.resize(text.size() - 2);  // the comma and the newline: here the array is closed
    return text + "\n]\n";
  }

 private:
  static constexpr std::int64_t kAccount = std::int64_t{1} << 30;  // no rank is so large
  enum Thread : std::int64_t { kBuckets = 1, kRestarts = 2 };

  static TraceEvent stretch(std::string name, Thread thread, Duration from, Duration length) {
    TraceEvent event{TraceEvent::Phase::Complete, std::move(name), "goodput"};
    event.time = from;
    event.length = length;
    event.process = kAccount;
    event.thread = thread;
    return event;
  }

  static std::string line_of(const Span& span) {
    auto event = stretch(std::string(bucket_name(span.most())), kBuckets, span.from, span.length());
    for (std::size_t i = 0; i < goodput::kBuckets && !span.is_pure(); ++i) {
      if (span.buckets[i] <= Duration::zero()) continue;
      event.arguments.emplace_back(fmt::format("{}_s", bucket_name(static_cast<Bucket>(i))),
                                   to_seconds(span.buckets[i]));
    }
    return trace_line(event);
  }

  /// The stages lie within the restart, one after the other.
  static std::string lines_of(const goodput::RestartPath& path) {
    auto whole =
        stretch(path.cause.empty() ? "restart" : path.cause, kRestarts, path.at, path.total());
    if (path.last_step) whole.arguments.emplace_back("last_step", *path.last_step);
    if (path.first_step) whole.arguments.emplace_back("first_step", *path.first_step);
    std::string text = trace_line(whole);
    Duration from = path.at;
    for (std::size_t i = 0; i < goodput::kRestartStages; ++i) {
      if (path.stages[i] <= Duration::zero()) continue;
      const auto name = goodput::stage_name(static_cast<goodput::RestartStage>(i));
      text += trace_line(stretch(std::string(name), kRestarts, from, path.stages[i]));
      from += path.stages[i];
    }
    return text;
  }

  static std::string line_of(const goodput::StepSeries::Point& point) {
    TraceEvent event{TraceEvent::Phase::Counter, "step time", "goodput"};
    event.time = point.at;
    event.process = kAccount;
    event.arguments = {{"mean_s", to_seconds(point.mean())}, {"longest_s", to_seconds(point.max)}};
    return trace_line(event);
  }

  exporter::TraceLines lines_{TimePoint()};
};

/// Samples and windows as the launcher's own event files have them; of the account the time of
/// steps, by step, and the goodput so far, by second.
class ToTensorBoard final : public GoodputConversion {
 public:
  std::string record(telemetry::Record record, const GoodputInput&) override {
    const auto first = begun_ ? std::string() : head(record.stamp.wall);
    return first + records_.of(record);
  }

  std::string end(const GoodputInput& input, const GoodputAnswer& answer) override {
    const auto journal = input.journal.history();
    const auto& history = history_of(answer, journal);
    const WallTime start = answer.measured ? WallTime() + from_seconds(answer.measured->first)
                                           : input.journal.first_wall();
    std::string text = begun_ ? std::string() : head(start);
    for (const auto& point : history.steps) {
      text +=
          exporter::tensorboard_values(start + point.at, point.last,
                                       {{"goodput/step_seconds", to_seconds(point.mean())},
                                        {"goodput/longest_step_seconds", to_seconds(point.max)}});
    }
    Duration good{};
    for (const auto& span : history.spans) {
      good += span.of(answer.summary.steps_known() ? Bucket::Productive : Bucket::Running);
      text += exporter::tensorboard_values(
          start + span.to, std::chrono::floor<std::chrono::seconds>(span.to).count(),
          {{"goodput/share", to_seconds(good) / to_seconds(span.to)}});
    }
    return text;
  }

 private:
  std::string head(WallTime when) {
    begun_ = true;
    return exporter::tensorboard_version(when);
  }

  exporter::TensorBoardRecords records_;
  bool begun_ = false;
};

/// A log of ml-goodput-measurement as a journal, of which `report` prints the same.
class ToJournal final : public GoodputConversion {
 public:
  /// A journal is refused once all was read.
  std::string record(telemetry::Record, const GoodputInput&) override { return {}; }

  std::string entry(const json::object& entry, double log_time,
                    const GoodputInput& input) override {
    const auto record = goodput::record_of_entry(entry, log_time);
    last_ = record.stamp.wall;
    const bool first = !std::exchange(begun_, true);
    return (first ? line_of(goodput::begin_of_log(input.job, last_)) : "") + line_of(record);
  }

  std::string end(const GoodputInput& input, const GoodputAnswer&) override {
    return input.skipped == 0 ? "" : line_of(goodput::lines_left_out(input.skipped, last_));
  }

 private:
  static std::string line_of(const telemetry::Record& record) {
    return exporter::to_json_line(record) + '\n';
  }

  bool begun_ = false;
  WallTime last_{};
};

}  // namespace

std::unique_ptr<GoodputConversion> conversion_to(std::string_view form) {
  if (form == "tensorboard") return std::make_unique<ToTensorBoard>();
  if (form == "journal") return std::make_unique<ToJournal>();
  return std::make_unique<ToChromeTrace>();
}

}  // namespace elastrun::ctl
