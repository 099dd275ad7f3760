// SPDX-License-Identifier: Apache-2.0

#include "agent/verdict/verdict.hpp"

#include "core/signal_names.hpp"
#include "core/text.hpp"
#include "goodput/reports/summary.hpp"
#include "hangs/hang_rule.hpp"
#include "hangs/stacks.hpp"
#include "rendezvous/membership/wording.hpp"
#include "workers/environment.hpp"
#include "workers/shared_page.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <fmt/format.h>

namespace elastrun::agent {
namespace {

constexpr std::size_t kWidest = 60;
constexpr std::string_view kHint =
    "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";

bool is_signal(const workers::Failure& failure) {
  return failure.status.how == process::ExitStatus::How::Signaled;
}

std::string without_error_file(const workers::Failure& failure) {
  if (!is_signal(failure)) return std::string(kHint);
  return fmt::format("Signal {} ({}) received by PID {}", failure.status.number,
                     process::torchrun_signal_name(failure.status.number), failure.pid);
}

std::string message_of(const workers::Failure& failure) {
  if (!failure.error_file || !failure.error_file->understood) return without_error_file(failure);
  const auto& file = *failure.error_file;
  if (file.report_text().empty()) return file.plain ? without_error_file(failure) : "<N/A>";
  if (file.plain) return file.message;
  std::string indented;
  for (const char c : file.report_text()) {
    indented += c;
    if (c == '\n') indented += "  ";
  }
  return indented;
}

std::string entry(const workers::Failure& failure, std::size_t index, const std::string& host) {
  // A signal that Python has no name for is not shown here at all.
  const auto name = process::torchrun_signal_name(failure.status.number);
  const std::string signal = is_signal(failure) && name != "<N/A>" ? " (" + name + ")" : "";
  const bool has_file = failure.error_file.has_value();
  return fmt::format(
      "[{}]:\n"
      "  time      : {}\n"
      "  host      : {}\n"
      "  rank      : {} (local_rank: {})\n"
      "  exitcode  : {} (pid: {}) {}\n"
      "  error_file: {}\n"
      "  traceback : {}",
      index, format_local_time(time_of(failure)), host, failure.rank, failure.local_rank,
      failure.status.as_python(), failure.pid, signal, has_file ? failure.error_file_path : "<N/A>",
      message_of(failure));
}

std::size_t widest_line(const std::string& text) {
  std::size_t widest = 0;
  for (const auto& line : split(text, '\n')) widest = std::max(widest, line.size());
  return widest;
}

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

constexpr std::size_t kShownLines = 12;
constexpr std::size_t kShownAgain = 3;    // of those that the console has already
constexpr std::size_t kShownWidth = 300;  // of one quoted line
constexpr std::size_t kShownStack = 40;
constexpr std::size_t kHangStack = 12;
constexpr std::size_t kShownValues = 6;  // of those that the culprit last had in its page

std::string rank_list(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kMost) text += fmt::format(" and {} more", ranks.size() - kMost);
  return text;
}

/// The others, by what they are: "ranks 0, 2: stopped by elastrun after that".
std::string others_text(const workers::Judgement& judgement) {
  std::vector<int> stopped, consequence, own;
  for (std::size_t i = 0; i < judgement.failures.size(); ++i) {
    if (i == judgement.culprit) continue;
    const auto& failure = judgement.failures[i];
    auto& list = failure.stopped_by_us && judgement.consequence[i] ? stopped
                 : judgement.consequence[i]                        ? consequence
                                                                   : own;
    list.push_back(failure.rank);
  }
  std::string text;
  const auto add = [&text](const std::vector<int>& ranks, std::string_view what) {
    if (!ranks.empty()) text += fmt::format("  others    {}: {}\n", rank_list(ranks), what);
  };
  add(own, "failed by themselves as well");
  add(consequence, "only lost their peer");
  add(stopped, "stopped by elastrun after that");
  return text;
}

/// Empty if they are to be seen anyway: on the console, and not among what others said as they
/// failed. Without an exception to name, some of them are all that says why: these always stand
/// here.
std::string quoted_lines(const workers::Failure& failure, const workers::Judgement& all) {
  const auto& lines = failure.last_lines;
  const auto said_more = [&](const workers::Failure& other) {
    return other.rank != failure.rank && !other.stopped_by_us && !other.last_lines.empty();
  };
  const bool seen = failure.stderr_shown && std::ranges::none_of(all.failures, said_more);
  if (lines.empty() || (seen && workers::last_words(failure).empty())) return {};
  std::string text =
      failure.lines_are_mixed ? "  its last output:\n" : "  its last lines on stderr:\n";
  const std::size_t most = seen ? kShownAgain : kShownLines;
  // Escape sequences go before a line is cut: half of one would leave the terminal in colours, or
  // on its alternate screen.
  const std::size_t first = lines.size() > most ? lines.size() - most : 0;
  for (std::size_t i = first; i < lines.size(); ++i) {
    text += fmt::format("    | {}\n", cut(without_escapes(lines[i]), kShownWidth));
  }
  return text;
}

/// Of a worker whose timer has expired: where it stood.
std::string stack_text(const workers::Failure& failure) {
  const auto& lines = failure.stack;
  if (lines.empty()) return {};
  std::string text = "  its stack when the timer expired:\n";
  const auto count = std::min(lines.size(), kShownStack);
  for (std::size_t i = 0; i < count; ++i) {
    text += fmt::format("    | {}\n", cut(without_escapes(lines[i]), kShownWidth));
  }
  if (count < lines.size()) text += fmt::format("    | and {} more lines\n", lines.size() - count);
  return text;
}

std::string files_text(const workers::Failure& failure) {
  std::string text;
  if (!failure.stderr_path.empty()) {
    text += fmt::format("  stderr    {}\n", failure.stderr_path);
  }
  if (!failure.stdout_path.empty()) {
    text += fmt::format("  stdout    {}\n", failure.stdout_path);
  }
  if (failure.error_file && !failure.error_file->understood) {
    text += fmt::format(
        "  note      it left an error file that is not in torch's form; it begins: {:?}\n",
        std::string_view(failure.error_file->raw).substr(0, 80));
  }
  return text;
}

std::string next_step(const workers::Failure& failure) {
  using How = process::ExitStatus::How;
  const auto& status = failure.status;
  if (!failure.expired_timer.empty()) {
    return "find out what it waited for, or give the timer more time";
  }
  if (!failure.out_of_memory.empty()) {
    return "use less memory (batch size, data loader workers) or raise the memory limit";
  }
  // Before the signals: the watchdog ends its process by SIGABRT, and the Python stack of that says
  // nothing about the rank that is missing.
  if (workers::ended_by_watchdog(failure)) {
    return "find the rank that did not take part in that operation: it hangs or went another way";
  }
  if (failure.cut_short) return {};
  if (status.by_signal(SIGSEGV) || status.by_signal(SIGABRT) || status.by_signal(SIGBUS)) {
    return "set PYTHONFAULTHANDLER=1 to see the Python stack of such a crash";
  }
  if (status.by_signal(SIGKILL)) {
    return "mostly an OOM killer (`dmesg`, the pod's events), the scheduler or an admin sends "
           "SIGKILL";
  }
  // A shell's status for a command that it did not find (POSIX, Shell Command Language, 2.8.2).
  if (status.how == How::Exited && status.number == 127) {
    return "exit code 127 often means that a program was not found";
  }
  if (status.how == How::Exited && status.number > 128 && status.number <= 128 + 64) {
    const int signal = status.number - 128;
    return fmt::format("{} is 128 + {}: so a shell says that {} ended the program it ran{}",
                       status.number, signal, signal_name(signal),
                       signal == SIGKILL ? "; mostly an OOM killer (`dmesg`)" : "");
  }
  const auto lacks_library = [](std::string_view text) {
    return text.contains("No module named 'elastrun'");
  };
  if (lacks_library(workers::what_happened(failure)) ||
      std::ranges::any_of(failure.last_lines, lacks_library)) {
    return "--worker-lib lets workers import elastrun; or install its Python package";
  }
  if (!failure.exception && !failure.error_file && failure.last_lines.empty()) {
    return "it wrote nothing on stderr; in Python, @record on the entry point keeps exceptions";
  }
  return {};
}

std::string culprit_text(const workers::Judgement& judgement, const std::string& host) {
  const auto& first = judgement.first();
  std::string text =
      fmt::format("  who       rank {} (local rank {}, pid {}) on {}, at {}\n", first.rank,
                  first.local_rank, first.pid, host, format_local_time(first.wall));
  if (first.exception && !workers::what_happened(first).contains(first.exception->text())) {
    text += fmt::format("  raised    {}\n", first.exception->text());
  }
  if (first.error_file && first.error_file->understood) {
    // A text of the program's own, not in the form of an exception.
    const auto said = split(first.error_file->message, '\n').front();
    if (!said.empty() && !(first.exception && first.exception->text().contains(said))) {
      text += fmt::format("  reported  {}\n", cut(printable(said), kShownWidth));
    }
  }
  if (judgement.culprit != judgement.root) {
    text += fmt::format(
        "  note      rank {} was seen first, but {}\n", judgement.failures[judgement.root].rank,
        judgement.consequence[judgement.root] ? "only lost its peer" : "began to fail later");
  }
  if (first.page) {
    const auto last = workers::page_sentence(*first.page, first.at, kShownValues);
    if (!last.empty()) text += fmt::format("  last      {}\n", cut(last, kShownWidth));
  }
  text += others_text(judgement) + quoted_lines(first, judgement) + stack_text(first) +
          files_text(first);
  if (const auto next = next_step(first); !next.empty()) text += "  next      " + next + "\n";
  return text;
}

/// The culprit, if there is one, is on another node; what has become of the workers of this one.
std::string distant_culprit_text(const JobResult& result) {
  std::string text;
  if (result.culprit && result.culprit->is_worker() && result.culprit->cause.rank >= 0) {
    const auto& cause = result.culprit->cause;
    const auto when = WallTime(from_seconds(cause.wall_seconds));
    text = fmt::format("  who       rank {} (local rank {}) on node {}, at {}\n", cause.rank,
                       cause.local_rank, cause.node, format_local_time(when));
  }
  std::vector<int> stopped;
  for (const auto& failure : result.judgement->failures) {
    if (failure.stopped_by_us) {
      stopped.push_back(failure.rank);
      continue;
    }
    text += fmt::format("  here      rank {} {}\n", failure.rank, workers::what_happened(failure)) +
            quoted_lines(failure, *result.judgement) + files_text(failure);
  }
  if (stopped.empty()) return text;
  return text + fmt::format("  here      {}: stopped by elastrun after that\n", rank_list(stopped));
}

/// What a hang leaves open, and which option tells it.
std::string hang_remarks(const JobHang& hang) {
  std::string text;
  if (hang.before_first_step) {
    text += fmt::format("  note      until the first step it waits {} times --hang-timeout\n",
                        hangs::HangRule::kFirstStep);
  }
  if (const auto hint = hangs::stacks_hint(hang.stacks); !hint.empty()) {
    text += fmt::format("  next      {}\n", hint);
  }
  return text;
}

/// Workers that had to be killed, with what that cost; of many attempts the last ones.
std::string deaf_text(const JobResult& result) {
  constexpr std::size_t kMost = 3;
  std::vector<std::string> lines;
  for (const auto& attempt : result.attempts) {
    if (attempt.deaf.empty()) continue;
    lines.push_back(fmt::format("  slow      {} did not end when asked to: killed after {}\n",
                                rank_list(attempt.deaf), format_duration(attempt.stopping)));
  }
  std::string text;
  const auto left_out = lines.size() - std::min(lines.size(), kMost);
  for (std::size_t i = left_out; i < lines.size(); ++i) text += lines[i];
  if (left_out > 0) text += fmt::format("  slow      and in {} attempts before\n", left_out);
  return text;
}

std::string cause_sentence(const JobResult& result) {
  const auto& cause = result.ending.cause;
  return with_node(cause.text.empty() ? "the job was ended by another node" : cause.text,
                   cause.node);
}

std::string failed_sentence(const JobResult& result) {
  const auto& culprit = result.culprit;
  if (!culprit || culprit->agreed || !result.judgement) return cause_sentence(result);
  const auto& first = result.judgement->first();
  return fmt::format("rank {} failed first: it {}", first.rank, workers::what_happened(first));
}

}  // namespace

