// SPDX-License-Identifier: Apache-2.0
#include "agent/verdict/outcome.hpp"

#include "agent/verdict/verdict.hpp"
#include "core/text.hpp"
#include "goodput/reports/hints.hpp"
#include "goodput/reports/restart_table.hpp"
#include "goodput/reports/start_table.hpp"
#include "goodput/reports/summary.hpp"
#include "rendezvous/membership/wording.hpp"
#include "workers/command.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::agent {
namespace {

constexpr Duration kWorthAnAccount = std::chrono::seconds(1);  // of where the time went
constexpr Duration kHaste = std::chrono::seconds(60);          // restarts that are all spent
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

/// Whether workers ended the job. One whose nodes did not come together, or that was closed, would
/// not have been restarted.
bool was_ended_by_workers(const JobResult& result) {
  using Kind = Ending::Kind;
  const auto kind = result.ending.kind;
  return result.culprit && result.culprit->is_worker() &&
         (kind == Kind::WorkersFailed || kind == Kind::JobFailed);
}

/// What is left to say of restarts; for failures also why there was none.
std::string restarts_text(const JobResult& result, const spec::JobSpec& job) {
  const auto& by = result.ending.cause.rule;
  const bool of_workers = was_ended_by_workers(result);
  if (!result.succeeded() && !by.empty()) return "not restarted, by " + by;
  if (of_workers && (result.ending.cause.final || result.culprit->cause.final)) {
    const auto why = workers::why_not_again(job);
    return "not restarted, because " + (why.empty() ? "--on-hang is fail" : why);
  }
  if (job.max_restarts > 0)
    return rendezvous::restarts_text(result.restarts, result.restarts_left, job.max_restarts);
  return of_workers ? "not restarted, because --max-restarts is 0" : "";
}

/// torchrun's policy restarts at once: an outage of seconds can use all restarts up.
std::string haste_text(const JobResult& result, const spec::JobSpec& job) {
  const bool plain = !job.restart_policy_auto && job.restart_rule.empty();
  const bool spent = result.restarts > 0 && result.restarts_left == 0;
  if (!plain || !spent || result.attempts.empty() || !was_ended_by_workers(result)) return {};
  Duration time = result.attempts.front().stopping;
  for (auto each = result.attempts.begin() + 1; each != result.attempts.end(); ++each)
    time += each->waited + each->ran + each->stopping;
  if (time > kHaste) return {};
  return fmt::format("; {} restart{} within {}: --restart-policy auto waits longer before each",
                     result.restarts, result.restarts == 1 ? "" : "s", format_duration(time));
}

/// What the next start has to do again.
std::string lost_text(const PreemptionAccount& account) {
  if (const auto lost = account.lost()) {
    const auto since = fmt::format(" since checkpoint {}", account.holds);
    return fmt::format(", {} step{} lost{}", *lost, *lost == 1 ? "" : "s", *lost > 0 ? since : "");
  }
  return account.failure.empty() ? "" : ", no checkpoint of this run holds";
}

std::string failed_line(const std::string& text, const std::string& hint, const Reader& reader) {
  const auto size = kShownRows * reader.columns;
  const auto line =
      (size > hint.size() ? goodput::cut_words(text, size - hint.size()) : text) + hint;
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
  const auto restarts = restarts_text(result, job);
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
             haste_text(result, job), reader);
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
