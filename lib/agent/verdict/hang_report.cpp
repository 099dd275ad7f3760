// SPDX-License-Identifier: Apache-2.0
#include "agent/verdict/hang_report.hpp"

#include "core/text.hpp"
#include "hangs/stacks_report.hpp"

#include <fmt/format.h>

namespace elastrun::agent {
namespace {

constexpr std::size_t kHangStack = 12;  // lines

}  // namespace

std::string hang_verdict(const JobResult& result, std::string_view told) {
  const auto last = static_cast<int>(result.attempts.size()) - 1;
  if (result.hangs.empty() || result.hangs.back().attempt != last) return {};
  const auto& hang = result.hangs.back();
  const auto what = hangs::hang_text(hang.stacks);
  return fmt::format("  hang      at {} no worker had made progress for {}{}{}\n",
                     format_local_time(hang.at),
                     format_duration(std::chrono::round<std::chrono::milliseconds>(hang.standing)),
                     told.contains(what) ? std::string() : ": " + what,
                     hangs::stacks_lines(hang.stacks, "\n    ", kHangStack));
}

}  // namespace elastrun::agent
