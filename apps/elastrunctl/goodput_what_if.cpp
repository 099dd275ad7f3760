// SPDX-License-Identifier: Apache-2.0
#include "goodput/reports/save_times.hpp"
#include "goodput/reports/what_if.hpp"
#include "goodput_answer.hpp"
#include "goodput_files.hpp"
#include "subcommands.hpp"

#include <fmt/format.h>

namespace elastrun::ctl {

int run_goodput_what_if(const WhatIfOptions& options) {
  GoodputReader reader;
  goodput::SaveTimes saves;
  reader.on_record = [&saves](const telemetry::Record& record) { saves.take(record); };
  const auto read = read_into(reader, options.files);
  if (!read) return report_error(read.error().text, kExitFailed);
  const auto recorded = answer_of(reader.input, false);
  if (!recorded) return report_error(recorded.error().text, kExitFailed);
  const auto answer = goodput::what_if(
      recorded->summary, {options.mtbf, options.save_time, options.interval, saves.usual()});
  if (!answer) return report_error(answer.error().text, kExitFailed);
  if (options.json) {
    fmt::print("{}\n", python_json(goodput::what_if_json(*answer)));
  } else {
    fmt::print("{}", goodput::what_if_text(*answer));
  }
  return kExitDone;
}

}  // namespace elastrun::ctl
