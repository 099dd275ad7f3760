// SPDX-License-Identifier: Apache-2.0
#include "process/cgroup.hpp"

#include "core/file_io.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace elastrun::process {
namespace {

using Steady = std::chrono::steady_clock;

// mountinfo writes blanks, tabs, newlines and backslashes as \ooo: proc(5).
std::string unescape(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool escaped = text[at] == '\\' && at + 3 < text.size();
    if (escaped) {
      const int value = (text[at + 1] - '0') * 64 + (text[at + 2] - '0') * 8 + (text[at + 3] - '0');
      result += static_cast<char>(value);
      at += 3;
    } else {
      result += text[at];
    }
  }
  return result;
}

struct Mount {
  std::string root, point;
};

/// The unified hierarchy, or that of a controller of version 1.
std::optional<Mount> find_mount(std::string_view mountinfo, std::string_view controller) {
  while (!mountinfo.empty()) {
    const auto line = mountinfo.substr(0, mountinfo.find('\n'));
    mountinfo.remove_prefix(std::min(line.size() + 1, mountinfo.size()));
    // Optional fields stand before the dash, in any number (proc(5)); after it the file system, its
    // source, and its options, controllers among them.
    const auto dash = line.find(controller.empty() ? " - cgroup2 " : " - cgroup ");
    if (dash == line.npos) continue;
    const auto fields = split(line.substr(0, dash), ' ');
    const auto names = split(line.substr(line.rfind(' ') + 1), ',');
    if (!controller.empty() && std::ranges::find(names, controller) == names.end()) continue;
    if (fields.size() >= 5) return Mount{unescape(fields[3]), unescape(fields[4])};
  }
  return {};
}

/// The folder of the cgroup `path` below its mount.
std::optional<std::string> directory_below(const Mount& mount, const std::string& path) {
  if (path.starts_with("/..")) return {};  // outside of our cgroup namespace
  const std::string root = mount.root == "/" ? "" : mount.root;
  if (!path.starts_with(root)) return {};
  const std::string rest = path.substr(root.size());
  if (!rest.empty() && rest.front() != '/') return {};
  return rest == "/" ? mount.point : mount.point + rest;
}

/// How many CPUs' time a cgroup may take: cpu.max, or the two files of version 1.
std::optional<double> quota_in(const std::string& folder) {
  const auto both = split(trim(read_kernel_file(folder + "/cpu.max")), ' ');
  const bool unified = both.size() == 2;
  const auto quota = parse_int(unified ? both[0] : read_kernel_file(folder + "/cpu.cfs_quota_us"));
  const auto period =
      parse_int(unified ? both[1] : read_kernel_file(folder + "/cpu.cfs_period_us"));
  if (!quota || !period || *quota <= 0 || *period <= 0) return {};  // "max", -1
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

bool says_populated(const std::string& events) {
  return events.find("populated 1") != std::string::npos;
}

// Held by the descriptor, so that it is free again however its agent dies.
bool take_lock(int directory) {
  return ::flock(directory, LOCK_EX | LOCK_NB) == 0;
}

std::vector<std::string> below(const std::string& path) {
  std::vector<std::string> directories;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (entry.is_directory(error) && !entry.is_symlink(error)) {
      directories.push_back(entry.path().string());
    }
  }
  return directories;
}

void kill_one_by_one(const std::string& path) {
  for (const std::string& line : split(read_kernel_file(path + "/cgroup.procs"), '\n')) {
    const auto pid = parse_int(line);
    // 0 stands for processes of another pid namespace; to kill(2) it would mean our own group.
    if (pid && *pid > 1) ::kill(static_cast<pid_t>(*pid), SIGKILL);
  }
  for (const std::string& child : below(path)) kill_one_by_one(child);
}

// Directories alone: the files in one are the kernel's and go with it.
bool remove_tree(const std::string& path) {
  // From below: rmdir(2) refuses a cgroup that has children.
  for (const std::string& child : below(path)) remove_tree(child);
  return ::rmdir(path.c_str()) == 0 || errno == ENOENT;
}