std::string signal_exception(int signal) {
  return fmt::format(
      "torch.distributed.elastic.multiprocessing.api.SignalException: Process {} got signal: {}",
      ::getppid(), signal);
}

WallTime time_of(const workers::Failure& failure) {
  if (failure.error_file && failure.error_file->timestamp) {
    return WallTime(std::chrono::seconds(*failure.error_file->timestamp));
  }
  return failure.wall;
}

std::string torchrun_report(const workers::Judgement& judgement, const std::string& entry_name,
                            const std::string& host) {
  const std::string title = entry_name + " FAILED";
  std::string root, others;
  std::size_t width = title.size();
  for (std::size_t i = 0; i < judgement.failures.size(); ++i) {
    const auto text = entry(judgement.failures[i], i, host);
    width = std::max(width, widest_line(text));
    if (i == judgement.root) {
      root = text;
    } else {
      others += (others.empty() ? "" : "\n") + text;
    }
  }
  // As torch's ChildFailedError draws it: longer lines of a traceback stand out, and no border is
  // wider.
  width = std::min(width, kWidest);
  if (others.empty()) others = "  <NO_OTHER_FAILURES>";
  const std::string border(width, '='), section(width, '-');
  return fmt::format(
      "\n{}\n{}\n{}\nFailures:\n{}\n{}\nRoot Cause (first observed failure):\n{}\n{}", border,
      title, section, others, section, root, border);
}

