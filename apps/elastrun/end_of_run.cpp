// SPDX-License-Identifier: Apache-2.0
#include "end_of_run.hpp"

#include "core/log.hpp"
#include "exit_code.hpp"
#include "report.hpp"
#include "report_json.hpp"

namespace elastrun {

int end_of_run(const agent::JobResult& result, const spec::JobSpec& spec, Parts& parts) {
  using Stream = logs::Console::Stream;
  const int code = exit_code(result, spec.exit_code_of_worker);
  const bool watched = parts.console().is_terminal(Stream::Err);
  parts.console().write(Stream::Err, report_text(result, spec, watched));
  hand_error_on(result);
  if (!spec.report_file.empty()) {
    const auto written = write_report(spec.report_file, report_json(result, spec, code));
    if (!written) log::error("report", "{}", written.error().text);
  }
  if (const auto own = parts.layout().report(); !own.empty() && !parts.layout().is_temporary()) {
    const auto written = write_report(own, report_json(result, spec, code));
    if (!written) log::warning("report", "{}", written.error().text);
  }
  parts.clean_up(result.succeeded());
  parts.console().finish();
  return code;
}

}  // namespace elastrun
