// SPDX-License-Identifier: Apache-2.0

#include "core/error.hpp"
#include "core/file_io.hpp"
#include "core/host.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "elastrunctl/command_line.hpp"
#include "elastrunctl/goodput_files.hpp"
#include "export/record_line.hpp"
#include "export/viewer_files.hpp"
#include "files/whole_file.hpp"
#include "goodput/compat/goodput_calculator.hpp"

#include <algorithm>
#include <cmath>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>

namespace elastrun::ctl {

/// What `goodput convert` writes, in three parts; record by record, so that a journal may be of any
/// length. Pure.
class GoodputConversion {
 public:
  virtual ~GoodputConversion() = default;
  virtual std::string begin() { return {}; }
  /// A record of a journal that `input` has just taken.
  virtual std::string record(telemetry::Record record, const GoodputInput& input) = 0;
  /// An entry of a log, as GoodputReader::on_entry gets it.
  virtual std::string entry(goodput::Members, double, const GoodputInput&) { return {}; }
  /// What the account adds once all was read.
  virtual std::string end(const GoodputInput& input, const GoodputAnswer& answer) = 0;
};

namespace {

using exporter::TraceEvent;
using goodput::Bucket;
using Span = goodput::Timeline::Span;

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
    std::string text =
        exporter::trace_process(kAccount, fmt::format("goodput of {}", printable(answer.name)), -1);
    for (const auto& span : answer.history.spans) text += line_of(span);
    for (const auto& path : input.journal.restarts()) text += lines_of(path);
    for (const auto& point : answer.history.steps) text += line_of(point);
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

