// SPDX-License-Identifier: Apache-2.0
#include "goodput/reports/hints.hpp"

#include "core/text.hpp"
#include "worker/summary.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>

namespace elastrun::goodput {
namespace {

constexpr std::size_t kColumns = 80;

/// To the nearest one, of what fits; without libm, which the programs do not need.
std::int64_t rounded(double number) {
  return static_cast<std::int64_t>(number + 0.5);
}

/// 483 -> 480: what follows from a few failures is not more exact.
std::int64_t two_digits(double number) {
  if (number < 100) return rounded(std::max(number, 1.0));
  if (!(number < 1e15)) return 1'000'000'000'000'000;
  std::int64_t unit = 1;
  for (; number >= 100; unit *= 10) number /= 10;
  return rounded(number) * unit;
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", share * 100);
}

class Advice {
 public:
  Advice(const Ledger::Summary& summary, const std::vector<RestartPath>& restarts)
      : summary_(summary), work_(summary.work), restarts_(restarts) {}

  std::vector<Hint> all() {
    if (summary_.elapsed < kShortestForHints) return {};
    interval();
    lost_work();
    saving();
    start();
    data();
    rendezvous();
    stop();
    hang();
    std::ranges::stable_sort(hints_, std::greater(), &Hint::saving);
    while (hints_.size() > kMostHints) hints_.pop_back();
    return std::move(hints_);
  }

 private:
  double share(Duration time) const { return to_seconds(time) / to_seconds(summary_.elapsed); }
  double share(Bucket bucket) const { return share(summary_.of(bucket)); }
  void add(HintKind kind, double share, double saving, std::string text) {
    // No hint may promise more than the time that it is about.
    hints_.push_back({kind, share, std::clamp(saving, 0.0, share), std::move(text)});
  }
  std::string failures() const {
    return fmt::format("{} failure{} in {}", work_.failures, work_.failures == 1 ? "" : "s",
                       format_duration(summary_.elapsed));
  }
  Duration training() const {
    return summary_.of(Bucket::Productive) + summary_.of(Bucket::Lost) +
           summary_.of(Bucket::DataLoading) + work_.saving;
  }
  void interval();
  void lost_work();
  void saving();
  void start();
  void data();
  void rendezvous();
  void stop();
  void hang();

