// SPDX-License-Identifier: Apache-2.0
#include "process/wrapper.hpp"

#include <algorithm>
#include <array>
#include <climits>
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
  const std::string_view path(text.data(), static_cast<std::size_t>(length));
  return std::string(path.substr(path.rfind('/') + 1));
}

}  // namespace

Wrapper wrapper_of(const ProcessEntry& process, const std::string& proc) {
  const auto program = program_of(process.pid, proc);
  const bool by_name = program.empty() || is_among(kManyInOne, program);
  const std::string_view name = by_name ? process.name : program;
  if (name == "timeout") return Wrapper::Relay;
  return is_among(kShells, name) ? Wrapper::Shell : Wrapper::None;
}

}  // namespace elastrun::process
