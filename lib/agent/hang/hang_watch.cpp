// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/hang_watch.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "goodput/journals/journal_books.hpp"
#include "goodput/ledger/ledger.hpp"
#include "hangs/stacks.hpp"
#include "process/process_table.hpp"
#include "rendezvous/membership/ranks.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <ranges>
#include <utility>

namespace elastrun::agent {
namespace {

constexpr std::string_view kHangArea = "hang";
constexpr std::size_t kLoggedLines = 30;  // of one stack; the report has all
constexpr int kNamed = 8;                 // ranks in one message
constexpr Duration kLatestEntry = std::chrono::seconds(1);

/// What a worker may take its time for, by the entries that begin and end it. Not the wait for
/// data, in which a job hangs often, and not what hooks see before the first step: the preparation
/// ends with it, and the process group is made where ranks wait for one that does not come.
struct Pair {
  goodput::MeasurementKind begin, end;
  std::string_view what;
  bool from_hooks = true;
};
using Entry = goodput::MeasurementKind;
constexpr std::array kPairs{
    Pair{Entry::AcceleratorInitStart, Entry::AcceleratorInitEnd, "starting accelerators", false},
    Pair{Entry::PreparationStart, Entry::PreparationEnd, "preparing the training", false},
    Pair{Entry::CustomStart, Entry::CustomEnd, "in the event"},
    Pair{Entry::SaveStart, Entry::SaveEnd, "saving a checkpoint"},
    Pair{Entry::RestoreStart, Entry::RestoreEnd, "restoring a checkpoint"},
    Pair{Entry::ElasticWaitStart, Entry::ElasticWaitEnd, "waiting for a change of the job"},
    Pair{Entry::ElasticReinitStart, Entry::ElasticReinitEnd, "starting after a change"}};

/// When it was, of an entry that has come now: entries wait a moment for each other, which belongs
/// to a hang that follows. An older time is one that the script has chosen, and tells of now.
TimePoint moment_of(const goodput::MeasurementEntry& entry, TimePoint now, WallTime wall) {
  const TimePoint at = goodput::time_of_entry(entry.time, now, wall);
  return now - at > kLatestEntry ? now : at;
}

/// "rank 3 has been in the phase 'eval' since ..., for 31.0 min"
std::string text_of(const hangs::Excuses::Excuse& excuse, TimePoint now, WallTime wall) {
  const auto took = now - excuse.since;
  return fmt::format("rank {} has been {} since {}, for {}", excuse.rank, printable(excuse.what),
                     format_local_time(wall - took),
                     format_duration(std::chrono::round<std::chrono::milliseconds>(took)));
}

}  // namespace

hangs::HangTimeout hang_timeout_of(const spec::JobSpec& spec) {
  using Kind = hangs::HangTimeout::Kind;
  if (spec.hang_auto) return {Kind::Auto, {}};
  if (spec.hang_limit) return {Kind::Fixed, *spec.hang_limit};
  return {};
}

HangWatch::HangWatch(RunContext& run, rendezvous::Session& session)
    : run_(run), session_(session), awake_(run.clock), rule_(hang_timeout_of(run.spec)) {}

bool HangWatch::has_ended(pid_t worker) const {
  const auto* one = run_.worker_of(worker);
  return one == nullptr || one->exit.has_value();
}

void HangWatch::on(const moment::RoundReady& seen) {
  round_ = seen.round;
  ++groups_;
}

void HangWatch::on(const moment::Started& seen) {
  pids_.clear();
  for (const auto& worker : seen.group) pids_[worker.rank] = worker.pid;
}

void HangWatch::on(const moment::PhaseChanged& seen) {
  runs_ = seen.phase == Phase::Running;
  told_.reset();
  overdue_.clear();
  set_held({});
  told_held_.clear();
  hanging_ = looks_ = false;
  if (!runs_) {
    rule_.end();
    if (alarm_) alarm_->disarm();
    return;
  }
  rule_.begin(awake_.now());
  // What the last group wrote is not progress of this one.
  activity_ = run_.activity();
  looked_ = awake_.now();
  if (rule_.is_asked_for()) begin_looking();
}

void HangWatch::begin_looking() {
  looks_ = true;
  tell();
  look_again();
}

void HangWatch::heard(int rank, const workers::Message& message) {
  // Before the group is known to run, because offers come while it starts. Who offers stacks has
  // the library, with which it can report steps.
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
    rule_.phase(rank, phase->name, phase->at_most, awake_.now());
  } else {
    return wrote();
  }
  note_progress();
}

