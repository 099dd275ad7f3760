// SPDX-License-Identifier: Apache-2.0
#include "export/console_sink.hpp"

#include "core/json.hpp"
#include "core/text.hpp"
#include "export/record_line.hpp"
#include "telemetry/record.hpp"

#include <fmt/format.h>

namespace elastrun::exporter {

using telemetry::Record;

void ConsoleLines::consume(const Record& record) {
  std::string lines;
  const auto name = printable(series_name(record));
  const auto add = [&](std::string_view aggregation, const telemetry::Value& value) {
    lines += fmt::format("[{}][{}]: {}{}={}\n", python_float(to_seconds(record.stamp.wall)),
                         printable(record.scope), name, aggregation,
                         printable(telemetry::to_text(value)));
  };
  if (record.kind == Record::Kind::Sample) {
    add("", record.value);
  } else if (record.kind == Record::Kind::Window && record.window && !record.window->no_data) {
    for (const auto& [aggregation, value] : record.window->aggregates)
      add("." + aggregation, value);
  }
  if (lines.empty()) return;
  delivered_ += 1;
  write_(lines);
}

}  // namespace elastrun::exporter
