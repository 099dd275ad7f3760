// SPDX-License-Identifier: Apache-2.0
#include "export/json_lines.hpp"

#include "core/log.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace elastrun::exporter {
namespace {

using telemetry::Record;

// Events are written at once; samples together, for a write(2) each would cost more than they do.
constexpr std::size_t kBatch = 64 << 10;
constexpr std::size_t kForAgent = 1 << 20;  // of the bytes that may wait
constexpr std::string_view kAgent = "elastrun.agent";

/// What accounts of later submissions of the job begin with, or cannot do without.
bool is_milestone(const Record& record) {
  constexpr std::array<std::string_view, 3> kOfAgent = {"group.failed", "restart", "job.hang"};
  if (record.kind != Record::Kind::Event) return false;
  if (record.scope == "elastrun.worker") return record.name == "checkpoint";
  return record.scope == kAgent && std::ranges::find(kOfAgent, record.name) != kOfAgent.end();
}

}  // namespace

JsonLines::JsonLines(Clock& clock, files::BlockingCalls& calls, std::string path,
                     files::BlockingCalls* syncs)
    : clock_(clock),
      file_(calls, std::move(path),
            {.flags = 0,
             .mode = 0600,
             .whole_lines = true,
             .syncs = syncs,
             .area = "journal",
             .cost = "records are dropped, the job goes on"}),
      pause_(clock.make_alarm()) {}

void JsonLines::consume(const Record& record) {
  const bool event = record.kind == Record::Kind::Event;
  const bool own = event && record.scope == kAgent;
  if (own) write_out();  // in order
  waiting_.append(to_json_line(record)).push_back('\n');
  if (own) {
    file_.write(waiting_);
    waiting_.clear();
  } else if (event || waiting_.size() >= kBatch) {
    write_out();
  } else if (!std::exchange(pausing_, true)) {
    // Armed by a record alone, so that a job that tells nothing wakes nothing.
    pause_->arm(clock_.now() + kPause, [this] {
      pausing_ = false;
      write_out();
    });
  }
  // A machine that crashes loses up to half a minute that was written and not synced, and with it
  // the point from which the next submission reckons.
  if (is_milestone(record)) file_.sync();
}

void JsonLines::flush(TimePoint) {
  pause_->disarm();
  pausing_ = false;
  write_out();
  file_.sync();
}

void JsonLines::write_out() {
  // The rest is the agent's: a flood of workers once pushed "restart" and "group.failed" out, and
  // accounts of the job were wrong for good.
  if (file_.counts().waiting + waiting_.size() <= files::AppendedFile::kMost - kForAgent) {
    file_.write(waiting_);
  } else {
    if (held_back_ == 0) {
      log::warning("journal",
                   "cannot write {}: its file system is too slow; records of workers are dropped, "
                   "the job goes on",
                   path());
    }
    held_back_ += static_cast<std::uint64_t>(std::ranges::count(waiting_, '\n'));
  }
  waiting_.clear();
}

}  // namespace elastrun::exporter