void HangWatch::wrote() {
  if (!rule_.is_running()) return;
  rule_.wrote(awake_.now());
  if (!told_ || told_->kind != hangs::NodeProgress::Kind::Stands) return;  // the next look tells
  note_progress();
}

void HangWatch::heard_goodput(int rank, const workers::GoodputEntries& said) {
  const auto now = awake_.now();
  const auto wall = run_.clock.wall();
  // An end may be among the lost entries, and an excuse without an end would hide a hang.
  if (said.lost > 0) rule_.closed_all(rank, now);
  for (const auto& [entry, name, members] : said.entries) {
    const auto kind = entry.kind;
    const auto at = moment_of(entry, now, wall);
    if (kind == Entry::SliceCounts) continue;  // a thread tells that again and again
    const auto pair = std::ranges::find_if(
        kPairs, [kind](const Pair& one) { return one.begin == kind || one.end == kind; });
    if (kind == Entry::Step || kind == Entry::StepEnd) {
      rule_.seen_step(rank, at);
    } else if (kind == Entry::Save || kind == Entry::Restore || kind == Entry::EmergencyRestore) {
      rule_.checkpoint(at);
    } else if (pair == kPairs.end() || (said.by_hooks && !pair->from_hooks) ||
               goodput::bucket_of_phase(name) == goodput::Bucket::Unexplained) {
      // What hooks cannot explain is told when it is over, with each step.
      rule_.went_on(at);
    } else {
      const auto what =
          name.empty() ? std::string(pair->what) : fmt::format("{} '{}'", pair->what, name);
      kind == pair->begin ? rule_.opened(rank, what, at) : rule_.closed(rank, what, at);
    }
  }
}

/// Not of each step: a job may do thousands a second. Where --hang-timeout is not used, the next
/// look is soon enough for all but the end of a hang: a node that moves hides none of others.
void HangWatch::note_progress() {
  using Kind = hangs::NodeProgress::Kind;
  if (!looks_) {
    if (rule_.is_known()) begin_looking();
    return;
  }
  const auto now = awake_.now();
  if (hanging_ || (told_ && told_->kind == Kind::Stands)) {
    const auto progress = rule_.progress(now);  // not all that workers say is progress
    if (!progress || progress->kind != Kind::Stands) moved();
    return;
  }
  if (!rule_.is_asked_for()) return;
  const hangs::NodeProgress known{rule_.is_excused(now) ? Kind::Excused : Kind::Moves,
                                  rule_.by_steps()};
  if (told_ != known) moved();
}

void HangWatch::moved() {
  tell();
  if (!std::exchange(hanging_, false)) return;
  log::warning(kHangArea, "The workers go on");
}

void HangWatch::look_again() {
  if (!alarm_) alarm_ = awake_.make_alarm();
  alarm_->arm(rule_.next_look(awake_.now()), [this] { look(); });
}

void HangWatch::child_signalled() {
  // SIGCHLD comes at each end of a child, too, of which a job may have thousands: the cheap
  // question first.
  if (!runs_ || (held_.empty() && !process::any_stopped_child())) return;
  if (looks_) return look();
  note_held();
  rule_.looked(!held_.empty(), awake_.now());
  tell();
}

void HangWatch::look() {
  const auto now = awake_.now();
  note_ended();
  note_held();
  rule_.looked(!held_.empty(), now);
  if (const auto last = run_.activity(); last > activity_) {
    activity_ = last;
    // The time since then counts a pause, the AwakeClock does not; the last look saw nothing of it.
    rule_.wrote(std::max(looked_, now - (run_.clock.now() - activity_)));
  }
  looked_ = now;
  say_overdue(now);
  const auto before = told_;
  tell();
  using Kind = hangs::NodeProgress::Kind;
  if (before != told_ && told_ && told_->kind == Kind::Moves) moved();
  look_again();
}

/// Once of each: from here on it hides no hang.
void HangWatch::say_overdue(TimePoint now) {
  auto over = rule_.overdue(now);
  for (const auto& one : over) {
    if (std::ranges::find(overdue_, one) != overdue_.end()) continue;
    log::warning(kHangArea, "{}: this no longer excuses hangs of the job",
                 text_of(one, now, run_.clock.wall()));
  }
  overdue_ = std::move(over);
}

