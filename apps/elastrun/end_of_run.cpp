// SPDX-License-Identifier: Apache-2.0
#include "end_of_run.hpp"

#include "agent/verdict/verdict.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "exit_code.hpp"
#include "files/whole_file.hpp"
#include "logs/console.hpp"
#include "report.hpp"
#include "report_json.hpp"
#include "requeue.hpp"

#include <fmt/format.h>
#include <optional>

namespace elastrun {
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
