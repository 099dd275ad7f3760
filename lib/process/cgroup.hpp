// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/unique_fd.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::process {

/// A line of /proc/PID/cgroup, see cgroups(7): where a process is in one hierarchy.
struct CgroupPlace {
  std::vector<std::string> controllers;  // of version 1
  std::string path;
  bool unified = false;  // version 2
  bool has(std::string_view controller) const {
    return std::ranges::find(controllers, controller) != controllers.end();
  }
};
/// Reads these lines. Pure.
std::vector<CgroupPlace> cgroup_places(std::string_view cgroup);

/// Finds the cgroup v2 directory of a process from the texts of /proc/PID/cgroup and
/// /proc/self/mountinfo. Pure. Nothing without a v2 hierarchy, or if our cgroup is not below any
/// mount of it (containers).
std::optional<std::string> cgroup_directory(std::string_view cgroup, std::string_view mountinfo);
/// Finds this process's cgroup directory.
std::optional<std::string> own_cgroup_directory();

/// How many of `cpus` a process with these texts can keep busy: a CPU quota of its cgroup, or of
/// one above it, in version 1 or 2, leaves so many, rounded up.
int cpus_within_quota(int cpus, std::string_view cgroup, std::string_view mountinfo);

/// One cgroup v2 directory that we made. Processes are put in by CLONE_INTO_CGROUP; no controller
/// is switched on, so it limits nothing: it is only a list that unprivileged processes cannot
/// leave.
class Cgroup {
 public:
  /// Makes `parent`/`name`. Fails with Io where we may not (the normal case without delegation).
  static Result<Cgroup> make(const std::string& parent, const std::string& name);
  Cgroup(Cgroup&&) = default;
  Cgroup& operator=(Cgroup&& other) noexcept;
  /// Removes the directory if it is empty; kills nothing.
  ~Cgroup();

  /// Holds flock(2) on the directory as long as this lives: no other agent takes it
  /// for stale (containment.hpp). False if another has it, or locks cannot be had here.
  bool lock() const;
  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }

 private:
  Cgroup(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string path_;
  UniqueFd fd_;
};

/// A descriptor of the directory that holds its flock(2), not waiting for it; empty if another has
/// it, or none can be had. No program that is started inherits it.
UniqueFd lock_cgroup(const std::string& path);
/// True if any process, not counting zombies, is in it or below. False if it does not exist.
bool is_populated(const std::string& path);
/// SIGKILL to all in the cgroup and below it, born or being born: cgroup.kill, or one by one where
/// the kernel has none (before Linux 5.14).
void kill_cgroup(const std::string& path);
/// Kills, waits until it is empty or `limit` has passed, and removes it with those below. False if
/// something is left. Nothing happens if it does not exist.
bool destroy_cgroup(const std::string& path, Duration limit);

}  // namespace elastrun::process
