// SPDX-License-Identifier: Apache-2.0
#include "export/trace_lines.hpp"

#include "export/chrome_trace.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::exporter {

std::string TraceLines::of(const telemetry::Record& record) {
  auto event = trace_event_of(record);
  if (!event) return {};
  event->time = std::max(event->time - start_.time_since_epoch(), Duration::zero());
  std::string text;
  if (named_.insert(event->process).second) {
    const auto rank = event->process - 1;
    text = trace_process(event->process, rank < 0 ? "agent" : fmt::format("rank {}", rank),
                         static_cast<int>(std::clamp<std::int64_t>(event->process, 0, 1 << 30)));
  }
  return text + trace_line(*event);
}

}  // namespace elastrun::exporter
