// SPDX-License-Identifier: Apache-2.0

#include "elastrun/end_of_run.hpp"

#include "agent/loop/job_result.hpp"
#include "agent/verdict/verdict.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "exit_code.hpp"
#include "files/whole_file.hpp"
#include "logs/console.hpp"
#include "report.hpp"
#include "report_json.hpp"
#include "spec/job_spec.hpp"

#include <cerrno>
#include <csignal>
#include <fmt/format.h>
#include <optional>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace elastrun {

namespace {

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

}  // namespace

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

namespace {

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
  const auto put = [path, own = std::move(own), text, out = console.fd(Stream::Out),
                    err = console.fd(Stream::Err)]() -> Put {
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

int end_of_run(const agent::JobResult& result, const spec::JobSpec& spec, agent::JobRun& run) {
  const int code = exit_code(result, spec.exit_code_of_worker);
  const bool kept = !result.run_dir.empty();
  if (kept && run.is_temporary()) {
    const auto line = fmt::format("elastrun: files of this run are in {}\n", result.run_dir);
    run.console().write(Stream::Err, line, kVerdict);
  }
  // Before files are written, which may take long on a slow file system: people wait for this.
  run.console().write(Stream::Err, report_text(result, spec, reader_at(run.console())), kVerdict);
  hand_error_on(result, run.lane(files::Lane::Errors));
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
