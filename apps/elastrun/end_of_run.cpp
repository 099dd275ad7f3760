// SPDX-License-Identifier: Apache-2.0

#include "elastrun/end_of_run.hpp"

#include "agent/verdict/verdict.hpp"
#include "core/error.hpp"
#include "core/host.hpp"
#include "core/json.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "files/blocking_calls.hpp"
#include "files/whole_file.hpp"
#include "goodput/reports/summary.hpp"
#include "hangs/stacks.hpp"
#include "logs/console.hpp"
#include "rendezvous/membership/restart_rule.hpp"
#include "rendezvous/wire/messages.hpp"
#include "spec/job_spec.hpp"
#include "workers/environment.hpp"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <optional>
#include <poll.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef ELASTRUN_VERSION  // CMake gives the project's
#define ELASTRUN_VERSION "of an unknown version"
#endif

namespace elastrun {
namespace {

json::value signal_or_null(const process::ExitStatus& status) {
  if (status.how != process::ExitStatus::How::Signaled) return nullptr;
  return json::value(process::signal_name(status.number));
}

/// Of a step or checkpoint, which are below 0 if not known.
json::value step_or_null(std::int64_t step) {
  return step >= 0 ? json::value(step) : nullptr;
}

/// Writes what the worker last wrote into its page: null without one.
json::value page_json(const workers::Failure& failure) {
  if (!failure.page) return nullptr;
  const auto& page = *failure.page;
  json::object values;
  for (const auto& series : page.series) {
    // JSON has no NaN and no infinity (RFC 8259, 6); a strict reader would refuse the whole report.
    values[fmt::format("{}/{}", series.group, series.name)] =
        std::isfinite(series.value) ? json::value(series.value) : nullptr;
  }
  const auto age = std::max(to_seconds(failure.at - page.step_at), 0.0);
  return {{"step", or_null(page.step)},
          {"step_age_s", page.step ? json::value(age) : nullptr},
          {"phase", text_or_null(page.phase)},
          {"values", std::move(values)}};
}

json::object failure_json(const workers::Failure& failure, bool consequence) {
  return {{"rank", failure.rank},
          {"local_rank", failure.local_rank},
          {"pid", failure.pid},
          {"time", to_seconds(agent::time_of(failure))},
          {"ended", to_seconds(failure.wall)},
          {"exit_code", failure.status.as_python()},
          {"signal", signal_or_null(failure.status)},
          {"core_dumped", failure.status.core_dumped},
          {"what", workers::what_happened(failure)},
          {"stopped_by_us", failure.stopped_by_us},
          {"consequence", consequence},
          {"exception", failure.exception ? json::value(failure.exception->text()) : nullptr},
          {"out_of_memory", text_or_null(failure.out_of_memory)},
          {"expired_timer", text_or_null(failure.expired_timer)},
          {"stack", json::array(failure.stack.begin(), failure.stack.end())},
          {"error_file", failure.error_file ? json::value(failure.error_file_path) : nullptr},
          {"stdout", text_or_null(failure.stdout_path)},
          {"stderr", text_or_null(failure.stderr_path)},
          {"peak_rss_bytes", failure.peak_rss_bytes},
          {"last_lines", json::array(failure.last_lines.begin(), failure.last_lines.end())},
          {"last", page_json(failure)}};
}

json::array failures_json(const agent::JobResult& result) {
  json::array out;
  if (!result.judgement) return out;
  const auto& judgement = *result.judgement;
  for (std::size_t i = 0; i < judgement.failures.size(); ++i) {
    out.emplace_back(failure_json(judgement.failures[i], judgement.consequence[i]));
  }
  return out;
}

json::value cause_json(const rendezvous::Cause& cause) {
  json::object out{
      {"node", text_or_null(cause.node)}, {"text", cause.text}, {"time", cause.wall_seconds}};
  if (const auto what = rendezvous::class_of(cause)) {
    out["class"] = spec::cause_class_name(*what);
  }
  if (!cause.rule.empty()) out["rule"] = cause.rule;
  if (cause.kind != rendezvous::Cause::Kind::WorkerFailed) return out;
  out["fingerprint"] = text_or_null(cause.fingerprint);
  out["step"] = step_or_null(cause.step);
  out["checkpoint"] = step_or_null(cause.checkpoint);
  out["rank"] = cause.rank;
  out["local_rank"] = cause.local_rank;
  out["exit_code"] = cause.exit_code;
  return out;
}

json::value culprit_json(const agent::JobResult& result) {
  return result.culprit ? cause_json(result.culprit->cause) : nullptr;
}

json::array expired_timers_json(const agent::JobResult& result, std::size_t attempt) {
  json::array out;
  for (const auto& timer : result.expired_timers) {
    if (static_cast<std::size_t>(timer.attempt) != attempt) continue;
    out.push_back(
        {{"rank", timer.rank},
         {"local_rank", timer.local_rank},
         {"pid", timer.pid},
         {"scope", timer.scope},
         {"after_s", to_seconds(timer.after)},
         {"expired", to_seconds(timer.expiry)},
         {"signal", timer.reaped ? json::value(process::signal_name(timer.signal)) : nullptr},
         {"stack", json::array(timer.stack.begin(), timer.stack.end())}});
  }
  return out;
}

/// The restart waterfall: each row begins where the one before it was given up.
json::array attempts_json(const agent::JobResult& result) {
  json::array out;
  for (const auto& attempt : result.attempts) {
    const bool last = &attempt == &result.attempts.back();
    const auto index = static_cast<std::size_t>(&attempt - result.attempts.data());
    // The last one was ended by what ended the job.
    auto cause = attempt.cause ? cause_json(*attempt.cause)
                 : last        ? culprit_json(result)
                               : json::value(nullptr);
    out.push_back({{"round", attempt.round},
                   {"attempt", attempt.number},
                   {"waited_s", to_seconds(attempt.waited)},
                   {"started", to_seconds(attempt.started)},
                   {"ran_s", to_seconds(attempt.ran)},
                   {"stopping_s", to_seconds(attempt.stopping)},
                   {"ended", to_seconds(attempt.started + (attempt.ran + attempt.stopping))},
                   {"cause", std::move(cause)},
                   {"restarted", !last},
                   {"delay_s", to_seconds(attempt.delay)},
                   {"expired_timers", expired_timers_json(result, index)}});
  }
  return out;
}

/// Writes the restarts of other roles, through which this node went on.
json::array role_restarts_json(const agent::JobResult& result) {
  json::array rows;
  for (const auto& one : result.role_restarts) {
    rows.push_back({{"role", one.role},
                    {"time", to_seconds(one.at)},
                    {"node", one.cause.node},
                    {"cause", one.cause.text}});
  }
  return rows;
}

json::value preemption_json(const agent::JobResult& result) {
  if (!result.preemption) return nullptr;
  const auto& preemption = *result.preemption;
  return {{"why", preemption.why},
          {"asked", to_seconds(preemption.asked)},
          {"saved", preemption.is_saved ? json::value(to_seconds(preemption.saved)) : nullptr},
          {"saved_step", step_or_null(preemption.checkpoint)},
          {"last_step", step_or_null(preemption.step)},
          {"lost_steps", or_null(preemption.lost())},
          {"last_checkpoint", step_or_null(preemption.holds)},
          {"failure", text_or_null(preemption.failure)}};
}

json::array hangs_json(const agent::JobResult& result) {
  json::array all;
  for (const auto& hang : result.hangs) {
    auto one = hangs::stacks_json(hang.stacks);
    one["verdict"] = hangs::hang_text(hang.stacks);
    one["attempt"] = hang.attempt;
    one["time"] = to_seconds(hang.at);
    one["standing_s"] = to_seconds(hang.standing);
    all.emplace_back(std::move(one));
  }
  return all;
}

json::array workers_json(const agent::JobResult& result) {
  json::array out;
  for (const auto& worker : result.workers) {
    const auto& exit = worker.exit;  // none: the process hangs in the kernel
    out.push_back({{"rank", worker.rank},
                   {"local_rank", worker.local_rank},
                   {"pid", worker.pid},
                   {"stopped_by_us", worker.stopped_by_us},
                   {"exit_code", exit ? json::value(exit->status.as_python()) : nullptr},
                   {"signal", exit ? signal_or_null(exit->status) : nullptr},
                   {"ended", exit ? json::value(to_seconds(exit->wall)) : nullptr},
                   {"peak_rss_bytes", exit ? json::value(exit->peak_rss_bytes) : nullptr}});
  }
  return out;
}

json::array sinks_json(const std::vector<exporter::SinkAccount>& sinks) {
  json::array out;
  for (const auto& sink : sinks) {
    // As the user has typed it, which may be no UTF-8.
    out.push_back({{"sink", valid_utf8(sink.sink)},
                   {"delivered", sink.delivered},
                   {"lost", sink.lost},
                   {"trouble", text_or_null(valid_utf8(sink.trouble))}});
  }
  return out;
}

json::object versions_json() {
  json::object out{{"elastrun", ELASTRUN_VERSION}};
  utsname system{};
  if (::uname(&system) != 0) return out;
  out["system"] = system.sysname;
  out["kernel"] = system.release;
  out["machine"] = system.machine;
  return out;
}

}  // namespace

std::string report_json(const agent::JobResult& result, const spec::JobSpec& spec, int exit_code,
                        const std::vector<exporter::SinkAccount>& sinks) {
  json::object out{
      {"format", 1},
      {"versions", versions_json()},
      {"run_id", spec.run_id},
      {"name", spec.name},
      {"entry_point", workers::entry_name(spec)},
      {"host", host_name()},
      {"ending", agent::ending_name(result.ending.kind)},
      {"succeeded", result.succeeded()},
      {"exit_code", exit_code},
      {"verdict", agent::verdict_sentence(result)},
      {"requeue", result.ending.requeue},
      {"requeue_command", text_or_null(result.ending.requeue ? spec.requeue_command : "")},
      {"started", to_seconds(result.started)},
      {"finished", to_seconds(result.finished)},
      {"restarts", result.restarts},
      {"restarts_left", result.restarts_left},
      {"max_restarts", spec.max_restarts},
      {"local_world_size", result.local_world_size}};
  if (result.round) {
    out["group_rank"] = result.round->group_rank;
    out["group_world_size"] = result.round->group_world_size();
    out["world_size"] = result.round->world_size;
  }
  out["culprit"] = culprit_json(result);
  out["failures"] = failures_json(result);
  out["attempts"] = attempts_json(result);
  out["role_restarts"] = role_restarts_json(result);
  // The ledger of the restart policy; null with torchrun's.
  out["restart_ledger"] = result.memory ? json::value(to_json(*result.memory)) : nullptr;
  out["preemption"] = preemption_json(result);
  out["hangs"] = hangs_json(result);
  out["workers"] = workers_json(result);
  const bool kept = spec.goodput != spec::Goodput::Off;
  out["goodput"] = kept ? json::value(goodput::summary_json(result.goodput)) : nullptr;
  out["hints"] = goodput::hints_json(kept ? goodput::hints(result.goodput, result.restart_paths)
                                          : std::vector<goodput::Hint>());
  out["restart_waterfall"] = goodput::restarts_json(result.restart_paths);
  out["goodput_attempts"] = goodput::starts_json(result.starts);
  if (!sinks.empty()) out["metrics_sinks"] = sinks_json(sinks);
  out["run_directory"] = text_or_null(result.run_dir);
  return python_json(out) + "\n";
}

std::string report_path(const agent::JobResult& result, const spec::JobSpec& spec) {
  const auto& path = spec.report_file;
  if (spec.max_nodes <= 1) return path;
  // Without a round the node has no rank: its name keeps nodes of one shared folder apart.
  if (!result.round) return files::with_word(path, host_name());
  // One node has the name that was asked for, so that what reads the report finds it.
  if (result.round->group_rank == 0) return path;
  return files::with_word(path, fmt::format("node{}", result.round->group_rank));
}

std::string trouble_with_report(const std::string& path) {
  const auto slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return fmt::format("--report {} is a directory; give the name of a file in it", path);
  }
  if (files::is_written_to(path)) {
    if (::access(path.c_str(), W_OK) == 0) return {};
    return fmt::format("--report {}: it cannot be written to ({}); there will be no report", path,
                       std::strerror(errno));
  }
  if (::stat(folder.c_str(), &info) != 0 && errno == ENOENT) {
    return fmt::format(
        "--report {}: the directory {} does not exist; make it before the job ends, or there will "
        "be no report",
        path, folder);
  }
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return {};
  const int why = errno;
  if (::access(path.c_str(), W_OK) == 0) return {};  // it will be written in place
  return fmt::format("--report {}: no file can be made in {} ({}); there will be no report", path,
                     folder, std::strerror(why));
}

