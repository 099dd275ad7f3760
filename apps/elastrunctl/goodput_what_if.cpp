// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "goodput/reports/save_times.hpp"
#include "goodput/reports/what_if.hpp"
#include "goodput_answer.hpp"
#include "goodput_files.hpp"
#include "restart_replay.hpp"
#include "subcommands.hpp"

#include <fmt/format.h>

namespace elastrun::ctl {

namespace {

int replay_restarts(const WhatIfOptions& options) {
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

}  // namespace

int run_goodput_what_if(const WhatIfOptions& options) {
  if (!options.policy.empty() || !options.restart_rules.empty() || options.max_restarts) {
    return replay_restarts(options);
  }
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
