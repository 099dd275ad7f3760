// SPDX-License-Identifier: Apache-2.0
#include "spec/explain.hpp"

#include "core/text.hpp"
#include "spec/argument_words.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <optional>

namespace elastrun::spec {
namespace {

struct Line {
  std::string name, value, source;
};

std::string shown_value(const OptionRow& option, const Values& values) {
  if (option.kind == Kind::Flag) return values.is_on(option.id) ? "on" : "off";
  const auto& text = values[option.id].text;
  return text.empty() ? "-" : text;
}

Line line_of(const OptionRow& option, const Resolved& job) {
  Line line{std::string(option.name), shown_value(option, job.values),
            job.values[option.id].source};
  const std::string count = fmt::to_string(job.spec.nproc_per_node);
  if (option.id == Opt::NprocPerNode && line.value != count) line.value += " (" + count + ")";
  return line;
}

/// One column for the sources, wide enough for the id that a job is given. Beside a longer value,
/// as of a path, the source has no room, and stands in the next line; no line is longer than 100
/// for it.
void append(std::string& out, const Line& line) {
  constexpr std::size_t kValueWidth = 36, kColumn = 64, kLongest = 100;
  const auto room = kLongest - std::min(line.source.size(), kLongest - 4);
  const bool fits = line.value.size() <= kValueWidth && room >= kColumn;
  const auto gap = fits ? " " : fmt::format("\n{:{}}", "", std::min(kColumn, room));
  out += fmt::format("  {:<24} {:<{}}{}{}\n", line.name, line.value, fits ? kValueWidth : 0, gap,
                     line.source);
}

}  // namespace

std::string explain_text(const Resolved& job) {
  std::string out = "Where each value comes from:\n";
  append(out, {"script", job.spec.script, job.script_source});
  if (job.spec.mode != Mode::Program) {
    append(out, {"interpreter", job.spec.interpreter,
                 job.spec.interpreter_given ? "PYTHON_EXEC" : "in PATH, VIRTUAL_ENV or beside it"});
  }
  std::optional<Group> current;
  for (const auto& option : options()) {
    // The others of that group ask for something else than a run, and have no value in it.
    if (option.group == Group::Launch && option.id != Opt::Config) continue;
    if (option.group != current) out += fmt::format("{}\n", title(option.group));
    current = option.group;
    append(out, line_of(option, job));
  }
  return out;
}

}  // namespace elastrun::spec
