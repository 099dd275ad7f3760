// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "goodput_answer.hpp"
#include "subcommands.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <vector>

namespace elastrun::ctl {
namespace {

using goodput::Bucket;
using Summary = goodput::Ledger::Summary;

/// One of the two.
struct Side {
  GoodputInput input;
  GoodputAnswer answer;
  std::optional<double> step_seconds;  // the mean of all steps whose times are known
};

std::optional<double> mean_step(const goodput::History& history) {
  Duration sum{};
  std::uint64_t count = 0;
  for (const auto& point : history.steps) {
    sum += point.sum;
    count += point.count;
  }
  if (count == 0) return std::nullopt;
  return to_seconds(sum) / static_cast<double>(count);
}

Result<Side> side_of(const std::string& path) {
  auto input = read_goodput_files({path}, true);
  if (!input) return std::unexpected(input.error());
  auto answer = answer_of(*input, false);
  if (!answer) return std::unexpected(answer.error().context(path));
  const auto history = answer->measured ? answer->measured->history : input->journal.history();
  return Side{std::move(*input), std::move(*answer), mean_step(history)};
}

double share(const Summary& summary, Bucket bucket) {
  if (summary.elapsed <= Duration::zero()) return 0;
  return to_seconds(summary.of(bucket)) / to_seconds(summary.elapsed);
}

/// "+1.2", "-0.3", "0.0"; a difference that would be printed as zero has no sign.
std::string with_sign(double value) {
  const auto text = fmt::format("{:+.1f}", value);
  return text == "+0.0" || text == "-0.0" ? "0.0" : text;
}

std::string difference(Duration before, Duration after) {
  return before == after ? "0 s" : (after > before ? "+" : "") + format_duration(after - before);
}

using Row = std::array<std::string, 4>;

/// As wide as is needed, with two blanks between any two columns; most fit into 80.
std::string text_of(const std::vector<Row>& rows) {
  std::array<std::size_t, 4> widths{12, 18, 18, 22};
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    text += fmt::format("  {:<{}}  {:>{}}  {:>{}}  {:>{}}\n", row[0], widths[0], row[1], widths[1],
                        row[2], widths[2], row[3], widths[3]);
  }
  return text;
}

std::string goodput_text(const Summary& summary) {
  return fmt::format("{}{:.1f} %", summary.goodput() ? "" : "at most ",
                     summary.goodput_at_most() * 100);
}

std::string in_bucket(const Summary& summary, Bucket bucket) {
  return fmt::format("{} {:>5.1f} %", format_duration(summary.of(bucket)),
                     share(summary, bucket) * 100);
}

/// Those in use on either side, what has changed most first.
std::vector<Bucket> changed_first(const Summary& before, const Summary& after) {
  std::vector<Bucket> buckets;
  for (std::size_t i = 0; i < goodput::kBuckets; ++i) {
    const auto bucket = static_cast<Bucket>(i);
    if (before.of(bucket) > Duration::zero() || after.of(bucket) > Duration::zero()) {
      buckets.push_back(bucket);
    }
  }
  std::ranges::stable_sort(buckets, std::greater(), [&](Bucket bucket) {
    return std::abs(share(after, bucket) - share(before, bucket));
  });
  return buckets;
}

std::string compare_text(const Side& one, const Side& other) {
  const Summary& before = one.answer.summary;
  const Summary& after = other.answer.summary;
  std::vector<Row> rows{{"", "before", "after", "difference"}};
  rows.push_back(
      {"goodput", goodput_text(before), goodput_text(after),
       with_sign((after.goodput_at_most() - before.goodput_at_most()) * 100) + " points"});
  rows.push_back({"elapsed", format_duration(before.elapsed), format_duration(after.elapsed),
                  difference(before.elapsed, after.elapsed)});
  rows.push_back({"restarts", fmt::format("{}", before.restarts), fmt::format("{}", after.restarts),
                  before.restarts == after.restarts
                      ? "0"
                      : fmt::format("{:+}", after.restarts - before.restarts)});
  if (one.step_seconds && other.step_seconds) {
    const auto first = from_seconds(*one.step_seconds), last = from_seconds(*other.step_seconds);
    rows.push_back(
        {"a step", format_duration(first), format_duration(last), difference(first, last)});
  }
  for (const Bucket bucket : changed_first(before, after)) {
    rows.push_back({std::string(bucket_name(bucket)), in_bucket(before, bucket),
                    in_bucket(after, bucket),
                    fmt::format("{} {:>5}", difference(before.of(bucket), after.of(bucket)),
                                with_sign((share(after, bucket) - share(before, bucket)) * 100))});
  }
  return fmt::format("before: {}\nafter:  {}\n", job_line(one.input, one.answer),
                     job_line(other.input, other.answer)) +
         text_of(rows);
}

json::value number_or_null(const std::optional<double>& value) {
  return value ? json::value(*value) : json::value(nullptr);
}

json::object difference_json(const Side& one, const Side& other) {
  const Summary& before = one.answer.summary;
  const Summary& after = other.answer.summary;
  json::object seconds, shares, object;
  for (std::size_t i = 0; i < goodput::kBuckets; ++i) {
    const auto bucket = static_cast<Bucket>(i);
    seconds[bucket_name(bucket)] = to_seconds(after.of(bucket) - before.of(bucket));
    shares[bucket_name(bucket)] = share(after, bucket) - share(before, bucket);
  }
  const auto both = [](const std::optional<double>& first, const std::optional<double>& last) {
    return number_or_null(first && last ? std::optional(*last - *first) : std::nullopt);
  };
  object["goodput"] = both(before.goodput(), after.goodput());
  object["goodput_at_most"] = after.goodput_at_most() - before.goodput_at_most();
  object["elapsed_s"] = to_seconds(after.elapsed - before.elapsed);
  object["step_s"] = both(one.step_seconds, other.step_seconds);
  object["restarts"] = after.restarts - before.restarts;
  object["buckets_s"] = std::move(seconds);
  object["buckets_share"] = std::move(shares);
  return object;
}

json::object side_json(const Side& side) {
  auto object = account_json(side.input, side.answer);
  object["step_s"] = number_or_null(side.step_seconds);
  return object;
}

}  // namespace

int run_goodput_compare(const CompareOptions& options) {
  // It can be read once.
  if (options.before == "-" && options.after == "-") {
    return report_error("standard input can be one of the two only", kExitUsage);
  }
  const auto before = side_of(options.before);
  if (!before) return report_error(before.error().text, kExitFailed);
  const auto after = side_of(options.after);
  if (!after) return report_error(after.error().text, kExitFailed);
  if (options.json) {
    const json::object both{{"before", side_json(*before)},
                            {"after", side_json(*after)},
                            {"difference", difference_json(*before, *after)}};
    fmt::print("{}\n", python_json(both));
  } else {
    fmt::print("{}", compare_text(*before, *after));
  }
  return kExitDone;
}

}  // namespace elastrun::ctl
