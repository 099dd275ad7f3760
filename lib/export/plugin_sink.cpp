// SPDX-License-Identifier: Apache-2.0
#include "export/plugin_sink.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

#include <fmt/format.h>
#include <optional>
#include <utility>

namespace elastrun::exporter {
namespace {

constexpr std::string_view kPluginArea = "metrics";

std::size_t size_of_value(const telemetry::Value& value) {
  const auto* const text = std::get_if<std::string>(&value);
  return text == nullptr ? 0 : text->size();
}

std::size_t size_of_attributes(const std::vector<telemetry::Attribute>& all) {
  std::size_t bytes = all.size() * sizeof(telemetry::Attribute);
  for (const auto& [key, value] : all) bytes += key.size() + size_of_value(value);
  return bytes;
}

log::Level level_of(int severity) {
  if (severity >= ELASTRUN_FATAL) return log::Level::Critical;
  if (severity >= ELASTRUN_ERROR) return log::Level::Error;
  if (severity >= ELASTRUN_WARN) return log::Level::Warning;
  return severity >= ELASTRUN_INFO ? log::Level::Info : log::Level::Debug;
}

}  // namespace

std::size_t size_of_record(const telemetry::Record& record) {
  std::size_t bytes = sizeof(record) + record.scope.size() + record.name.size() +
                      size_of_value(record.value) + size_of_attributes(record.attributes);
  if (record.window) {
    bytes += sizeof(*record.window) + size_of_attributes(record.window->aggregates);
  }
  return bytes;
}

PluginSink::PluginSink(boost::asio::any_io_executor loop, Clock& clock, std::string name)
    : MetricsSink(std::move(name)),
      clock_(clock),
      // Never on the loop: foreign code may block for ever.
      calls_(std::move(loop), files::BlockingCalls::WithoutThread::Refuse) {}

Result<std::shared_ptr<PluginSink>> PluginSink::open(boost::asio::any_io_executor loop,
                                                     Clock& clock, std::string name,
                                                     const Load& load, Duration limit) {
  using Loaded = Result<std::shared_ptr<plugin::Library>>;
  std::shared_ptr<PluginSink> sink(new PluginSink(std::move(loop), clock, std::move(name)));
  const auto loaded = std::make_shared<std::optional<Loaded>>();
  const auto work = [load, loaded]() -> Result<bool> {
    loaded->emplace(load());
    return true;
  };
  // On its thread from the first call on: a library may bind what it makes to the thread of open().
  sink->calls_.make("opening " + sink->name(), work, [](const Result<bool>&) {});
  if (!sink->calls_.finish(limit)) {
    return fail(Code::Io,
                fmt::format("the plug-in was not open within {}", format_duration(limit)));
  }
  if (!*loaded) return fail(Code::Io, "cannot start a thread for the plug-in (see \"ulimit -u\")");
  if (!**loaded) return std::unexpected((*loaded)->error());
  sink->library_ = std::move(***loaded);
  return sink;
}

void PluginSink::consume(const telemetry::Record& record) {
  // Before it is counted: what a plug-in has no function for is not lost.
  if (!library_->takes(record.kind)) return;
  given_ += 1;
  queue_.add(record);
  // Events are few, and an alert may hang on one; of samples there are thousands.
  if (record.kind == telemetry::Record::Kind::Event || queue_.bytes() >= kBatch) {
    return hand_over();
  }
  if (std::exchange(pausing_, true)) return;
  if (!pause_) pause_ = clock_.make_alarm();
  pause_->arm(clock_.now() + kPause, [this] {
    pausing_ = false;
    hand_over();
  });
}

void PluginSink::flush(TimePoint) {
  hand_over();
}

std::optional<telemetry::Cursor::Temporality> PluginSink::pulls() const {
  if (!library_->takes_series()) return std::nullopt;
  return telemetry::Cursor::Temporality::Cumulative;
}

/// Of what is cumulative only the latest counts: what has not been taken by now never will be.
void PluginSink::pull(const telemetry::Snapshot& snapshot) {
  given_ += snapshot.points.size();
  series_ = std::make_shared<const telemetry::Snapshot>(snapshot);
  hand_over();
}

/// On the thread of the plug-in. The first trouble, or nothing.
Result<std::string> PluginSink::give(plugin::Library& library, Progress& progress,
                                     const Batch& batch) {
  std::string trouble;
  const auto note = [&](const Status& taken, std::uint64_t of = 1) {
    if (taken) {
      progress.taken += of;
    } else if (trouble.empty()) {
      trouble = taken.error().text;
    }
  };
  for (const auto& record : batch.records) note(library.take(record));
  if (batch.series) {
    for (const auto& point : batch.series->points) note(library.take(point, batch.series->at));
  }
  if (!batch.records.empty() || batch.series) note(library.flush(), 0);
  // After flush(), on the same thread as all calls before it.
  if (batch.last) library.close();
  return trouble;
}

void PluginSink::hand_over() {
  if (busy_ || closed_) return;  // the rest when that is done
  Batch batch{queue_.take(kBatch), std::exchange(series_, {})};
  if (batch.records.empty() && !batch.series && !finished_) return;
  // The queue may hold more than one batch: the last one alone closes the plug-in.
  closed_ = batch.last = finished_ && queue_.empty();
  busy_ = true;
  in_hand_ = batch.records.size() + (batch.series ? batch.series->points.size() : 0);
  calls_.make(
      name(),
      // Shared, since a call that blocks for ever outlives this sink.
      [library = library_, progress = progress_, batch = std::move(batch)] {
        return give(*library, *progress, batch);
      },
      [this, alive = lifetime_.token()](const Result<std::string>& trouble) {
        if (alive) handed_over(trouble);
      });
}

void PluginSink::handed_over(const Result<std::string>& trouble) {
  busy_ = false;
  in_hand_ = 0;
  pass_log_on();
  if (!trouble) failed(trouble.error().text);
  if (trouble && !trouble->empty()) failed(*trouble);
  // Nothing after it, since it may destroy this sink.
  if (closed_) return std::exchange(finished_, {})();
  if (finished_ || queue_.bytes() >= kBatch || !pausing_) hand_over();
}

void PluginSink::failed(const std::string& why) {
  if (!trouble_.empty()) return;
  trouble_ = why;
  log::warning(kPluginArea, "{}: {}; what fails is lost, and told in the end", name(), why);
}

void PluginSink::pass_log_on() {
  for (const auto& line : library_->take_log()) {
    const auto level = level_of(line.severity);
    if (!log::is_on(level)) continue;
    log::write(level, kPluginArea, fmt::format("{}: {}", name(), printable(line.text)));
  }
}

void PluginSink::finish(std::function<void()> done) {
  if (pause_) pause_->disarm();
  if (next_look_) next_look_->disarm();
  pass_log_on();
  finished_ = std::move(done);
  hand_over();
}

SinkAccount PluginSink::account() const {
  const auto taken = progress_->taken.load();
  const auto lost = given_ - std::min(given_, taken);
  const auto waiting = queue_.size() + (series_ ? series_->points.size() : 0) + in_hand_;
  return {name(), taken, lost, trouble_, std::min<std::uint64_t>(lost, waiting)};
}

void PluginSink::watch_health() {
  if (!library_->has_health() || next_look_) return;
  next_look_ = clock_.make_alarm();
  look_at_health();
}

/// A check that only waits for the end of another call says nothing about the plug-in.
void PluginSink::look_at_health() {
  next_look_->arm(clock_.now() + kBetweenChecks, [this] { look_at_health(); });
  if (!checks_) return check();
  // From when it runs, not from when it was asked for: it may wait behind a metric() that blocks.
  if (progress_->checking && !checking_since_) checking_since_ = clock_.now();
}

void PluginSink::check() {
  checks_ = true;
  const auto work = [library = library_, progress = progress_]() -> Result<std::string> {
    progress->checking = true;
    const auto well = library->health();
    progress->checking = false;
    return well ? std::string() : well.error().text;
  };
  calls_.make("the health check of " + name(), work,
              [this, alive = lifetime_.token()](const Result<std::string>& why) {
                if (!alive) return;
                checks_ = false;
                checking_since_.reset();
                ailment_ = why ? *why : std::string();
                pass_log_on();
              });
}

std::string PluginSink::ailment() const {
  const auto taken = checking_since_ ? clock_.now() - *checking_since_ : Duration();
  if (taken > kCheckLimit) {
    return fmt::format("the health check of {} has not returned for {}", name(),
                       format_duration(taken));
  }
  return ailment_.empty() ? std::string() : fmt::format("{}: {}", name(), ailment_);
}

}  // namespace elastrun::exporter
