// SPDX-License-Identifier: Apache-2.0
#include "end_of_run.hpp"

#include "agent/verdict.hpp"
#include "core/log.hpp"
#include "exit_code.hpp"
#include "report.hpp"
#include "report_json.hpp"

#include <fmt/format.h>

namespace elastrun {

int end_of_run(const agent::JobResult& result, const spec::JobSpec& spec, agent::JobRun& run) {
  using Stream = logs::Console::Stream;
  const int code = exit_code(result, spec.exit_code_of_worker);
  const bool watched = run.console().is_terminal(Stream::Err);
  run.console().write(Stream::Err, report_text(result, spec, watched));
  hand_error_on(result);
  if (!spec.report_file.empty()) {
    const auto written = write_report(spec.report_file, report_json(result, spec, code));
    if (!written) log::error("report", "{}", written.error().text);
  }
  if (!result.run_dir.empty()) {
    const auto written =
        write_report(result.run_dir + "/report.json", report_json(result, spec, code));
    if (!written) log::warning("report", "{}", written.error().text);
    if (run.is_temporary()) {
      const auto line = fmt::format("elastrun: files of this run are in {}\n", result.run_dir);
      run.console().write(Stream::Err, line);
    }
  }
  run.console().finish();
  return code;
}

}  // namespace elastrun
