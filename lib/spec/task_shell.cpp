// SPDX-License-Identifier: Apache-2.0
#include "spec/task_shell.hpp"

#include "core/text.hpp"

#include <fmt/format.h>
#include <optional>
#include <string>
#include <utility>

namespace elastrun::spec {
namespace {

struct Process {
  std::string name, parent, group, terminal;
};

// proc_pid_stat(5): "PID (NAME) STATE PARENT GROUP SESSION TERMINAL ...".
std::optional<Process> find_process(const HostEnvironment& around, const std::string& pid) {
  const auto stat = around.read_file(fmt::format("/proc/{}/stat", pid));
  if (!stat) return std::nullopt;
  const auto name = stat->find('('), name_end = stat->rfind(") ");
  if (name == std::string::npos || name_end == std::string::npos) return std::nullopt;
  const auto fields = split(std::string_view(*stat).substr(name_end + 2), ' ');
  if (fields.size() < 5) return std::nullopt;
  return Process{stat->substr(name + 1, name_end - name - 1), fields[1], fields[2], fields[4]};
}

// The agent has its own group, and so has a guardian below another one (process/guardian.hpp):
// what was started is the guardian on top.
std::optional<Process> find_started(const HostEnvironment& around) {
  auto found = find_process(around, "self");
  if (!found) return found;
  bool is_agent = found->name == "elastrun-agent";
  for (auto above = find_process(around, found->parent);
       above && (is_agent || above->name == found->name);
       above = find_process(around, found->parent)) {
    found = std::move(above);
    is_agent = false;
  }
  return found;
}

}  // namespace

bool is_typed_in_shell(const HostEnvironment& around, std::int64_t task) {
  const auto started = find_started(around);
  // A shell gives each command that is typed a separate process group, and the task is the
  // shell's (credentials(7)); what srun starts itself stays in the task's group.
  return started && started->terminal != "0" && parse_int(started->group) != task;
}

}  // namespace elastrun::spec