  const Ledger::Summary& summary_;
  const WorkCounts& work_;
  const std::vector<RestartPath>& restarts_;
  bool judged_ = false;  // the interval of checkpoints
  std::vector<Hint> hints_;
};

void Advice::interval() {
  // A mean of fewer would be another one after the next failure.
  if (work_.failures < kFailuresForMtbf || work_.saves < kSavesForMean) return;
  if (work_.steps < kStepsForMean || !summary_.loss_known || work_.stepping <= Duration::zero() ||
      work_.saving <= Duration::zero()) {
    return;
  }
  judged_ = true;
  const double step = to_seconds(work_.stepping) / static_cast<double>(work_.steps);
  const double every = *work_.checkpoint_interval();
  const double mtbf = to_seconds(training()) / work_.failures;
  const double save = to_seconds(*work_.mean_save());
  // J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9),
  // 1974: each interval pays for a save, and a failure for half an interval.
  const double best = worker::square_root(2 * save * mtbf);
  const auto share_of = [&](double interval) { return save / interval + interval / (2 * mtbf); };
  const double factor = best / (every * step);
  // The cost is flat around the best interval: a near one needs no change.
  if (factor < kOtherInterval && factor > 1 / kOtherInterval) return;
  const double trained = share(training());
  const double cost = share(work_.saving) + share(Bucket::Lost);
  const double then = trained * share_of(best);
  const double modelled = trained * (share_of(every * step) - share_of(best));
  // Two estimates, from what was measured and from the model alone: the smaller one is told.
  const double saved = std::min(cost - then, modelled);
  const bool often = factor > 1;
  const double own = often ? share(work_.saving) : share(Bucket::Lost);
  if (saved < kWorthASaving || own < kWorthASaving) return;
  add(often ? HintKind::CheckpointInterval : HintKind::LostWork, own, saved,
      fmt::format("{} {}: a checkpoint every {} steps instead of {} would cost {} with the work "
                  "lost, not {} (Young's formula, {})",
                  often ? "checkpoints took" : "lost work", percent(own), two_digits(best / step),
                  two_digits(every), percent(cost - saved), percent(cost), failures()));
}

void Advice::lost_work() {
  const double lost = share(Bucket::Lost);
  if (judged_ || lost < kWorthAHint || work_.failures == 0) return;
  if (work_.checkpoints == 0 && work_.saves == 0) {
    return add(HintKind::LostWork, lost, lost,
               fmt::format("lost work {}: {}, and no checkpoint was seen: save one regularly, and "
                           "where hooks (--goodput auto) do not see it, say so by "
                           "elastrun.checkpoint_done(step)",
                           percent(lost), failures()));
  }
  const auto every = work_.checkpoint_interval();
  // A save of unknown cost, or a large one: more of them may cost more than they keep.
  if (!every || work_.saves == 0 || 4 * share(work_.saving) > lost) return;
  // At half the distance half as much is lost, on average.
  add(HintKind::LostWork, lost, lost / 2,
      fmt::format(
          "lost work {}, {}: save more often than every {} steps, in the background if that "
          "takes long (torch.distributed.checkpoint.async_save)",
          percent(lost), failures(), two_digits(*every)));
}

void Advice::saving() {
  const double saving = share(work_.saving);
  if (saving < kWorthAHint || work_.saves < kSavesForMean) return;
  const auto told = std::ranges::find(hints_, HintKind::CheckpointInterval, &Hint::kind);
  // That hint is about the same time.
  if (told != hints_.end()) return;
  add(HintKind::Saving, saving, saving / 2,
      fmt::format("saving took {}, {} each time: save in the background "
                  "(torch.distributed.checkpoint.async_save) or in parts from all ranks",
                  percent(saving), format_duration(*work_.mean_save())));
}

void Advice::start() {
  const bool evidence = summary_.elapsed >= kLongRun || summary_.restarts >= 3;
  if (!summary_.steps_known() || !evidence) return;
  struct Part {
    Bucket bucket;
    std::string_view what, remedy;
  };
  constexpr std::array<Part, 3> kParts = {
      {{Bucket::Preparation, "imports and setting up take",
        "import less (python -X importtime), keep what was compiled (TORCHINDUCTOR_CACHE_DIR)"},
       {Bucket::Initialization, "until all ranks are connected it takes",
        "elastrunctl stacks shows which rank the others wait for"},
       {Bucket::Running, "it takes", "a recorder tells for what"}}};
  const auto time = [&](const Part& part) { return summary_.of(part.bucket); };
  Duration all{};
  for (const auto& part : kParts) all += time(part);
  if (share(all) < 2 * kWorthAHint) return;
  const auto& most = *std::ranges::max_element(kParts, {}, time);
  const int starts = summary_.restarts + 1;
  // It promises no more than the largest part, which is what the remedy is about.
  add(HintKind::Start, share(all), share(time(most)),
      fmt::format("{} before the first step: {} {} in each of {} start{}: {}", percent(share(all)),
                  most.what, format_duration(time(most) / starts), starts, starts == 1 ? "" : "s",
                  most.remedy));
}

void Advice::data() {
  const double waiting = share(Bucket::DataLoading);
  if (waiting < kWorthAHint || work_.steps < kStepsForMean) return;
  add(HintKind::Data, waiting, waiting,
      fmt::format("{} waiting for data: more DataLoader workers (num_workers, prefetch_factor), or "
                  "faster storage",
                  percent(waiting)));
}

void Advice::rendezvous() {
  const double waiting = share(Bucket::Rendezvous);
  if (waiting < kWorthAHint) return;
  const auto stage = [](const RestartPath& path) { return path.of(RestartStage::Rendezvous); };
  const auto longest = std::ranges::max_element(restarts_, {}, stage);
  std::string where;
  if (longest != restarts_.end() && stage(*longest) > Duration::zero()) {
    where = fmt::format(", {} in the longest of {} restart{}", format_duration(stage(*longest)),
                        restarts_.size(), restarts_.size() == 1 ? "" : "s");
  }
  add(HintKind::Rendezvous, waiting, waiting,
      fmt::format("rendezvous {}{}: a node came late: start nodes together, or let the smallest "
                  "number of --nnodes MIN:MAX begin without it, after --rdzv-conf "
                  "last_call_timeout=SECONDS",
                  percent(waiting), where));
}

void Advice::stop() {
  if (restarts_.size() < 2) return;
  Duration all{};
  for (const auto& path : restarts_) all += path.of(RestartStage::Stop);
  // The log of restarts and the buckets are kept apart, and no hint may claim more than its bucket
  // holds.
  const double stopping = std::min(share(all), share(Bucket::Restart));
  if (stopping < kWorthAHint) return;
  add(HintKind::Stop, stopping, stopping,
      fmt::format("stopping workers took {}, {} in each restart: let them end sooner after "
                  "SIGTERM, or lower --shutdown-timeout",
                  percent(stopping),
                  format_duration(all / static_cast<std::int64_t>(restarts_.size()))));
}

void Advice::hang() {
  const double hanging = share(Bucket::Hang);
  if (hanging < kWorthAHint) return;
  add(HintKind::Hang, hanging, hanging,
      fmt::format("hangs took {}: --on-hang restart and a lower --hang-timeout end them sooner",
                  percent(hanging)));
}

}  // namespace

std::string_view hint_name(HintKind kind) {
  constexpr std::array<std::string_view, 8> kNames = {
      "checkpoint_interval", "lost_work", "saving", "start", "data", "rendezvous", "stop", "hang"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::vector<Hint> hints(const Ledger::Summary& summary, const std::vector<RestartPath>& restarts) {
  return Advice(summary, restarts).all();
}

std::string hints_text(const std::vector<Hint>& hints) {
  std::string text;
  for (const auto& hint : hints) {
    std::string line = "  hint:";
    for (const auto& word : split(hint.text, ' ')) {
      if (line.size() + 1 + word.size() > kColumns) {
        text += line + '\n';
        line = "       ";
      }
      line += ' ' + word;
    }
    text += line + '\n';
  }
  return text;
}

json::array hints_json(const std::vector<Hint>& hints) {
  json::array all;
  for (const auto& hint : hints) {
    all.push_back(json::object{{"kind", hint_name(hint.kind)},
                               {"share", hint.share},
                               {"saving", hint.saving},
                               {"text", hint.text}});
  }
  return all;
}

}  // namespace elastrun::goodput
