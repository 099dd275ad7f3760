// SPDX-License-Identifier: Apache-2.0
#include "hangs/stack_sections.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <optional>
#include <string_view>

namespace elastrun::hangs {
namespace {

using Kind = Section::Kind;

/// "Thread 0x00007f3a (most recent call first):", "Current thread 0x00007f3a [python] (most ...",
/// "Stack (most recent call first):" of the only thread that was asked,
/// "Thread 4711 (idle): "MainThread"", "thread 4711 (python, main): sleeping, ...".
Kind kind_of(std::string_view line) {
  const bool thread = line.starts_with("Thread ") || line.starts_with("Current thread ") ||
                      line.starts_with("Stack ");
  if (thread && line.ends_with("(most recent call first):")) return Kind::Faulthandler;
  if (line.starts_with("Thread ") && line.contains(" (")) return Kind::PySpy;
  const bool threads = line.starts_with("thread ") || line.starts_with("threads ");
  return threads && line.contains("): ") ? Kind::Kernel : Kind::Unknown;
}

int number_in(std::string_view text) {
  const auto number = parse_int(text);
  return number && *number >= 0 && *number < (1 << 30) ? static_cast<int>(*number) : 0;
}

/// `  File "train.py", line 88 in step`
std::optional<Frame> faulthandler_frame(std::string_view line) {
  constexpr std::string_view kFile = "File \"", kLine = "\", line ", kIn = " in ";
  const auto text = trim(line);
  // From the end: what stands before it is a path, which may hold any text.
  const auto end = text.rfind(kLine);
  if (!text.starts_with(kFile) || end == std::string_view::npos) return std::nullopt;
  const auto rest = text.substr(end + kLine.size());
  const auto in = rest.find(kIn);
  if (in == std::string_view::npos) return std::nullopt;
  return Frame{std::string(text.substr(kFile.size(), end - kFile.size())),
               std::string(rest.substr(in + kIn.size())), number_in(rest.substr(0, in))};
}

/// `    step (train.py:88)`
std::optional<Frame> py_spy_frame(std::string_view line) {
  const auto text = trim(line);
  const auto open = text.rfind(" (");
  const auto colon = text.rfind(':');
  if (open == std::string_view::npos || !text.ends_with(')')) return std::nullopt;
  if (colon == std::string_view::npos || colon < open) {
    return Frame{std::string(text.substr(open + 2, text.size() - open - 3)),
                 std::string(text.substr(0, open)), 0};
  }
  return Frame{std::string(text.substr(open + 2, colon - open - 2)),
               std::string(text.substr(0, open)),
               number_in(text.substr(colon + 1, text.size() - colon - 2))};
}

}  // namespace

std::vector<Section> sections_of(const std::vector<std::string>& lines) {
  std::vector<Section> sections;
  for (const auto& line : lines) {
    const auto kind = kind_of(line);
    if (kind != Kind::Unknown) {
      sections.push_back({kind, line, {}});
    } else if (!sections.empty()) {
      sections.back().lines.push_back(line);
    }
  }
  return sections;
}

/// faulthandler begins with the newest thread, so Python's first one is its last; py-spy names it;
/// thread_lines() begins with it.
std::size_t main_section(const std::vector<Section>& sections) {
  std::size_t main = sections.size();
  for (std::size_t i = 0; i < sections.size(); ++i) {
    const bool python = sections[i].kind == Kind::Faulthandler || sections[i].kind == Kind::PySpy;
    if (!python || frames_of(sections[i]).empty()) continue;
    const bool named = sections[i].header.contains("\"MainThread\"");
    if (sections[i].kind == Kind::Faulthandler || named || main == sections.size()) main = i;
  }
  if (main < sections.size()) return main;
  const auto kernel = std::ranges::find(sections, Kind::Kernel, &Section::kind);
  return static_cast<std::size_t>(kernel - sections.begin());
}

std::vector<Frame> frames_of(const Section& section) {
  std::vector<Frame> frames;
  if (section.kind == Kind::Kernel) return frames;
  for (const auto& line : section.lines) {
    auto frame = section.kind == Kind::PySpy ? py_spy_frame(line) : faulthandler_frame(line);
    if (frame) frames.push_back(std::move(*frame));
  }
  return frames;
}

std::vector<std::string> without_kernel(const std::vector<std::string>& lines) {
  const auto sections = sections_of(lines);
  const bool python = std::ranges::any_of(
      sections, [](const Section& section) { return !frames_of(section).empty(); });
  const bool hangs = std::ranges::any_of(
      lines, [](const auto& line) { return line.contains("): in uninterruptible sleep"); });
  if (!python || hangs) return lines;
  std::vector<std::string> kept;
  for (const auto& section : sections) {
    if (section.kind == Kind::Kernel) continue;
    kept.push_back(section.header);
    kept.insert(kept.end(), section.lines.begin(), section.lines.end());
  }
  return kept;
}

}  // namespace elastrun::hangs