/// Of this node.
std::string HangWatch::overdue_text() const {
  std::string text;
  for (const auto& one : rule_.overdue(awake_.now()) | std::views::take(kNamed)) {
    text += "; " + text_of(one, awake_.now(), run_.clock.wall());
  }
  return text;
}

void HangWatch::tell() {
  const auto now = awake_.now();
  auto progress = rule_.progress(now);
  if (!progress && told_) progress.emplace();  // what it said before holds no more
  const bool same = progress == told_ && held_ == told_held_;
  if (same || !progress || !round_) return;
  told_ = progress;
  told_held_ = held_;
  session_.report(
      rendezvous::ProgressReport{round_->number, *progress, rule_.standing(now), held_});
}

/// A rank that is stopped excuses the job, so people should know of it at once.
void HangWatch::note_held() {
  std::map<int, std::string> held;
  for (const auto& [rank, pid] : pids_) {
    if (has_ended(pid)) continue;
    if (auto by = process::held_by(pid); !by.empty()) held.emplace(rank, std::move(by));
  }
  if (held == held_) return;
  for (const auto& [rank, by] : held) {
    if (held_.contains(rank)) continue;
    const auto limit = rule_.limit();
    log::warning(kHangArea, "Rank {} (pid {}) is {}{}", rank, pids_.at(rank), by,
                 limit ? fmt::format(": hang detection waits for it for {} at most",
                                     format_duration(hangs::HangRule::kOfStopped * *limit))
                       : "");
  }
  for (const auto& [rank, by] : held_) {
    if (!held.contains(rank)) log::warning(kHangArea, "Rank {} goes on: it is held no more", rank);
  }
  set_held(std::move(held));
}

void HangWatch::set_held(std::map<int, std::string> held) {
  if (held == held_) return;
  held_ = std::move(held);
  run_.post(HeldSeen{held_});
}

void HangWatch::note_ended() {
  for (const auto& [rank, pid] : pids_) {
    if (has_ended(pid)) rule_.ended(rank, awake_.now());
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
  const auto heard = run_.clock.now();
  look_now();
  const bool speaks = round_ && round_->rank_base == report.speaker;
  if (!runs_ || !round_ || goes_on(speaks)) return;
  // Before the report: what the rendezvous makes of it comes after it in the agent's queue.
  JobHang hang{groups_ - 1, run_.clock.wall(), report.standing + (run_.clock.now() - heard),
               report.stacks, rule_.waits_for_first_step()};
  hanging_ = true;
  count_.add();
  run_.post(HangSeen{std::make_shared<JobHang>(hang)});
  log::warning(kHangArea, "No worker of the job has made progress for {}: {}{}",
               format_duration(std::chrono::round<std::chrono::milliseconds>(hang.standing)),
               hangs::hang_text(report.stacks), overdue_text());
  if (round_->group_rank == 0 && rule_.is_asked_for()) {
    const auto hint = hangs::stacks_hint(report.stacks);
    log::warning(kHangArea, "Where they stand:{}{}{}",
                 hangs::stacks_lines(report.stacks, "\n  ", kLoggedLines),
                 hint.empty() ? "" : "\n  ", hint);
  }
  // With --on-hang report a job may hang as often as it likes.
  if (hangs_.size() == kMostKept) hangs_.erase(hangs_.begin());
  hangs_.push_back(std::move(hang));
  // One node says it for all.
  // A learnt limit without --hang-timeout tells and books; it ends nothing that was not asked for.
  const bool acts = rule_.is_asked_for() && run_.spec.on_hang != spec::OnHang::Report;
  if (!acts || !speaks) return;
  session_.report(rendezvous::Failed{round_->number, cause_of(hangs_.back()), true});
}

rendezvous::Cause HangWatch::cause_of(const JobHang& hang) const {
  rendezvous::Cause cause;
  cause.kind = rendezvous::Cause::Kind::WorkerFailed;
  cause.text = hangs::hang_text(hang.stacks) + overdue_text();
  cause.what = spec::CauseClass::Hang;
  cause.wall_seconds = to_seconds(hang.at);
  cause.final = run_.spec.on_hang == spec::OnHang::Fail;
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
