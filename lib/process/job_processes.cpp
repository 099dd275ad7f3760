// SPDX-License-Identifier: Apache-2.0

#include "process/job_processes.hpp"

#include "process/process_table.hpp"

#include <algorithm>
#include <array>
#include <climits>
#include <csignal>
#include <string_view>
#include <unistd.h>

namespace elastrun::process {
namespace {

// time(1) ignores what a terminal sends and dies of the rest: so does a shell that has no trap.
constexpr std::array<std::string_view, 13> kShells = {"sh",   "ash",   "bash", "dash", "zsh",
                                                      "ksh",  "ksh93", "mksh", "fish", "csh",
                                                      "tcsh", "rbash", "time"};
constexpr std::array<std::string_view, 3> kManyInOne = {"busybox", "toybox", "coreutils"};

bool is_among(const auto& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// The last part of the path; nothing if it cannot be read, as that of another user's.
std::string program_of(pid_t pid, const std::string& proc) {
  std::array<char, PATH_MAX> text{};
  const auto file = proc + "/" + std::to_string(pid) + "/exe";
  const auto length = ::readlink(file.c_str(), text.data(), text.size());
  if (length <= 0) return {};
  std::string_view path(text.data(), static_cast<std::size_t>(length));
  constexpr std::string_view kReplaced = " (deleted)";  // by an update, while it runs
  if (path.ends_with(kReplaced)) path.remove_suffix(kReplaced.size());
  return std::string(path.substr(path.rfind('/') + 1));
}

/// True if it blocks or ignores SIGTERM.
bool is_deaf(pid_t pid, const std::string& proc) {
  const auto status = read_status(pid, proc);
  return ((status.blocked | status.ignored) & bit_of(SIGTERM)) != 0;
}

}  // namespace

Wrapper wrapper_of(const ProcessEntry& process, const std::string& proc) {
  const auto program = program_of(process.pid, proc);
  const bool by_name = program.empty() || is_among(kManyInOne, program);
  const std::string_view name = by_name ? process.name : program;
  if (name == "timeout") return Wrapper::Relay;
  if (is_among(kShells, name)) return Wrapper::Shell;
  return waits_for_child(process, proc) && is_deaf(process.pid, proc) ? Wrapper::Shell
                                                                      : Wrapper::None;
}

bool leaves_to(const ProcessEntry& parent, const ProcessEntry& child, const std::string& proc) {
  return waits_for_child(parent, proc, true) &&
         (read_status(child.pid, proc).caught & bit_of(SIGTERM)) != 0;
}

}  // namespace elastrun::process
