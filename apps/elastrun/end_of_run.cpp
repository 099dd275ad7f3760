// SPDX-License-Identifier: Apache-2.0
#include "end_of_run.hpp"

#include "agent/verdict.hpp"
#include "core/log.hpp"
#include "exit_code.hpp"
#include "files/whole_file.hpp"
#include "report.hpp"
#include "report_json.hpp"

#include <fmt/format.h>

namespace elastrun {
namespace {

using Stream = logs::Console::Stream;
constexpr auto kVerdict = logs::Console::Weight::Verdict;

/// `own`: the name for a regular file, where nodes may share it.
void write_later(files::BlockingCalls& files, const std::string& path, std::string own,
                 std::string text) {
  files.make(
      path,
      [path, own = std::move(own), text = std::move(text)] {
        return files::put_file(files::is_written_to(path) ? path : own, text, 0644);
      },
      [](const Status& written) {
        if (!written) log::error("report", "{}", written.error().text);
      });
}

/// One of our own streams is the console's: it knows what waits before.
void write_report(agent::JobRun& run, const std::string& path, std::string own,
                  const std::string& text) {
  if (path == "/dev/stdout") return run.console().write(Stream::Out, text, kVerdict);
  if (path == "/dev/stderr") return run.console().write(Stream::Err, text, kVerdict);
  write_later(run.reports(), path, std::move(own), text);
}

}  // namespace

int end_of_run(const agent::JobResult& result, const spec::JobSpec& spec, agent::JobRun& run) {
  const int code = exit_code(result, spec.exit_code_of_worker);
  const bool watched = run.console().is_terminal(Stream::Err);
  run.console().write(Stream::Err, report_text(result, spec, watched), kVerdict);
  hand_error_on(result, run.files());
  const bool kept = !result.run_dir.empty();
  const auto text = kept || !spec.report_file.empty() ? report_json(result, spec, code) : "";
  if (!spec.report_file.empty()) {
    write_report(run, spec.report_file, report_path(result, spec), text);
  }
  const auto inside = result.run_dir + "/report.json";
  if (kept) write_later(run.files(), inside, inside, text);
  if (kept && run.is_temporary()) {
    const auto line = fmt::format("elastrun: files of this run are in {}\n", result.run_dir);
    run.console().write(Stream::Err, line, kVerdict);
  }
  run.finish();
  run.ignore_signals();
  return code;
}

}  // namespace elastrun
