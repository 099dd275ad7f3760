// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "goodput_files.hpp"
#include "restart_replay.hpp"
#include "subcommands.hpp"

#include <fmt/format.h>

namespace elastrun::ctl {

int run_goodput_what_if(const WhatIfOptions& options) {
  const auto rules = spec::parse_restart_rules(join(options.restart_rules, ","));
  if (!rules) return report_error(rules.error().text, kExitUsage);
  GoodputReader reader;
  RestartReplay replay(
      options.policy == "auto" ? spec::RestartPolicy::Auto : spec::RestartPolicy::Torchrun, *rules,
      options.max_restarts);
  reader.on_record = [&replay](const telemetry::Record& record) { replay.take(record); };
  const auto read = read_into(reader, options.files);
  if (!read) return report_error(read.error().text, kExitFailed);
  replay.decide();
  if (options.json) {
    fmt::print("{}\n", python_json(replay.json()));
  } else {
    fmt::print("{}", replay.text());
  }
  return kExitDone;
}

}  // namespace elastrun::ctl