std::string brief_report(const workers::Judgement& judgement, const std::string& entry_name) {
  constexpr std::size_t kShown = 3;
  std::string text = "\n" + entry_name + " FAILED\n";
  const auto add = [&](std::size_t i) {
    const auto& failure = judgement.failures[i];
    const auto name =
        is_signal(failure) ? process::torchrun_signal_name(failure.status.number) : "";
    text +=
        fmt::format("  [{}] rank {} (local_rank {}), exitcode {}{}{}, pid {}{}\n", i, failure.rank,
                    failure.local_rank, failure.status.as_python(), name.empty() ? "" : " ", name,
                    failure.pid, i == judgement.root ? ": root cause" : "");
  };
  add(judgement.root);
  std::size_t shown = 1;
  for (std::size_t i = 0; i < judgement.failures.size() && shown < kShown; ++i) {
    if (i != judgement.root) add(i), ++shown;
  }
  const auto more = judgement.failures.size() - shown;
  if (more > 0) text += fmt::format("  and {} more\n", more);
  return text;
}

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

std::string with_node(std::string text, const std::string& node) {
  if (!node.empty() && !text.contains(node)) text += " (node " + node + ")";
  return text;
}

std::string_view ending_name(Ending::Kind kind) {
  // In the order of Kind.
  constexpr std::array<std::string_view, 10> kNames = {
      "succeeded",   "workers_failed",  "job_failed",   "not_needed", "signalled",
      "not_started", "rendezvous_lost", "worker_stuck", "preempted",  "guardian_lost"};
  static_assert(kNames.size() == static_cast<std::size_t>(Ending::Kind::GuardianLost) + 1);
  return kNames[static_cast<std::size_t>(kind)];
}

