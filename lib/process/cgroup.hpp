// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/unique_fd.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace elastrun::process {

/// Where a process is in one hierarchy, see cgroups(7).
struct CgroupPlace {
  std::string mount;
  std::optional<std::string> folder{};  // none: it is not below what is mounted here (containers)
  bool unified = true;                  // version 2
  /// Contents of a file of it; of the mount's root where it has none that we can see.
  std::string read(const std::string& file) const;
};
/// Finds the place in the hierarchy of a controller, or in that of version 2, from the texts of
/// /proc/PID/cgroup and /proc/self/mountinfo. Pure. Nothing without such a hierarchy.
std::optional<CgroupPlace> cgroup_place(std::string_view cgroup, std::string_view mountinfo,
                                        std::string_view controller = {});
/// Finds that of this process, as it was when this was first called.
std::optional<CgroupPlace> own_cgroup(std::string_view controller = {});
/// Finds this process's cgroup v2 directory.
std::optional<std::string> own_cgroup_directory();

/// How many of `cpus` a process there, by the controller "cpu", can keep busy: a CPU quota of its
/// cgroup, or of one above it, in version 1 or 2, leaves so many, rounded up.
int cpus_within_quota(int cpus, const std::optional<CgroupPlace>& place);

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
