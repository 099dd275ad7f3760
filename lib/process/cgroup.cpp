// SPDX-License-Identifier: Apache-2.0
#include "process/cgroup.hpp"

#include "core/read_file.hpp"
#include "core/text.hpp"

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
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

std::optional<Mount> unified_mount(std::string_view mountinfo) {
  for (const std::string& line : split(mountinfo, '\n')) {
    // Optional fields stand before the dash, in any number (proc(5)).
    const auto dash = line.find(" - cgroup2 ");
    if (dash == std::string::npos) continue;
    const auto fields = split(std::string_view(line).substr(0, dash), ' ');
    if (fields.size() >= 5) return Mount{unescape(fields[3]), unescape(fields[4])};
  }
  return {};
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

std::optional<std::string> cgroup_directory(std::string_view cgroup, std::string_view mountinfo) {
  const auto mount = unified_mount(mountinfo);
  if (!mount) return {};
  for (const std::string& line : split(cgroup, '\n')) {
    if (!line.starts_with("0::/")) continue;
    const std::string path = line.substr(3);
    if (path.starts_with("/..")) return {};  // outside of our cgroup namespace
    const std::string root = mount->root == "/" ? "" : mount->root;
    if (!path.starts_with(root)) return {};
    const std::string rest = path.substr(root.size());
    if (!rest.empty() && rest.front() != '/') return {};
    return rest == "/" ? mount->point : mount->point + rest;
  }
  return {};
}

std::optional<std::string> own_cgroup_directory() {
  return cgroup_directory(read_kernel_file("/proc/self/cgroup"),
                          read_kernel_file("/proc/self/mountinfo"));
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

bool Cgroup::populated() const {
  return is_populated(path_);
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
