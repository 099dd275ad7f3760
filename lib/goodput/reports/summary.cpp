// SPDX-License-Identifier: Apache-2.0
#include "goodput/reports/summary.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <utility>
#include <vector>

namespace elastrun::goodput {
namespace {

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

}  // namespace

std::string share_text(double share) {
  const auto text = fmt::format("{:.1f}", std::max(share * 100 - 1e-9, 0.0));
  if (text == "0.0" && share > 0) return "<0.1 %";
  if (text == "100.0" && share < 1) return ">99.9 %";
  return text + " %";
}

namespace {

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

std::string_view bucket_meaning(Bucket bucket, const Ledger::Summary& summary) {
  if (bucket == Bucket::Running && summary.steps_known()) return "before their first step";
  if (bucket == Bucket::Lost && summary.restarts == 0) return "steps that were not saved";
  constexpr std::string_view kMeanings[kBuckets] = {"until the workers first ran",
                                                    "waiting for other nodes",
                                                    "the workers ran",
                                                    "training steps",
                                                    "done again after a failure",
                                                    "saving and loading",
                                                    "from failure to next start",
                                                    "ending the job",
                                                    "until it was started again",
                                                    "devices, ranks get ready",
                                                    "imports, setting up",
                                                    "steps that wait for data",
                                                    "events that scripts name",
                                                    "no step beyond the limit",
                                                    "evaluating the model",
                                                    "a step that did not come",
                                                    "long steps, or what was not told"};
  return kMeanings[static_cast<std::size_t>(bucket)];
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
