// SPDX-License-Identifier: Apache-2.0
#include "process/stale_cgroups.hpp"

#include "core/text.hpp"
#include "process/process_table.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <memory>
#include <sys/stat.h>
#include <unistd.h>

namespace elastrun::process {
namespace {

constexpr std::string_view kPrefix = "elastrun-";

/// "elastrun-NAMESPACE-PID-START-": up to the number.
std::string prefix_for(std::uint64_t pid_namespace, pid_t pid, std::uint64_t start_time) {
  return fmt::format("elastrun-{}-{}-{}-", pid_namespace, pid, start_time);
}

std::string name_for(int number) {
  const auto self = read_process(::getpid());
  const auto prefix = prefix_for(own_pid_namespace(), ::getpid(), self ? self->start_time : 0);
  return prefix + std::to_string(number);
}

// A hint: it spares the lock of most that live, also in the moment before they hold it.
bool seems_stale(const std::string& name) {
  const auto parts = split(name, '-');
  if (parts.size() != 5 || parts[0] != "elastrun") return false;
  // Numbers of another pid namespace mean other processes here.
  if (parts[1] != fmt::to_string(own_pid_namespace())) return false;
  const auto pid = parse_int(parts[2]), start = parse_int(parts[3]);
  if (!pid || !start || *pid <= 0) return false;
  const auto owner = read_process(static_cast<pid_t>(*pid));
  return !owner || owner->zombie() || owner->start_time != static_cast<std::uint64_t>(*start);
}

bool is_own(const UniqueFd& directory) {
  struct stat info {};
  // By the descriptor that holds the lock: the path may lead to another one by now.
  return ::fstat(directory.get(), &info) == 0 && info.st_uid == ::geteuid();
}

struct Stale {
  std::string name, path;
  UniqueFd lock;  // held until all is done, so that no other agent takes it
  bool populated = false;
};

constexpr std::size_t kAtOnce = 64;  // each holds a descriptor; the next start finds the others

std::vector<Stale> take_stale(const std::string& parent) {
  std::vector<Stale> found;
  // Each start looks here, at some twenty files of the kernel's: by std::filesystem, which makes
  // paths of all their names, that was a fifteenth of what a start computes.
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(parent.c_str()), ::closedir);
  while (listing && found.size() < kAtOnce) {
    const dirent* const entry = ::readdir(listing.get());
    if (entry == nullptr) break;
    if (!std::string_view(entry->d_name).starts_with(kPrefix)) continue;
    Stale stale{entry->d_name, fmt::format("{}/{}", parent, entry->d_name), {}};
    if (!seems_stale(stale.name)) continue;
    stale.lock = lock_cgroup(stale.path);
    if (stale.lock && is_own(stale.lock)) found.push_back(std::move(stale));
  }
  return found;
}

}  // namespace

// Between mkdir(2) and the lock another may take it, or even remove it, but kills nothing: it is
// empty, and without the lock we put nothing in.
Result<Cgroup> make_own_cgroup(const std::string& parent, int number) {
  const std::string name = name_for(number);
  auto made = Cgroup::make(parent, name);
  if (made && !made->lock()) made = Cgroup::make(parent, name + "-unlocked");
  return made;
}

EndedCgroups end_stale_cgroups(const std::string& parent, Duration limit) {
  EndedCgroups ended;
  if (!read_process(::getpid())) return ended;  // /proc would not even give a hint
  const auto until = std::chrono::steady_clock::now() + limit;
  auto all = take_stale(parent);
  for (Stale& stale : all) {  // all, before one is waited for
    stale.populated = is_populated(stale.path);
    if (stale.populated) kill_cgroup(stale.path);
  }
  for (const Stale& stale : all) {
    const Duration left = until - std::chrono::steady_clock::now();
    if (left > Duration::zero()) destroy_cgroup(stale.path, left);
    if (!stale.populated) continue;
    (is_populated(stale.path) ? ended.stuck : ended.killed).push_back(stale.name);
  }
  return ended;
}

}  // namespace elastrun::process
