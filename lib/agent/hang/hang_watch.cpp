// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/hang_watch.hpp"

#include "core/log.hpp"
#include "core/read_file.hpp"
#include "core/text.hpp"
#include "goodput/journal_books.hpp"
#include "hangs/stacks_report.hpp"
#include "process/process_table.hpp"
#include "rendezvous/membership/ranks.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <ranges>

namespace elastrun::agent {
namespace {

constexpr std::string_view kArea = "hang";
constexpr std::size_t kLoggedLines = 30;  // of one stack; the report has all
constexpr Duration kLatestEntry = std::chrono::seconds(1);

/// What a worker may take its time for, by the entries that begin and end it. Not the wait for
/// data, in which a job hangs often, and not what hooks see before the first step: the preparation
/// ends with it, and the process group is made where ranks wait for one that does not come.
struct Excuse {
  goodput::MeasurementKind begin, end;
  bool from_hooks = true;
};
using Entry = goodput::MeasurementKind;
constexpr std::array kExcuses{Excuse{Entry::AcceleratorInitStart, Entry::AcceleratorInitEnd, false},
                              Excuse{Entry::PreparationStart, Entry::PreparationEnd, false},
                              Excuse{Entry::CustomStart, Entry::CustomEnd},
                              Excuse{Entry::SaveStart, Entry::SaveEnd},
                              Excuse{Entry::RestoreStart, Entry::RestoreEnd},
                              Excuse{Entry::ElasticWaitStart, Entry::ElasticWaitEnd},
                              Excuse{Entry::ElasticReinitStart, Entry::ElasticReinitEnd}};

/// When it was, of an entry that has come now: entries wait a moment for each other, which belongs
/// to a hang that follows. An older time is one that the script has chosen, and tells of now.
TimePoint time_of(const goodput::MeasurementEntry& entry, TimePoint now, WallTime wall) {
  const TimePoint at = goodput::time_of_entry(entry.time, now, wall);
  return now - at > kLatestEntry ? now : at;
}

/// The debugger of a process; 0: none.
pid_t tracer_of(pid_t pid) {
  constexpr std::string_view kTracer = "TracerPid:";
  const auto status = read_kernel_file(fmt::format("/proc/{}/status", pid));
  const auto at = status.find(kTracer);
  if (at == std::string::npos) return 0;
  const auto line = std::string_view(status).substr(at + kTracer.size());
  return static_cast<pid_t>(parse_int(trim(line.substr(0, line.find('\n')))).value_or(0));
}

/// Stopped by a signal or in the hands of a debugger, or waits for a child in its session that is:
/// a worker may be a shell or a debugger, and the trainer its child. One that is stopped beside a
/// worker that does not wait for it, an old loader or some helper, is no reason to stand still.
bool is_stopped(const process::ProcessEntry& process, const process::ProcessTable& below) {
  const auto is = [](char state) { return state == 'T' || state == 't'; };
  if (is(process.state) || tracer_of(process.pid) != 0) return true;
  const bool waits = process::waits_for_child(process);
  return std::ranges::any_of(below, [&](const auto& child) {
    return child.parent == process.pid && child.session == process.session &&
           (waits || tracer_of(child.pid) == process.pid) && is_stopped(child, below);
  });
}

}  // namespace

hangs::HangTimeout hang_timeout_of(const spec::JobSpec& spec) {
  using Kind = hangs::HangTimeout::Kind;
  if (spec.hang_auto) return {Kind::Auto, {}};
  if (spec.hang_limit) return {Kind::Fixed, *spec.hang_limit};
  return {};
}

HangWatch::HangWatch(Parts parts)
    : parts_(std::move(parts)), awake_(parts_.clock), rule_(hang_timeout_of(parts_.spec)) {}

void HangWatch::round_ready(const rendezvous::Round& round, Duration) {
  round_ = round;
  ++groups_;
}

void HangWatch::started(const rendezvous::Round&, const std::vector<workers::Worker>& group,
                        Duration) {
  pids_.clear();
  for (const auto& worker : group) pids_[worker.rank] = worker.pid;
}

void HangWatch::phase(Phase phase, TimePoint) {
  runs_ = phase == Phase::Running;
  if (runs_) {
    rule_.begin(awake_.now());
    if (!rule_.is_running()) return;
    activity_ = parts_.activity();
    looked_ = awake_.now();
    tell();
    return look_again();
  }
  if (!rule_.is_running()) return;
  rule_.end();
  told_.reset();
  hanging_ = false;
  if (alarm_) alarm_->disarm();
}

void HangWatch::heard(int rank, const workers::Message& message) {
  if (std::holds_alternative<workers::StacksOffered>(message)) rule_.expect_steps();
  if (!rule_.is_running()) return;
  if (std::holds_alternative<workers::StepDone>(message)) {
    rule_.step(rank, awake_.now());
  } else if (const auto* said = std::get_if<workers::GoodputEntries>(&message)) {
    heard_goodput(rank, *said);
  } else if (std::holds_alternative<workers::CheckpointDone>(message)) {
    rule_.checkpoint(awake_.now());
  } else if (std::holds_alternative<workers::Returned>(message)) {
    rule_.ended(rank, awake_.now());
  } else if (const auto* phase = std::get_if<workers::PhaseEntered>(&message)) {
    rule_.phase(rank, phase->name, awake_.now());
  } else {
    return;
  }
  note_progress();
}

void HangWatch::heard_goodput(int rank, const workers::GoodputEntries& said) {
  const auto now = awake_.now();
  const auto wall = parts_.clock.wall();
  if (said.lost > 0) rule_.closed_all(rank, now);
  for (const auto& [entry, name, members] : said.entries) {
    const auto kind = entry.kind;
    const auto at = time_of(entry, now, wall);
    if (kind == Entry::SliceCounts) continue;  // a thread tells that again and again
    const auto excuse = std::ranges::find_if(
        kExcuses, [kind](const Excuse& one) { return one.begin == kind || one.end == kind; });
    if (kind == Entry::Step || kind == Entry::StepEnd) {
      rule_.seen_step(rank, at);
    } else if (kind == Entry::Save || kind == Entry::Restore || kind == Entry::EmergencyRestore) {
      rule_.checkpoint(at);
    } else if (excuse == kExcuses.end() || (said.by_hooks && !excuse->from_hooks)) {
      rule_.went_on(at);
    } else {
      const auto what = fmt::format("{} {}", static_cast<int>(excuse->begin), name);
      kind == excuse->begin ? rule_.opened(rank, what, at) : rule_.closed(rank, what, at);
    }
  }
}

/// Not of each step: a job may do thousands a second.
void HangWatch::note_progress() {
  using Kind = hangs::NodeProgress::Kind;
  const hangs::NodeProgress known{rule_.is_excused() ? Kind::Excused : Kind::Moves,
                                  rule_.by_steps()};
  if (hanging_ || told_ != known) moved();
}

void HangWatch::moved() {
  tell();
  if (!std::exchange(hanging_, false)) return;
  log::warning(kArea, "The workers go on");
}

void HangWatch::look_again() {
  if (!alarm_) alarm_ = awake_.make_alarm();
  const auto now = awake_.now();
  auto next = rule_.look_interval();
  if (const auto limit = rule_.limit()) {
    const auto left = *limit - rule_.standing(now);
    if (left > Duration::zero()) next = std::min(next, left);
  }
  alarm_->arm(now + next, [this] { look(); });
}

void HangWatch::look_now() {
  if (rule_.is_running()) look();
}

void HangWatch::look() {
  const auto now = awake_.now();
  note_ended();
  rule_.looked(any_stopped(), now);
  if (const auto last = parts_.activity(); last > activity_) {
    activity_ = last;
    // The time since then counts a pause, the AwakeClock does not; the last look saw nothing of it.
    rule_.wrote(std::max(looked_, now - (parts_.clock.now() - activity_)));
  }
  looked_ = now;
  const auto before = told_;
  tell();
  using Kind = hangs::NodeProgress::Kind;
  if (before != told_ && told_ && told_->kind == Kind::Moves) moved();
  look_again();
}

void HangWatch::tell() {
  const auto now = awake_.now();
  auto progress = rule_.progress(now);
  if (!progress && told_) progress.emplace();  // what it said before holds no more
  if (progress == told_ || !progress || !round_) return;
  told_ = progress;
  parts_.report(rendezvous::ProgressReport{round_->number, *progress, rule_.standing(now)});
}

bool HangWatch::any_stopped() const {
  return std::ranges::any_of(pids_ | std::views::values, [this](pid_t pid) {
    const auto worker = process::read_process(pid);
    return worker && !parts_.has_ended(pid) && is_stopped(*worker, process::read_descendants(pid));
  });
}

void HangWatch::note_ended() {
  for (const auto& [rank, pid] : pids_) {
    if (parts_.has_ended(pid)) rule_.ended(rank, awake_.now());
  }
}

/// Stacks take their time, in which a long step may have ended. Without steps a node that moves
/// tells nothing of a hang of those that count them; but it does not act on it, either.
bool HangWatch::goes_on(bool speaks) const {
  using Kind = hangs::NodeProgress::Kind;
  if (!told_ || told_->kind == Kind::Stands) return false;
  return told_->kind == Kind::Excused || told_->by_steps || speaks;
}

void HangWatch::hangs(const rendezvous::StacksReport& report) {
  const auto heard = parts_.clock.now();
  look_now();
  const bool speaks = round_ && round_->rank_base == report.speaker;
  if (!runs_ || !round_ || goes_on(speaks)) return;
  // For the books it is exact: the observers hear of it before anything is written about it.
  JobHang hang{groups_ - 1, parts_.clock.wall(), report.standing + (parts_.clock.now() - heard),
               report.stacks};
  hanging_ = true;
  count_.add();
  parts_.observers.hang(hang);
  log::warning(kArea, "No worker of the job has made progress for {}: {}",
               format_duration(std::chrono::round<std::chrono::milliseconds>(hang.standing)),
               hangs::hang_text(report.stacks));
  if (round_->group_rank == 0) {
    log::warning(kArea, "Where they stand:{}",
                 hangs::stacks_lines(report.stacks, "\n  ", kLoggedLines));
  }
  if (hangs_.size() == kMostKept) hangs_.erase(hangs_.begin());
  hangs_.push_back(std::move(hang));
  // One node says it for all.
  if (parts_.spec.on_hang == spec::OnHang::Report || !speaks) return;
  parts_.report(rendezvous::Failed{round_->number, cause_of(hangs_.back()), true});
}

rendezvous::Cause HangWatch::cause_of(const JobHang& hang) const {
  rendezvous::Cause cause;
  cause.kind = rendezvous::Cause::Kind::WorkerFailed;
  cause.text = hangs::hang_text(hang.stacks);
  cause.wall_seconds = to_seconds(hang.at);
  cause.final = parts_.spec.on_hang == spec::OnHang::Fail;
  const auto culprits = hangs::culprits_of(hang.stacks);
  if (culprits.empty()) return cause;
  cause.rank = culprits.front();
  // Not all members are known to all nodes of a large world.
  if (std::ranges::any_of(round_->members, &std::string::empty, &rendezvous::Node::id)) {
    return cause;
  }
  const auto ranks = rendezvous::compute_ranks(round_->members);
  for (std::size_t i = 0; i < ranks.of.size(); ++i) {
    const int local_rank = cause.rank - ranks.of[i].rank;
    if (local_rank < 0 || local_rank >= round_->members[i].local_world_size) continue;
    cause.node = round_->members[i].id;
    cause.local_rank = local_rank;
  }
  return cause;
}

}  // namespace elastrun::agent
