// SPDX-License-Identifier: Apache-2.0
#include "process/stale_cgroups.hpp"

#include "core/text.hpp"
#include "process/cgroup.hpp"
#include "process/process_table.hpp"

#include <filesystem>
#include <fmt/format.h>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>

namespace elastrun::process {
namespace {

/// "elastrun-NAMESPACE-PID-START-": up to the number.
std::string prefix_for(std::uint64_t pid_namespace, pid_t pid, std::uint64_t start_time) {
  return fmt::format("elastrun-{}-{}-{}-", pid_namespace, pid, start_time);
}

bool is_stale(const std::string& name) {
  const auto parts = split(name, '-');
  if (parts.size() != 5 || parts[0] != "elastrun") return false;
  if (parts[1] != fmt::to_string(own_pid_namespace())) return false;
  const auto pid = parse_int(parts[2]), start = parse_int(parts[3]);
  if (!pid || !start || *pid <= 0) return false;
  const auto owner = read_process(static_cast<pid_t>(*pid));
  return !owner || owner->zombie() || owner->start_time != static_cast<std::uint64_t>(*start);
}

bool is_own(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && info.st_uid == ::geteuid();
}

}  // namespace

std::string cgroup_name(int number) {
  const auto self = read_process(::getpid());
  const auto prefix = prefix_for(own_pid_namespace(), ::getpid(), self ? self->start_time : 0);
  return prefix + std::to_string(number);
}

std::vector<std::string> end_stale_cgroups(const std::string& parent, Duration limit) {
  std::vector<std::string> found;
  if (!read_process(::getpid())) return found;  // who lives cannot be known
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(parent, error)) {
    std::string name = entry.path().filename().string();
    if (!is_stale(name) || !is_own(entry.path().string())) continue;
    destroy_cgroup(entry.path().string(), limit);
    found.push_back(std::move(name));
  }
  return found;
}

}  // namespace elastrun::process
