// SPDX-License-Identifier: Apache-2.0
#include "agent/loop/saving.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "process/process_table.hpp"
#include "rendezvous/membership/preemption.hpp"
#include "workers/diagnostics.hpp"

#include <algorithm>
#include <csignal>
#include <fmt/format.h>

namespace elastrun::agent {
namespace {

constexpr Duration kPaceLook = rendezvous::Preemption::kPaceLook;
// Over less, steps that waited to be read, and came at once, seem to be a thousand times as quick.
constexpr Duration kPaceSpan = std::chrono::milliseconds(100);

}  // namespace

void Saving::on(const moment::RoundReady& seen) {
  round_ = seen.round.number;
  steps_.clear(), ranks_.clear(), saved_.clear(), savers_.clear();
}

void Saving::on(const moment::Started& seen) {
  for (const auto& worker : seen.group) ranks_.emplace_back(worker.local_rank, worker.rank);
  // A coordinator that has taken over may not have heard of it.
  if (run_.spec.restart_policy_auto && checkpoint_ >= 0) tell();
}

void Saving::on(const moment::WorkerSaid& seen) {
  if (const auto* done = std::get_if<workers::CheckpointDone>(&seen.said)) {
    // -1: of everything so far; -2: of a step that is not known.
    const auto known = steps_.find(seen.worker.rank);
    const auto so_far = known != steps_.end() ? known->second.last : -1;
    return saved(seen.worker.rank, done->step >= 0 ? done->step : so_far);
  }
  time_save(seen.worker.rank, seen.said);
  if (const auto step = workers::step_of(seen.said)) heard_step(seen.worker.rank, *step);
}

void Saving::heard_step(int rank, std::int64_t step) {
  auto& known = steps_[rank];
  const auto now = run_.clock.now();
  // Page and channel tell the same step; its time is that of the first news.
  if (step == known.last) return;
  // Below the first one the script has resumed, and its pace begins there.
  if (known.first < 0 || step < known.first) known.first = step, known.first_at = now;
  known.last = step, known.at = known.save_from = now;
}

// What the script did between its last step and the save, as an evaluation, is none of it. That is
// known from phases, and from the hooks of --goodput auto or a recorder.
void Saving::time_save(int rank, const workers::Message& message) {
  auto& known = steps_[rank];
  if (std::holds_alternative<workers::PhaseEntered>(message)) known.save_from = run_.clock.now();
  const auto* said = std::get_if<workers::GoodputEntries>(&message);
  // The first part of a save: the model, and after it the optimizer.
  if (said == nullptr || known.save_from > known.at) return;
  const auto is_begin = [](const workers::GoodputEntry& one) {
    return one.entry.kind == goodput::MeasurementKind::SaveStart;
  };
  const auto begin = std::ranges::find_if(said->entries, is_begin);
  if (begin == said->entries.end()) return;
  const double ago = to_seconds(run_.clock.wall()) - begin->entry.time;
  const auto most = to_seconds(run_.clock.now() - known.at);
  if (ago >= 0 && ago < most) known.save_from = run_.clock.now() - from_seconds(ago);
}

// The shorter one of all so far, with what came between steps, and of the look in `answer`.
Duration Saving::pace_of(const Steps& steps) const {
  if (steps.first < 0) return {};
  const auto span = steps.at - steps.first_at;
  Duration pace{};
  if (steps.last > steps.first && span >= kPaceSpan) pace = span / (steps.last - steps.first);
  if (steps.looked < 0) return pace;
  const bool goes_on = steps.last > steps.looked;
  const Duration seen = goes_on ? kPaceLook / (steps.last - steps.looked) : kPaceLook;
  if (pace == Duration::zero()) return seen;
  return goes_on ? std::min(pace, seen) : pace;
}

void Saving::saved(int rank, std::int64_t step) {
  const auto& known = steps_[rank];
  // A checkpoint of the last step was saved since that step; one of an earlier step beside others.
  if (known.last >= 0 && known.last == step) run_.save_takes(run_.clock.now() - known.save_from);
  savers_.insert(rank);
  // One that was due anyway, on the way to the step of the order: what comes until there is not to
  // be lost.
  if (order_ && (step < 0 || step >= order_->step)) {
    saved_.insert(rank);
    const auto has_saved = [this](const auto& each) { return saved_.contains(each.second); };
    // Without --preempt-ack-all rank 0 speaks for all: as a rule it is the one that writes.
    const bool enough =
        run_.spec.preempt_ack_all ? std::ranges::all_of(ranks_, has_saved) : saved_.contains(0);
    if (!enough || account_->is_saved || !account_->failure.empty()) return;
    account_->is_saved = true;
    account_->saved = run_.clock.wall();
    account_->checkpoint = checkpoint_ = step;
    return tell();
  }
  if (order_) {
    // On the way to the step of the order, too, a checkpoint holds once rank 0, or all, told it.
    early_[rank] = step;
    auto complete = step;
    for (const auto& [_, each] : ranks_) {
      if (!run_.spec.preempt_ack_all && each != 0) continue;
      complete = std::min(complete, early_.contains(each) ? early_[each] : -1);
    }
    before_order_ = std::max(before_order_, complete);
    checkpoint_ = std::max(checkpoint_, complete);
    return;
  }
  const bool is_new = step > checkpoint_;
  checkpoint_ = std::max(checkpoint_, step);
  if (is_new && run_.spec.restart_policy_auto) tell();
}

rendezvous::Reached Saving::reached() const {
  rendezvous::Reached out{.round = round_, .checkpoint = checkpoint_};
  for (const auto& [rank, steps] : steps_) {
    out.step = std::max(out.step, steps.last);
    const auto pace = pace_of(steps);
    if (pace <= Duration::zero()) continue;
    // The fastest rank's: the step to save at must not lie behind it when the order comes.
    out.pace = out.pace == Duration::zero() ? pace : std::min(out.pace, pace);
  }
  out.saved = account_ && account_->is_saved;
  out.looks = account_ && looks();
  if (account_) out.failure = account_->failure;
  return out;
}

void Saving::look_at_pages() {
  for (const auto& [local_rank, rank] : ranks_) {
    const auto page = pages_.read(local_rank);
    if (page && page->step) heard_step(rank, *page->step);
  }
}

void Saving::answer() {
  look_at_pages();
  if (reached().step < 0) return tell();
  // The second look may show a faster pace than the mean so far, see pace_of().
  for (auto& [rank, steps] : steps_) steps.looked = steps.last;
  look_->arm(run_.clock.now() + kPaceLook, [this] {
    look_at_pages();
    tell();
  });
}

void Saving::asked(const std::string& why) {
  if (account_) return;
  account_.emplace();
  account_->why = why;
  account_->asked = run_.clock.wall();
}

std::optional<PreemptionAccount> Saving::account() const {
  auto account = account_;
  if (account) account->step = reached().step, account->holds = checkpoint_;
  return account;
}

void Saving::failed_to_save(std::vector<workers::Failure> failures) {
  if (!order_) return;
  std::erase_if(failures, [this](const workers::Failure& one) {
    // Once it has saved at SIGTERM a script may end with any code: its exception tells that it has
    // not.
    const bool by_itself =
        !one.stopped_by_us || (one.status.how == process::ExitStatus::How::Exited &&
                               one.exception && one.exception->type != "KeyboardInterrupt");
    // With the save of rank 0 the others' is complete, but of those that write a part of it.
    const bool matters = !account_->is_saved || savers_.contains(one.rank);
    return !by_itself || !matters || saved_.contains(one.rank);
  });
  if (failures.empty()) return;
  if (std::exchange(account_->is_saved, false)) {
    checkpoint_ = before_order_, account_->checkpoint = -1;
  }
  const auto judgement = workers::judge(std::move(failures));
  account_->failure = fmt::format("rank {} failed to save: it {}", judgement.first().rank,
                                  workers::what_happened(judgement.first()));
}

bool Saving::looks() const {
  return std::ranges::any_of(ranks_, [this](const auto& each) {
    const auto page = pages_.read(each.first);
    return page && (page->looks_for_save || may_ask(each.second, *page));
  });
}

/// It has imported the library and not got to its second step without asking: SIGTERM, unless the
/// script does something at it, would end it where its next step saves.
bool Saving::may_ask(int rank, const workers::PageContents& page) const {
  const auto known = steps_.find(rank);
  const bool goes_on = known != steps_.end() && known->second.last > known->second.first;
  return page.importer != 0 && !goes_on && !process::read_status(page.importer).survives(SIGTERM);
}

void Saving::order(const rendezvous::SaveAt& order) {
  asked({});
  look_at_pages();
  order_ = order;
  before_order_ = checkpoint_;
  // Saves from before the order hold less than is asked for.
  saved_.clear(), early_.clear();
  for (const auto& [local_rank, rank] : ranks_) {
    if (const auto* page = pages_.find(local_rank)) page->tell_save(order.step);
  }
  const auto when = order.step < 0 ? std::string("now") : fmt::format("after step {}", order.step);
  log::info("preempt", "The workers are to save {}, {}", when,
            order.by_signal ? "and are asked by SIGTERM" : "which they ask for");
}

void Saving::describe(rendezvous::Cause& cause) const {
  const auto known = steps_.find(cause.rank);
  if (cause.step < 0 && known != steps_.end()) cause.step = known->second.last;
  // Rank 0 is enough to tell steps: the others of its node are at the same.
  if (cause.step < 0) cause.step = reached().step;
  cause.checkpoint = checkpoint_;
}

}  // namespace elastrun::agent
