// SPDX-License-Identifier: Apache-2.0
#include "agent/verdict/outcome.hpp"

#include "agent/verdict/verdict.hpp"
#include "core/text.hpp"
#include "core/utf8.hpp"
#include "goodput/reports/hints.hpp"
#include "goodput/reports/restart_table.hpp"
#include "goodput/reports/start_table.hpp"
#include "goodput/reports/summary.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::agent {
namespace {

constexpr Duration kWorthAnAccount = std::chrono::seconds(1);  // of where the time went
constexpr std::size_t kShownCause = 300;                       // of one restart
constexpr std::size_t kShownRows = 3;                          // of the last line, on a terminal
constexpr std::size_t kShownStarts = 8;
constexpr std::size_t kShownRestarts = 5;

/// Why each restart was needed, a line each: the message of that moment has left the screen by the
/// time the job ends. Of many restarts the last ones.
std::string causes_text(const JobResult& result) {
  const bool several_nodes = result.round && result.round->group_world_size() > 1;
  std::vector<std::string> lines;
  Duration at{};
  for (std::size_t i = 0; i + 1 < result.attempts.size(); ++i) {
    const auto& attempt = result.attempts[i];
    at += attempt.waited + attempt.ran;
    const auto& cause = attempt.cause;
    const auto text = !cause || cause->text.empty() ? "another node asked for it" : cause->text;
    const auto told = several_nodes && cause ? with_node(text, cause->node) : text;
    lines.push_back(
        fmt::format("  restarted after {}: {}\n", format_duration(at), cut(told, kShownCause)));
    at += attempt.stopping;
  }
  if (const auto count = result.role_restarts.size(); count > 0) {
    const auto& last = result.role_restarts.back();
    lines.push_back(fmt::format("  went on through {} of other roles alone, at last of {}: {}\n",
                                count == 1 ? "a restart" : fmt::format("{} restarts", count),
                                printable(last.role),
                                cut(with_node(last.cause.text, last.cause.node), kShownCause)));
  }
  const auto left_out = lines.size() - std::min(lines.size(), kShownRestarts);
  std::string text;
  if (left_out > 0) text = fmt::format("  restarted {} times before that\n", left_out);
  for (std::size_t i = left_out; i < lines.size(); ++i) text += lines[i];
  return text;
}

/// What is left to say of restarts; for failures also why there was none.
std::string restarts_text(const JobResult& result, int max_restarts) {
  using Kind = Ending::Kind;
  const auto kind = result.ending.kind;
  const auto& by = result.ending.cause.rule;
  if (!result.succeeded() && !by.empty()) return "not restarted, by " + by;
  if (max_restarts > 0) {
    return fmt::format("{} of {} restarts used", result.restarts, max_restarts);
  }
  // A job whose nodes did not come together, or that was closed, would not have been restarted.
  const bool of_workers = result.culprit && result.culprit->is_worker() &&
                          (kind == Kind::WorkersFailed || kind == Kind::JobFailed);
  if (!of_workers) return {};
  return result.culprit->cause.final ? "not restarted, because --on-hang is fail"
                                     : "not restarted, because --max-restarts is 0";
}

/// What the next start has to do again.
std::string lost_text(const PreemptionAccount& account) {
  if (const auto lost = account.lost()) {
    const auto since = fmt::format(" since checkpoint {}", account.holds);
    return fmt::format(", {} steps lost{}", *lost, *lost > 0 ? since : "");
  }
  return account.failure.empty() ? "" : ", no checkpoint of this run holds";
}

std::string failed_line(const std::string& text, const Reader& reader) {
  const auto size = kShownRows * reader.columns;
  const auto line = size > 0 ? goodput::cut_words(text, size) : text;
  return (reader.colour ? "\x1b[1;31m" + line + "\x1b[0m" : line) + "\n";
}

}  // namespace

std::string reason_text(const JobResult& result) {
  const auto& culprit = result.culprit;
  if (!culprit || !culprit->ours || !culprit->is_worker() || !result.judgement) {
    return verdict_sentence(result);
  }
  const auto& first = result.judgement->first();
  const auto what = workers::what_happened(first);
  auto text = first.exception && what.contains(first.exception->text())
                  ? fmt::format("rank {}: {}", first.rank, first.exception->text())
                  : fmt::format("rank {} {}", first.rank, what);
  return culprit->agreed ? with_node(std::move(text), culprit->cause.node) : text;
}

std::string outcome_text(const JobResult& result, const spec::JobSpec& job, const Reader& reader) {
  const auto restarts = restarts_text(result, job.max_restarts);
  const auto elapsed = format_duration(result.goodput.elapsed);
  if (result.succeeded()) {
    return fmt::format("elastrun: succeeded after {}{}{}\n", elapsed, restarts.empty() ? "" : ", ",
                       restarts);
  }
  if (result.ending.kind == Ending::Kind::Preempted) {
    return fmt::format("elastrun: {} after {}{}\n", result.ending.why, elapsed,
                       result.preemption ? lost_text(*result.preemption) : "");
  }
  const bool missed = result.ending.cause.kind == rendezvous::Cause::Kind::Timeout;
  const auto place = missed ? " at " + job.rdzv_endpoint : std::string();
  return (restarts.empty() ? "" : fmt::format("  note      {}\n", restarts)) +
         failed_line(
             fmt::format("elastrun: FAILED after {}: {}{}", elapsed, reason_text(result), place),
             reader);
}

std::string account_text(const JobResult& result, const spec::JobSpec& job, const Reader& reader) {
  using goodput::Bucket;
  const auto& goodput = result.goodput;
  const auto ran = goodput.of(Bucket::Running) + goodput.of(Bucket::Productive) +
                   goodput.of(Bucket::Lost) + goodput.of(Bucket::Checkpoint);
  const bool kept = job.goodput != spec::Goodput::Off;
  if (!kept || ran <= Duration::zero() || goodput.elapsed < kWorthAnAccount) {
    return causes_text(result);
  }
  return "elastrun: " + goodput::summary_text(goodput, reader.unicode) + causes_text(result) +
         goodput::hints_text(goodput::hints(goodput, result.restart_paths)) +
         goodput::restart_table(result.restart_paths, kShownRestarts, false) +
         goodput::start_table(result.starts, kShownStarts, reader.columns);
}

}  // namespace elastrun::agent
