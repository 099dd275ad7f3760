// SPDX-License-Identifier: Apache-2.0
#include "goodput/summary.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <vector>

namespace elastrun::goodput {
namespace {

constexpr std::size_t kBarWidth = 16;
constexpr std::size_t kNameWidth = 10;

std::string_view meaning(Bucket bucket, const Ledger::Summary& summary) {
  if (bucket == Bucket::Running && summary.steps_known()) return "before their first step";
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
                                                    "events that scripts name"};
  return kMeanings[static_cast<std::size_t>(bucket)];
}

/// A bar of `share` of the width; what is not zero is at least a thin line.
std::string bar(double share, bool unicode) {
  constexpr std::string_view kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
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

std::string percent(double share) {
  // Never 100.0 % or 0.0 % for something that only nearly is.
  if (share > 0 && share < 0.0005) return "<0.1 %";
  if (share < 1 && share > 0.9995) return ">99.9 %";
  return fmt::format("{:.1f} %", share * 100);
}

double seconds(Duration duration) {
  return to_seconds(duration);
}

}  // namespace

std::string summary_text(const Ledger::Summary& summary, bool unicode) {
  const auto bounds = !summary.steps_known() ? "between 0 and "
                      : summary.loss_known   ? ""
                                             : "at most ";
  std::string text = fmt::format("goodput {}{} of {}", bounds, percent(summary.goodput_at_most()),
                                 format_duration(summary.elapsed));
  if (summary.restarts > 0) {
    text += fmt::format(", {} restart{}", summary.restarts, summary.restarts == 1 ? "" : "s");
  }
  if (summary.last_step) text += fmt::format(", last step {}", *summary.last_step);
  if (summary.last_checkpoint) text += fmt::format(", checkpoint {}", *summary.last_checkpoint);
  text += '\n';
  if (!summary.steps_known()) {
    text += "  No worker reported steps, so how much of their time was training is not known.\n";
  }
  std::vector<Bucket> buckets;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    if (summary.buckets[i] > Duration::zero()) buckets.push_back(static_cast<Bucket>(i));
  }
  std::stable_sort(buckets.begin(), buckets.end(),
                   [&](Bucket a, Bucket b) { return summary.of(a) > summary.of(b); });
  std::size_t width = kNameWidth;
  for (const Bucket bucket : buckets) width = std::max(width, bucket_name(bucket).size());
  for (const Bucket bucket : buckets) {
    const Duration time = summary.of(bucket);
    const double share = seconds(time) / seconds(summary.elapsed);
    text += fmt::format("  {:<{}} {:>12} {:>7}  {} {}\n", bucket_name(bucket), width,
                        format_duration(time), percent(share), bar(share, unicode),
                        meaning(bucket, summary));
  }
  if (!summary.loss_known) {
    text += "  No checkpoint or later step was reported: what failures cost is not known.\n";
  }
  return text;
}

json::object summary_json(const Ledger::Summary& summary) {
  json::object buckets;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    buckets[bucket_name(static_cast<Bucket>(i))] = seconds(summary.buckets[i]);
  }
  json::object object;
  object["goodput"] = nullptr;
  if (const auto known = summary.goodput()) object["goodput"] = *known;
  object["goodput_at_most"] = summary.goodput_at_most();
  object["elapsed_s"] = seconds(summary.elapsed);
  object["buckets_s"] = std::move(buckets);
  object["restarts"] = summary.restarts;
  object["last_step"] = nullptr;
  object["last_checkpoint"] = nullptr;
  object["loss_known"] = summary.loss_known;
  if (summary.last_step) object["last_step"] = *summary.last_step;
  if (summary.last_checkpoint) object["last_checkpoint"] = *summary.last_checkpoint;
  return object;
}

std::string_view bucket_meaning(Bucket bucket, const Ledger::Summary& summary) {
  return meaning(bucket, summary);
}

}  // namespace elastrun::goodput
