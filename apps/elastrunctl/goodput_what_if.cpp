// SPDX-License-Identifier: Apache-2.0
#include "command.hpp"
#include "goodput/what_if.hpp"
#include "goodput_answer.hpp"

#include <fmt/format.h>

namespace elastrun::ctl {

int run_goodput_what_if(const WhatIfOptions& options) {
  const auto input = read_goodput_files(options.files, false);
  if (!input) return report_error(input.error().text, kExitFailed);
  const auto recorded = answer_of(*input, false);
  if (!recorded) return report_error(recorded.error().text, kExitFailed);
  const auto answer =
      goodput::what_if(recorded->summary, {options.mtbf, options.save_time, options.interval});
  if (!answer) return report_error(answer.error().text, kExitFailed);
  if (options.json) {
    fmt::print("{}\n", python_json(goodput::what_if_json(*answer)));
  } else {
    fmt::print("{}", goodput::what_if_text(*answer));
  }
  return kExitDone;
}

}  // namespace elastrun::ctl
