// SPDX-License-Identifier: Apache-2.0

#include "elastrun/end_of_run.hpp"

#include "agent/verdict/verdict.hpp"
#include "core/error.hpp"
#include "core/host.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "files/blocking_calls.hpp"
#include "files/whole_file.hpp"
#include "logs/console.hpp"
#include "report_json.hpp"
#include "spec/job_spec.hpp"
#include "workers/environment.hpp"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fmt/format.h>
#include <optional>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace elastrun {
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

/// One node of a round: each has much the same account of the time.
bool speaks_for_the_job(const agent::JobResult& result) {
  return result.round && result.round->group_rank == 0;
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
  const bool whole = told && spec.summary == Summary::Full && speaks_for_the_job(result);
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

void write_later(files::BlockingCalls& files, const std::string& path, std::string text) {
  files.make(
      path, [path, text = std::move(text)] { return files::put_file(path, text, 0644); },
      warn_unwritten);
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
  if (kept) write_later(run.lane(files::Lane::Logs), result.run_dir + "/report.json", text);
  run.finish();
  // Last: from here on a signal could only turn the exit code of a job that is over into another
  // one.
  run.ignore_signals();
  requeue(result, spec);
  return code;
}

}  // namespace elastrun