  std::string end(const GoodputInput&, const GoodputAnswer& answer) override {
    std::string text = begun_ ? std::string() : head(answer.first);
    for (const auto& point : answer.history.steps) {
      text +=
          exporter::tensorboard_values(answer.at(point.at), point.last,
                                       {{"goodput/step_seconds", to_seconds(point.mean())},
                                        {"goodput/longest_step_seconds", to_seconds(point.max)}});
    }
    Duration good{};
    for (const auto& span : answer.history.spans) {
      good += span.of(answer.summary.steps_known() ? Bucket::Productive : Bucket::Running);
      text += exporter::tensorboard_values(
          answer.at(span.to), std::chrono::floor<std::chrono::seconds>(span.to).count(),
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

/// A log of ml-goodput-measurement as a journal (elastrun-protocol(7)), of which `report` prints
/// the same: a record that begins the job and names where it comes from, one for each entry, and
/// one that counts what was left out.
class ToJournal final : public GoodputConversion {
 public:
  /// A journal is refused once all was read.
  std::string record(telemetry::Record, const GoodputInput&) override { return {}; }

  std::string entry(goodput::Members entry, double log_time, const GoodputInput& input) override {
    const bool logged = std::isfinite(log_time);
    const auto read = goodput::read_measurement(entry);
    const auto kind = read ? measurement_name(read->entry.kind) : std::string_view();
    const double time = logged ? log_time : read ? read->entry.time : 0;
    // The stamp is for people and for the order of files: the entry has its times as they were.
    // Years that no clock shows would not be read again.
    last_ = WallTime(from_seconds(std::clamp(time, 0.0, 8.9e9)));
    std::vector<telemetry::Attribute> members;
    for (const auto& member : entry) {
      const auto* real = std::get_if<double>(&member.second);
      const bool structured = real != nullptr && std::isnan(*real);
      if (!structured && !(logged && member.first == kLogTime)) members.push_back(member);
    }
    if (logged) members.emplace_back(kLogTime, log_time);
    std::string lines;
    if (!std::exchange(begun_, true)) {
      lines = line_of("elastrun.agent", "job.started",
                      {{"format", std::int64_t{1}},
                       {"run_id", input.job},
                       {"source", std::string(kLogSource)}});
    }
    return lines +
           line_of(goodput::kRecorderScope, kind.empty() ? "entry" : kind, std::move(members));
  }

  std::string end(const GoodputInput& input, const GoodputAnswer&) override {
    if (input.skipped == 0) return {};
    return line_of(goodput::kRecorderScope, "left_out",
                   {{"count", static_cast<std::int64_t>(input.skipped)}});
  }

 private:
  static constexpr const char* kLogTime = "log_time";

  /// A line at last_; such a log has one clock.
  std::string line_of(std::string_view scope, std::string_view name,
                      std::vector<telemetry::Attribute> attributes) const {
    telemetry::Record record;
    record.stamp = {TimePoint(last_.time_since_epoch()), last_};
    record.scope = scope;
    record.name = name;
    record.attributes = std::move(attributes);
    return exporter::to_json_line(record) + '\n';
  }

  bool begun_ = false;
  WallTime last_{};
};

}  // namespace

/// One of kConversions.
std::unique_ptr<GoodputConversion> conversion_to(std::string_view form) {
  if (form == "tensorboard") return std::make_unique<ToTensorBoard>();
  if (form == "journal") return std::make_unique<ToJournal>();
  return std::make_unique<ToChromeTrace>();
}

/// Standard output, a device or FIFO, or a file that readers see whole or not at all: it is written
/// beside its place and put there by finish(), in which an older one is replaced.
class GoodputOutput {
 public:
  /// An empty path is standard output.
  explicit GoodputOutput(std::string path) : path_(std::move(path)) {}

  /// Each fails with Io.
  Status open() {
    if (path_.empty()) return {};
    if (files::is_written_to(path_)) {
      auto device = files::open_by_name(path_, O_WRONLY);
      if (!device) return std::unexpected(device.error());
      device_ = std::move(*device);
      return {};
    }
    // Under another name until it is whole: an input that turns out to be wrong leaves what was
    // there.
    draft_.emplace(AT_FDCWD, fmt::format("{}.{}", path_, random_text(8)));
    if (const int number = draft_->open(0666); number != 0) return refused(number);
    return {};
  }

  Status write(std::string_view bytes) {
    waiting_ += bytes;
    return waiting_.size() < kBatch ? Status() : write_out();
  }
  Status finish() {
    if (const auto status = write_out(); !status || !draft_) return status;
    if (const int number = draft_->put_in_place(path_); number != 0) return refused(number);
    return {};
  }

 private:
  Status write_out() {
    const int fd = device_ ? device_.get() : STDOUT_FILENO;
    const int number = draft_ ? draft_->write(waiting_) : write_all(fd, waiting_);
    waiting_.clear();
    if (number != 0) return refused(number);
    return {};
  }

  std::unexpected<Error> refused(int number) const {
    return std::unexpected(
        errno_error(Code::Io, "cannot write " + (path_.empty() ? "to stdout" : path_), number));
  }

  static constexpr std::size_t kBatch = 64 << 10;
  const std::string path_;
  UniqueFd device_;
  std::optional<files::Draft> draft_;
  std::string waiting_;
};

namespace {

namespace fs = std::filesystem;

/// Nothing for standard output.
std::string output_of(const ConvertOptions& options) {
  std::error_code none;
  if (options.to != "tensorboard" || !fs::is_directory(options.output, none)) return options.output;
  return (fs::path(options.output) / exporter::tensorboard_file_name(
                                         std::chrono::system_clock::now(), host_name(), ::getpid()))
      .string();
}

Status convert(const ConvertOptions& options, GoodputOutput& file) {
  const auto conversion = conversion_to(options.to);
  GoodputReader reader;
  reader.input.journal.keep_history();
  auto status = file.write(conversion->begin());
  reader.on_record = [&](telemetry::Record record) {
    if (status) status = file.write(conversion->record(std::move(record), reader.input));
  };
  reader.on_entry = [&](goodput::Members entry, double log_time) {
    if (status) status = file.write(conversion->entry(entry, log_time, reader.input));
  };
  if (const auto read = read_into(reader, options.files); !read) return read;
  if (!status) return status;
  if (options.to == "journal" && !reader.input.measured && reader.input.records > 0) {
    return fail(Code::Usage, "what is to be converted is a journal already");
  }
  const auto answer = answer_of(reader.input, false);
  if (!answer) return std::unexpected(answer.error());
  status = file.write(conversion->end(reader.input, *answer));
  return status ? file.finish() : status;
}

}  // namespace

int run_goodput_convert(const ConvertOptions& options) {
  const auto path = output_of(options);
  if (path.empty() && options.to == "tensorboard" && ::isatty(STDOUT_FILENO) == 1) {
    return report_error("an event file is nothing for a terminal: name a file or directory with -o",
                        kExitUsage);
  }
  std::error_code none;
  for (const auto& input : options.files) {
    // What is written would replace what it was made of.
    if (!path.empty() && fs::equivalent(input, path, none)) {
      return report_error(fmt::format("{} is what is to be converted", path), kExitUsage);
    }
  }
  GoodputOutput file(path);
  auto status = file.open();
  if (status) status = convert(options, file);
  return status ? kExitDone : report_error(status.error().text, kExitFailed);
}

}  // namespace elastrun::ctl