std::string verdict_sentence(const JobResult& result) {
  using Kind = Ending::Kind;
  const auto& ending = result.ending;
  switch (ending.kind) {
    case Kind::Succeeded:
      return ending.why.empty() ? "all workers succeeded" : "all workers succeeded; " + ending.why;
    case Kind::NotNeeded:
      return ending.why.empty() ? "this node was a spare and was not needed" : ending.why;
    case Kind::WorkersFailed:
      return failed_sentence(result);
    case Kind::JobFailed:
      return cause_sentence(result);
    case Kind::Signalled:
      return fmt::format("ended by {}", process::signal_name(ending.signal));
    case Kind::NoStart:
      return "the workers could not be started: " + ending.why;
    case Kind::RendezvousLost:
      return "the rendezvous is lost: " + ending.why;
    case Kind::Stuck:
    case Kind::Preempted:
      return ending.why;
    case Kind::GuardianLost:
      return "the elastrun process that was started by the user has been killed";
  }
  return {};
}

std::string hang_verdict(const JobResult& result, std::string_view told) {
  const auto last = static_cast<int>(result.attempts.size()) - 1;
  // The job has got over a hang of an earlier attempt, so that explains no end.
  if (result.hangs.empty() || result.hangs.back().attempt != last) return {};
  const auto& hang = result.hangs.back();
  const auto what = hangs::hang_text(hang.stacks);
  return fmt::format("  hang      at {} no worker had made progress for {}{}{}\n",
                     format_local_time(hang.at),
                     format_duration(std::chrono::round<std::chrono::milliseconds>(hang.standing)),
                     told.contains(what) ? std::string() : ": " + what,
                     hangs::stacks_lines(hang.stacks, "\n    ", kHangStack)) +
         hang_remarks(hang);
}

std::string verdict_text(const JobResult& result, const std::string& host,
                         const std::string& requeue_command) {
  if (result.succeeded() && result.ending.why.empty()) return {};
  std::string text = fmt::format("elastrun: {}\n", verdict_sentence(result));
  const bool unsaved = result.preemption && !result.preemption->failure.empty();
  // After a signal to the job the ends of its workers accuse no rank.
  const bool by_request = result.ending.kind == Ending::Kind::Signalled ||
                          (result.ending.kind == Ending::Kind::Preempted && !unsaved);
  if (result.judgement && !result.succeeded() && !by_request) {
    text += result.culprit && result.culprit->ours ? culprit_text(*result.judgement, host)
                                                   : distant_culprit_text(result);
  }
  if (!result.succeeded()) text += hang_verdict(result, verdict_sentence(result));
  text += deaf_text(result);
  for (const auto pid : result.abandoned) {
    text +=
        fmt::format("  left      process {} could not be killed: it hangs in the kernel\n", pid);
  }
  if (result.ending.requeue) {
    text += "  next      start the job again: " +
            (!requeue_command.empty() ? requeue_command
             : !unsaved               ? "nothing is wrong with it"
             : result.preemption->failure == kUnfinishedSave
                 ? fmt::format("{}; give it more, as by --preempt-timeout", kUnfinishedSave)
                 : "but first see why it could not save") +
            "\n";
  }
  return text;
}

}  // namespace elastrun::agent
