// SPDX-License-Identifier: Apache-2.0

#include "goodput/reports/summary.hpp"

#include "core/text.hpp"
#include "worker/summary.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace elastrun::goodput {
namespace {

std::string steps_text(const WorkersStart& start) {
  if (!start.first_step) return "-";
  return fmt::format("{}-{}", *start.first_step, *start.last_step);
}

constexpr std::size_t kCauseWidth = 66, kColumns = 80;

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

  void interval() {
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

  void lost_work() {
    const double lost = share(Bucket::Lost);
    if (judged_ || lost < kWorthAHint || work_.failures == 0) return;
    if (work_.checkpoints == 0 && work_.saves == 0) {
      return add(
          HintKind::LostWork, lost, lost,
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

  void saving() {
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

  void start() {
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
        fmt::format("{} before the first step: {} {} in each of {} start{}: {}",
                    percent(share(all)), most.what, format_duration(time(most) / starts), starts,
                    starts == 1 ? "" : "s", most.remedy));
  }

  void data() {
    const double waiting = share(Bucket::DataLoading);
    if (waiting < kWorthAHint || work_.steps < kStepsForMean) return;
    add(HintKind::Data, waiting, waiting,
        fmt::format(
            "{} waiting for data: more DataLoader workers (num_workers, prefetch_factor), or "
            "faster storage",
            percent(waiting)));
  }

  void rendezvous() {
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

  void stop() {
    if (restarts_.size() < 2) return;
    Duration all{};
    for (const auto& path : restarts_) all += path.of(RestartStage::Stop);
    // The log of restarts and the buckets are kept apart, and no hint may claim more than its
    // bucket holds.
    const double stopping = std::min(share(all), share(Bucket::Restart));
    if (stopping < kWorthAHint) return;
    add(HintKind::Stop, stopping, stopping,
        fmt::format("stopping workers took {}, {} in each restart: let them end sooner after "
                    "SIGTERM, or lower --shutdown-timeout",
                    percent(stopping),
                    format_duration(all / static_cast<std::int64_t>(restarts_.size()))));
  }

  void hang() {
    const double hanging = share(Bucket::Hang);
    if (hanging < kWorthAHint) return;
    add(HintKind::Hang, hanging, hanging,
        fmt::format("hangs took {}: --on-hang restart and a lower --hang-timeout end them sooner",
                    percent(hanging)));
  }

  const Ledger::Summary& summary_;
  const WorkCounts& work_;
  const std::vector<RestartPath>& restarts_;
  bool judged_ = false;  // the interval of checkpoints
  std::vector<Hint> hints_;
};

constexpr std::size_t kBarWidth = 16;
constexpr std::size_t kNameWidth = 10;
constexpr std::size_t kCustomRows = 5;

/// A bar of `share` of the width; what is not zero is at least a thin line.
std::string bar(double share, bool unicode) {
  constexpr std::string_view kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  // In eighths of a column, for which Unicode has blocks (U+2588 to U+258F).
  const auto eighths = static_cast<std::size_t>(share * kBarWidth * 8 + 0.5);
  std::string text;
  std::size_t columns = eighths / 8;
  for (std::size_t i = 0; i < columns; ++i) text += unicode ? "█" : "#";
  const std::size_t rest = std::max<std::size_t>(eighths % 8, eighths == 0 ? 1 : 0);
  if (unicode && rest > 0) {
    text += kEighths[rest];
    columns += 1;
  } else if (!unicode && columns == 0) {
    text += '.';
    columns = 1;
  }
  return text.append(kBarWidth - std::min(kBarWidth, columns), ' ');
}

json::value seconds_or_null(const std::optional<Duration>& duration) {
  return duration ? json::value(to_seconds(*duration)) : nullptr;
}

/// Where it is another tenth of a percent.
std::string full_pace_text(const Ledger::Summary& summary) {
  const auto share = at_full_pace(summary);
  if (!share || to_share(summary.of(Bucket::Productive), summary.elapsed) - *share < 0.001)
    return {};
  return fmt::format("  {} at the pace of all ranks: fewer did a part of the steps\n",
                     share_text(*share));
}

std::string remarks_text(const Ledger::Summary& summary) {
  std::string text;
  if (summary.doubtful > Duration::zero()) {
    text += summary.untold_saves == 0
                ? std::string("  At which step the job resumed could not be told.\n")
                : fmt::format("  {} save{} could not be told, nor so what failures cost.\n",
                              summary.untold_saves, summary.untold_saves == 1 ? "" : "s");
  } else if (!summary.loss_known) {
    text += fmt::format("  {}\n", kLossUnknown);
  }
  if (!summary.share().is_known() && summary.of(Bucket::Unexplained) > Duration::zero()) {
    text += fmt::format(
        "  {} between steps were not explained: work or not. elastrun.phase(...) or\n"
        "  --goodput auto tells.\n",
        format_duration(summary.of(Bucket::Unexplained)));
  }
  if (summary.begun_again > 0) {
    text += fmt::format("  Step numbers began again {} time{}: as epochs they count on.\n",
                        summary.begun_again, summary.begun_again == 1 ? "" : "s");
  }
  return text;
}

/// Below the row of the Custom bucket, the largest first.
std::string custom_text(const Ledger::Summary& summary, std::size_t width) {
  std::vector<std::pair<Duration, std::string_view>> rows;
  for (const auto& [name, time] : summary.custom) rows.emplace_back(time, name);
  std::ranges::sort(rows, std::greater());
  std::string text;
  for (std::size_t i = 0; i < std::min(rows.size(), kCustomRows); ++i) {
    text +=
        fmt::format("    {:<{}} {:>10}\n", cut(without_controls(rows[i].second), kNameWidth + 8),
                    width, format_duration(rows[i].first));
  }
  return rows.size() <= kCustomRows
             ? text
             : text + fmt::format("    and {} more\n", rows.size() - kCustomRows);
}

}  // namespace

std::string start_table(const std::vector<WorkersStart>& starts, std::size_t most,
                        std::size_t columns) {
  // Of a single start the account says the same.
  if (starts.size() < 2) return {};
  constexpr std::string_view kRow = "  {:>7}{:>9}{:>9} {:>13}{:>8}  ";
  std::string text = fmt::format(kRow, "attempt", "at", "ran", "steps", "goodput") + "ended\n";
  const auto first = starts.size() > most ? starts.size() - most : 0;
  for (const auto& start : std::span(starts).subspan(first)) {
    const auto share =
        start.knows_steps() ? fmt::format("{:.1f} %", start.goodput() * 100) : std::string("-");
    const auto row = fmt::format(kRow, start.number, brief(start.at), brief(start.ran),
                                 steps_text(start), share);
    const auto ended = start.ended.empty() ? "it runs" : printable(start.ended);
    const auto room = columns - std::min(columns, row.size());
    text.append(row).append(columns > 0 ? cut_words(ended, room) : ended) += '\n';
  }
  if (first > 0) text += fmt::format("  and {} before these\n", starts[first].number - 1);
  return text;
}

json::array starts_json(const std::vector<WorkersStart>& starts) {
  json::array rows;
  for (const auto& start : starts) {
    rows.push_back(
        json::object{{"attempt", start.number},
                     {"at_s", to_seconds(start.at)},
                     {"ran_s", to_seconds(start.ran)},
                     {"first_step", or_null(start.first_step)},
                     {"last_step", or_null(start.last_step)},
                     {"goodput", start.knows_steps() ? json::value(start.goodput()) : nullptr},
                     {"ended", text_or_null(start.ended)}});
  }
  return rows;
}

std::string cut_words(std::string_view text, std::size_t size) {
  constexpr std::string_view kMore = "..";
  if (text.size() <= size || size <= kMore.size()) return std::string(cut(text, size));
  const auto room = cut(text, size - kMore.size());
  const auto blank = text[room.size()] == ' ' ? room.size() : room.rfind(' ');
  const auto words = blank == room.npos || blank == 0 ? room : room.substr(0, blank);
  return std::string(words).append(kMore);
}

std::string brief(Duration duration) {
  const double seconds = to_seconds(duration);
  if (duration == Duration::zero()) return "-";
  // The bounds are those of the rounded text: never "1000 ms" or "100.0 s".
  if (seconds < 0.9995) return fmt::format("{:.{}f} ms", seconds * 1e3, seconds < 0.00995 ? 1 : 0);
  if (seconds < 99.95) return fmt::format("{:.1f} s", seconds);
  if (seconds < 597) return fmt::format("{:.1f} min", seconds / 60);
  if (seconds < 5970) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

std::string restart_table(const std::vector<RestartPath>& paths, std::size_t most, bool causes) {
  if (paths.empty()) return {};
  const auto first = paths.size() > most ? paths.size() - most : 0;
  constexpr std::string_view kRow = "  {:>10}{:>8}{:>8}{:>8}{:>11}{:>8}{:>9}{:>8}{:>8}\n";
  std::string text = fmt::format(kRow, "restart at", "exit", "detect", "stop", "rendezvous",
                                 "spawn", "1st step", "redo", "total");
  for (const auto& path : std::span(paths).subspan(first)) {
    const auto stage = [&](RestartStage which) { return brief(path.of(which)); };
    text += fmt::format(
        kRow, brief(path.at), stage(RestartStage::Exit), stage(RestartStage::Detect),
        stage(RestartStage::Stop), stage(RestartStage::Rendezvous), stage(RestartStage::Spawn),
        stage(RestartStage::FirstStep), stage(RestartStage::Redo), brief(path.total()));
    if (causes && !path.cause.empty()) {
      text += fmt::format("             {}\n", cut_words(printable(path.cause), kCauseWidth));
    }
  }
  if (first > 0) text += fmt::format("  and {} before these\n", first);
  return text;
}

json::array restarts_json(const std::vector<RestartPath>& paths) {
  json::array rows;
  for (const auto& path : paths) {
    json::object stages;
    for (std::size_t i = 0; i < kRestartStages; ++i) {
      stages[stage_name(static_cast<RestartStage>(i))] = to_seconds(path.stages[i]);
    }
    rows.push_back(json::object{{"at_s", to_seconds(path.at)},
                                {"cause", path.cause},
                                {"stages_s", std::move(stages)},
                                {"total_s", to_seconds(path.total())},
                                {"last_step", or_null(path.last_step)},
                                {"first_step", or_null(path.first_step)},
                                {"caught_up", path.caught_up}});
  }
  return rows;
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
  constexpr std::string_view kNames[] = {
      "checkpoint_interval", "lost_work", "saving", "start", "data", "rendezvous", "stop", "hang"};
  json::array all;
  for (const auto& hint : hints) {
    all.push_back(json::object{{"kind", kNames[static_cast<std::size_t>(hint.kind)]},
                               {"share", hint.share},
                               {"saving", hint.saving},
                               {"text", hint.text}});
  }
  return all;
}

std::string share_text(double share) {
  const auto text = fmt::format("{:.1f}", std::max(share * 100 - 1e-9, 0.0));
  if (text == "0.0" && share > 0) return "<0.1 %";
  if (text == "100.0" && share < 1) return ">99.9 %";
  return text + " %";
}

std::optional<double> at_full_pace(const Ledger::Summary& summary) {
  if (!summary.at_full_pace || summary.elapsed <= Duration::zero()) return std::nullopt;
  return to_share(*summary.at_full_pace, summary.elapsed);
}

std::string goodput_text(const Share& share) {
  const auto least = share_text(share.least()), most = share_text(share.most());
  if (!share.steps_known) return "between 0 and " + most;
  if (share.is_known()) return least;
  if (!share.is_bounded()) return "at most " + most;
  return least == most ? most : fmt::format("between {} and {}", least, most);
}

std::vector<Bucket> filled_buckets(const Ledger::Summary& summary) {
  std::vector<Bucket> buckets;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    if (summary.buckets[i] > Duration::zero()) buckets.push_back(static_cast<Bucket>(i));
  }
  std::stable_sort(buckets.begin(), buckets.end(),
                   [&](Bucket a, Bucket b) { return summary.of(a) > summary.of(b); });
  return buckets;
}

std::string bucket_share(Bucket bucket, const Ledger::Summary& summary) {
  return share_text(to_share(summary.of(bucket), summary.elapsed));
}

std::string summary_text(const Ledger::Summary& summary, bool unicode) {
  std::string text = fmt::format("goodput {} of {}", goodput_text(summary.share()),
                                 format_duration(summary.elapsed));
  if (summary.restarts > 0) {
    text += fmt::format(", {} restart{}", summary.restarts, summary.restarts == 1 ? "" : "s");
  }
  if (summary.last_step) text += fmt::format(", last step {}", *summary.last_step);
  if (summary.last_checkpoint) text += fmt::format(", checkpoint {}", *summary.last_checkpoint);
  text += '\n';
  if (!summary.steps_known()) {
    text += fmt::format("  {}\n", kStepsUnknown);
  }
  text += full_pace_text(summary);
  const auto buckets = filled_buckets(summary);
  std::size_t width = kNameWidth;
  for (const Bucket bucket : buckets) width = std::max(width, bucket_name(bucket).size());
  for (const Bucket bucket : buckets) {
    const Duration time = summary.of(bucket);
    const double share = to_seconds(time) / to_seconds(summary.elapsed);
    text += fmt::format("  {:<{}} {:>12} {:>7}  {} {}\n", bucket_name(bucket), width,
                        format_duration(time), bucket_share(bucket, summary), bar(share, unicode),
                        bucket_meaning(bucket, summary));
    if (bucket == Bucket::Custom) text += custom_text(summary, width);
  }
  if (summary.repeated > Duration::zero()) {
    text += fmt::format("  of these {} for restarts to reach their first step\n",
                        format_duration(summary.repeated));
  }
  return text + remarks_text(summary);
}

json::object summary_json(const Ledger::Summary& summary) {
  json::object buckets, custom;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    buckets[bucket_name(static_cast<Bucket>(i))] = to_seconds(summary.buckets[i]);
  }
  for (const auto& [name, time] : summary.custom) custom[valid_utf8(name)] = to_seconds(time);
  const auto& work = summary.work;
  return {{"goodput", or_null(summary.goodput())},
          {"goodput_at_most", summary.goodput_at_most()},
          {"goodput_at_least", summary.goodput_at_least()},
          {"untold_saves", summary.untold_saves},
          {"goodput_at_full_pace", or_null(at_full_pace(summary))},
          {"repeated_startup_s", to_seconds(summary.repeated)},
          {"elapsed_s", to_seconds(summary.elapsed)},
          {"buckets_s", std::move(buckets)},
          {"custom_s", std::move(custom)},
          {"restarts", summary.restarts},
          {"last_step", or_null(summary.last_step)},
          {"last_checkpoint", or_null(summary.last_checkpoint)},
          {"loss_known", summary.loss_known},
          {"failures", work.failures},
          {"checkpoints", work.checkpoints},
          {"mean_save_s", seconds_or_null(work.mean_save())},
          {"mean_step_s", seconds_or_null(work.mean_step())}};
}

}  // namespace elastrun::goodput