bool await_empty(const std::string& path, Duration limit) {
  const auto until = Steady::now() + limit;
  const UniqueFd events(::open((path + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
  while (events) {
    std::array<char, 256> text{};
    // Read, then wait: poll tells of what has changed since the last read.
    const auto size = ::pread(events.get(), text.data(), text.size(), 0);
    // ENODEV: the cgroup is gone.
    if (size <= 0) return true;
    if (!says_populated({text.data(), static_cast<std::size_t>(size)})) return true;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Steady::now()).count();
    if (left <= 0) return false;
    // cgroup.events tells a change by POLLPRI (cgroups(7)).
    pollfd change{events.get(), POLLPRI, 0};
    ::poll(&change, 1, static_cast<int>(left));
  }
  return true;
}

}  // namespace

std::string CgroupPlace::read(const std::string& file) const {
  const auto text = folder ? read_kernel_file(*folder + "/" + file) : std::string();
  return text.empty() ? read_kernel_file(mount + "/" + file) : text;
}

std::optional<CgroupPlace> cgroup_place(std::string_view cgroup, std::string_view mountinfo,
                                        std::string_view controller) {
  std::optional<CgroupPlace> found;
  for (const auto& line : split(cgroup, '\n')) {
    // "0::/path", or "4:cpu,cpuacct:/path" of version 1; the path may hold colons.
    const auto colon = line.find(':'), second = line.find(':', colon + 1);
    if (colon == std::string::npos || second == std::string::npos) continue;
    const bool unified = line.starts_with("0::");
    const auto names = split(line.substr(colon + 1, second - colon - 1), ',');
    // A machine with both versions has a controller in one of them: if it is named, that is version
    // 1, and the line of version 2 tells nothing about it.
    if (unified ? found.has_value() : std::ranges::find(names, controller) == names.end()) continue;
    const auto mount = find_mount(mountinfo, unified ? "" : controller);
    if (!mount) continue;
    found = {mount->point, directory_below(*mount, line.substr(second + 1)), unified};
  }
  return found;
}

std::optional<CgroupPlace> own_cgroup(std::string_view controller) {
  static const auto cgroup = read_kernel_file("/proc/self/cgroup");
  static const auto mountinfo = read_kernel_file("/proc/self/mountinfo");
  return cgroup_place(cgroup, mountinfo, controller);
}

std::optional<std::string> own_cgroup_directory() {
  const auto place = own_cgroup();
  return place ? place->folder : std::nullopt;
}

int cpus_within_quota(int cpus, const std::optional<CgroupPlace>& place) {
  if (!place) return cpus;
  auto folder = place->folder.value_or(place->mount);
  // Each cgroup is within those above it.
  for (; folder.size() >= place->mount.size(); folder.resize(folder.rfind('/'))) {
    const auto quota = quota_in(folder);
    if (quota && *quota < cpus) cpus = static_cast<int>(std::ceil(*quota));
    if (!folder.contains('/')) break;
  }
  return cpus;
}

Result<Cgroup> Cgroup::make(const std::string& parent, const std::string& name) {
  const std::string path = parent + "/" + name;
  // One that is there already holds processes of another run: an error, and not a find.
  if (::mkdir(path.c_str(), 0755) != 0) {
    return std::unexpected(errno_error(Code::Io, "cannot make the cgroup " + path, errno));
  }
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Who may make a directory here but not move processes out of the parent could not fill it.
  if (!fd || ::access((parent + "/cgroup.procs").c_str(), W_OK) != 0) {
    const int reason = errno;
    ::rmdir(path.c_str());
    return std::unexpected(errno_error(Code::Io, "cannot use the cgroup " + path, reason));
  }
  return Cgroup(path, std::move(fd));
}

Cgroup& Cgroup::operator=(Cgroup&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

Cgroup::~Cgroup() {
  if (fd_) ::rmdir(path_.c_str());
}

bool Cgroup::lock() const {
  return take_lock(fd_.get());
}

UniqueFd lock_cgroup(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  return fd && take_lock(fd.get()) ? std::move(fd) : UniqueFd();
}

bool is_populated(const std::string& path) {
  return says_populated(read_kernel_file(path + "/cgroup.events"));
}

void kill_cgroup(const std::string& path) {
  // Linux 5.14. It also kills what is being forked at this moment, which no list of pids can.
  const UniqueFd file(::open((path + "/cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC));
  if (file && ::write(file.get(), "1", 1) == 1) return;
  kill_one_by_one(path);
}

bool destroy_cgroup(const std::string& path, Duration limit) {
  if (::rmdir(path.c_str()) == 0 || errno == ENOENT) return true;
  const auto until = Steady::now() + limit;
  do {  // again, because without cgroup.kill something may be born while we read the list
    kill_cgroup(path);
    if (await_empty(path, std::chrono::milliseconds(50)) && remove_tree(path)) return true;
  } while (Steady::now() < until);
  return false;
}

}  // namespace elastrun::process