namespace {

// A run shorter than this needs no account of where its time went.
constexpr Duration kLongRun = std::chrono::seconds(10);

std::string torchrun_part(const agent::JobResult& result, const spec::JobSpec& spec,
                          const agent::Reader& reader) {
  using Kind = agent::Ending::Kind;
  const auto& ending = result.ending;
  if (ending.kind == Kind::Signalled) {
    return agent::signal_exception(ending.signal) + "\n";
  }
  const bool own = ending.kind == Kind::WorkersFailed || ending.kind == Kind::JobFailed;
  if (!own || !result.judgement) return {};
  // A worker that we have stopped did not cause it; torchrun's sentence would blame it.
  if (result.judgement->failures[result.judgement->root].stopped_by_us) return {};
  const auto name = workers::entry_name(spec);
  return "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: " +
         (reader.looks_on ? agent::brief_report(*result.judgement, name)
                          : agent::torchrun_report(*result.judgement, name, host_name()) + "\n");
}

/// The verdict, above the last line: what that says already is not said twice.
std::string verdict_above(const std::string& outcome, const agent::JobResult& result,
                          const spec::JobSpec& spec) {
  const bool preempted = result.ending.kind == agent::Ending::Kind::Preempted;
  // Else who reads it would requeue the job a second time.
  const bool by_itself = preempted && spec.requeues && !spec.requeue_command.empty();
  auto text =
      agent::verdict_text(result, host_name(),
                          (by_itself ? "elastrun asks Slurm itself, " : "") + spec.requeue_command);
  const auto sentence = agent::verdict_sentence(result);
  const auto head = "elastrun: " + sentence + "\n";
  if (!text.starts_with(head) || !outcome.contains(": " + sentence)) return text;
  const bool more = text.size() > head.size();
  const bool unsaved = result.preemption && !result.preemption->failure.empty();
  const auto* title = !preempted ? "elastrun: why it failed\n"
                      : unsaved  ? "elastrun: preempted, not saved\n"
                                 : "elastrun: preempted, not failed\n";
  return text.replace(0, head.size(), more ? title : "");
}

void warn_of(const Result<std::string>& written) {
  if (!written) log::warning("error_file", "{}", written.error().text);
  if (written && !written->empty()) log::warning("error_file", "{}", *written);
}

/// Returns what stderr gets when the job is over. After a failure: torchrun's block (in brief if a
/// person looks on), where the time went, our verdict, and as the last line the outcome, which no
/// table pushes off the screen. After a success nothing, unless the job was restarted, was long, or
/// a person looks on. --summary says how much of it; only group rank 0 gives the account.
std::string report_text(const agent::JobResult& result, const spec::JobSpec& spec,
                        const agent::Reader& reader) {
  using spec::Summary;
  const bool worth_it = !result.succeeded() || result.restarts > 0 || reader.looks_on ||
                        result.goodput.elapsed >= kLongRun;
  const bool told = worth_it && spec.summary != Summary::Off;
  const auto outcome = told ? agent::outcome_text(result, spec, reader) : "";
  // One node of a round: each has much the same account of the time.
  const bool speaks = result.round && result.round->group_rank == 0;
  const bool whole = told && spec.summary == Summary::Full && speaks;
  return torchrun_part(result, spec, reader) +
         (whole ? agent::account_text(result, spec, reader) : "") +
         verdict_above(outcome, result, spec) + outcome;
}

/// Leaves the failure of a worker there, by the thread of `files`.
void hand_failure_on(const agent::JobResult& result, files::BlockingCalls& files) {
  // A launcher around this one reads there why this program has failed.
  const char* own = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (result.succeeded() || own == nullptr || *own == '\0') return;
  const std::string to = own;
  const auto* root =
      result.judgement ? &result.judgement->failures[result.judgement->root] : nullptr;
  if (root == nullptr) {
    const auto write = [to, sentence = agent::verdict_sentence(result)] {
      return workers::write_error_file(to, sentence, std::chrono::system_clock::now());
    };
    return files.make(to, write, warn_of);
  }
  // Without one torchrun copies nothing either.
  if (!root->error_file) return;
  const auto copy = [to, from = root->error_file_path, code = root->status.as_python()] {
    return workers::copy_error_file(from, to, code);
  };
  files.make(to, copy, warn_of);
}

constexpr int kBriefLimit = 10'000;  // milliseconds

/// Runs a program, found in PATH, with our environment and streams, without a loop: for 10 seconds,
/// then it is killed. Fails with Spawn if it cannot be started, or does not end with 0.
Status run_briefly(std::vector<std::string> argv) {
  std::vector<char*> words;
  for (auto& word : argv) words.push_back(word.data());
  words.push_back(nullptr);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  // The loop has blocked signals, and a child would begin with that.
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = 0;
  const int failed = ::posix_spawnp(&pid, words[0], nullptr, &attributes, words.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  if (failed != 0) return std::unexpected(errno_error(Code::Spawn, argv.front(), failed));
  const UniqueFd ended(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd end{ended.get(), POLLIN, 0};
  // Without a pidfd (kernels before 5.3) the program is waited for without a limit.
  if (ended && ::poll(&end, 1, kBriefLimit) == 0) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  if (WIFSIGNALED(status))
    return fail(Code::Spawn, fmt::format("ended by signal {}", WTERMSIG(status)));
  return fail(Code::Spawn, fmt::format("ended with exit code {}", WEXITSTATUS(status)));
}

/// Has Slurm requeue a job that was preempted (--on-preempt requeue), from group rank 0 alone.
/// Slurm ends our job step as soon as it has heard this, so it comes after everything else.
void requeue(const agent::JobResult& result, const spec::JobSpec& spec) {
  // A spare that goes alone is named: it may have led a round before, and the job runs on.
  const bool alone = !result.ending.cause.node.empty();
  const bool leads = result.round && result.round->group_rank == 0 && !alone;
  const bool preempted = result.ending.kind == agent::Ending::Kind::Preempted;
  if (!preempted || !spec.requeues || !leads) return;
  if (spec.requeue_command.empty()) {
    return log::warning("preempt",
                        "--on-preempt requeue: outside of a Slurm job; exit code 75 says it");
  }
  if (const auto asked = run_briefly(split(spec.requeue_command, ' ')); !asked) {
    log::error("preempt", "{}: {}", spec.requeue_command, asked.error().text);
  }
}

using Stream = logs::Console::Stream;
constexpr auto kVerdict = logs::Console::Weight::Verdict;

void warn_unwritten(const Status& written) {
  if (!written) log::error("report", "{}", written.error().text);
}

/// `own`: the name for a regular file, where nodes may share it. One of our own streams is the
/// console's, and replaced it would be lost.
void write_report(agent::JobRun& run, const std::string& path, std::string own, std::string text) {
  struct Put {
    std::optional<Stream> ours;
    Status written;
  };
  auto& console = run.console();
  const auto put = [path, own = std::move(own), text, out = console.outlet(Stream::Out).fd(),
                    err = console.outlet(Stream::Err).fd()]() -> Put {
    // Asked on the thread, since stat(2) waits as well for a file system that does not answer.
    if (const auto ours = logs::own_stream(path, out, err)) return {ours, {}};
    return {{}, files::put_file(files::is_written_to(path) ? path : own, text, 0644)};
  };
  run.lane(files::Lane::Reports).make(path, put, [&console, text](const Put& done) {
    if (done.ours) return console.write(*done.ours, text, kVerdict);
    warn_unwritten(done.written);
  });
}

agent::Reader reader_at(const logs::Console& console) {
  if (!console.is_terminal(Stream::Err)) return {};
  return {.looks_on = true,
          .unicode = locale_is_utf8(),
          .colour = console.can_show_colour(),
          .columns = console.width()};
}

}  // namespace

void hand_error_on(const std::string& message) {
  const char* own = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (own == nullptr || *own == '\0') return;
  warn_of(workers::write_error_file(own, message, std::chrono::system_clock::now()));
}

int end_of_run(const agent::JobResult& result, const spec::JobSpec& spec, agent::JobRun& run) {
  const int code = exit_code(result, spec.exit_code_of_worker);
  const bool kept = !result.run_dir.empty();
  if (kept && run.is_temporary()) {
    const auto line = fmt::format("elastrun: files of this run are in {}\n", result.run_dir);
    run.console().write(Stream::Err, line, kVerdict);
  }
  // Before files are written, which may take long on a slow file system: people wait for this.
  run.console().write(Stream::Err, report_text(result, spec, reader_at(run.console())), kVerdict);
  hand_failure_on(result, run.lane(files::Lane::Errors));
  // Before the report, which tells what each sink has delivered and lost.
  const auto sinks = run.end_metrics();
  const bool asked = kept || !spec.report_file.empty();
  const auto text = asked ? report_json(result, spec, code, sinks) : "";
  if (!spec.report_file.empty()) {
    write_report(run, spec.report_file, report_path(result, spec), text);
  }
  if (kept) {
    const auto path = result.run_dir + "/report.json";
    const auto write = [path, text] { return files::put_file(path, text, 0644); };
    run.lane(files::Lane::Logs).make(path, write, warn_unwritten);
  }
  run.finish();
  // Last: from here on a signal could only turn the exit code of a job that is over into another
  // one.
  run.ignore_signals();
  requeue(result, spec);
  return code;
}

}  // namespace elastrun
