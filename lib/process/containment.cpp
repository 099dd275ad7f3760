// SPDX-License-Identifier: Apache-2.0

#include "process/containment.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "process/process_table.hpp"

#include <algorithm>
#include <dirent.h>
#include <fmt/format.h>
#include <iterator>
#include <memory>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace elastrun::process {
namespace {

constexpr std::string_view kPrefix = "elastrun-";

/// A locked cgroup of this process below `parent`, "elastrun-NAMESPACE-PID-START-NUMBER", for which
/// `number` is new. Where it cannot be locked, its name keeps it from ever being taken for stale.
/// Fails as Cgroup::make. Between mkdir(2) and the lock another may take it, or even remove it, but
/// kills nothing: it is empty, and without the lock we put nothing in.
Result<Cgroup> make_own_cgroup(const std::string& parent, int number) {
  const auto self = read_process(::getpid());
  const auto name = fmt::format("{}{}-{}-{}-{}", kPrefix, own_pid_namespace(), ::getpid(),
                                self ? self->start_time : 0, number);
  auto made = Cgroup::make(parent, name);
  if (made && !made->lock()) made = Cgroup::make(parent, name + "-unlocked");
  return made;
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

using namespace std::chrono_literals;

// How many ends of children may go by, while an ended worker hides the orphans behind it, before
// the list of children is read: it costs about as much as some ten of those signals, and all
// processes of the machine, where the kernel keeps no such list, as a hundred.
constexpr int kHiddenOrphans = 64;

// The loop stands still meanwhile, and the first round waits: a second at most.
constexpr auto kStaleBound = 900ms;

std::vector<pid_t> present_children() {
  siginfo_t info{};
  std::vector<pid_t> children;
  // Mostly there are none, and this one call says so.
  if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0) return children;
  for (const ProcessEntry& entry : read_children(::getpid())) children.push_back(entry.pid);
  return children;
}

ProcessTable live_descendants(const std::vector<pid_t>& spared) {
  const pid_t self = ::getpid();
  ProcessTable found = descendants(read_descendants(self), self, spared);
  std::erase_if(found, [](const ProcessEntry& entry) { return entry.zombie(); });
  return found;
}

}  // namespace

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

Containment::Containment(boost::asio::io_context& io, const PosixLauncher& launcher,
                         guardian::Agent* guardian)
    : launcher_(launcher),
      guardian_(guardian),
      // Before the first worker: children that the program had when it became this one (exec).
      strangers_(present_children()),
      parent_cgroup_(own_cgroup_directory()),
      child_signals_(io, {SIGCHLD}, [this](const SignalEvent&) { see_child_signal(); }) {
  // Orphans of workers become our children, not init's: else nothing would know whose they were.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
}

Containment::~Containment() {
  end_attempt(survivors_ ? Duration::zero() : kKillBound);
}

void Containment::begin_attempt() {
  drop(cgroup_, launcher_.any_running() ? kLastLook : 1s);
  // Of the attempt before: what SIGKILL could not end then is not waited for again.
  survivors_ = false;
  make_next();
  cgroup_ = std::exchange(next_cgroup_, std::nullopt);
}

int Containment::next_cgroup_fd() {
  make_next();
  return next_cgroup_ ? next_cgroup_->fd() : -1;
}

void Containment::make_next() {
  if (!parent_cgroup_ || next_cgroup_) return;
  if (made_ == 0) end_stale();
  auto made = make_own_cgroup(*parent_cgroup_, made_++);
  if (!made) {
    log::debug("process", "no cgroup for the workers: {}", made.error().text);
    // As for most people without a delegated cgroup; the next attempt would fail the same way.
    parent_cgroup_.reset();
    return;
  }
  next_cgroup_ = std::move(*made);
  if (guardian_ != nullptr) guardian_->remember_cgroup(next_cgroup_->path());
}

void Containment::end_stale() {
  const auto ended = end_stale_cgroups(*parent_cgroup_, kStaleBound);
  for (const auto& name : ended.killed) {
    log::warning(
        "process",
        "killed what was left of a run of which agent and guardian were killed (cgroup {})", name);
  }
  for (const auto& name : ended.stuck) {
    log::warning("process",
                 "cannot empty the cgroup {} of a run of which agent and guardian were killed; "
                 "something in it cannot be killed",
                 name);
  }
}

std::vector<pid_t> Containment::strangers() const {
  std::vector<pid_t> pids;
  for (const auto& others : others_) std::ranges::copy(others(), std::back_inserter(pids));
  pids.insert(pids.end(), strangers_.begin(), strangers_.end());
  return pids;
}

std::vector<pid_t> Containment::not_to_touch() const {
  auto pids = launcher_.children();
  const auto others = strangers();
  pids.insert(pids.end(), others.begin(), others.end());
  return pids;
}

ProcessTable Containment::leftovers() const {
  return any_live_child() ? live_descendants(not_to_touch()) : ProcessTable();
}

ProcessTable Containment::processes() const {
  return live_descendants(strangers());
}

KillResult Containment::sweep(Duration limit) {
  left_alive_ = false;
  if (!any_live_child()) {
    reap_adopted(not_to_touch());
    return {};
  }
  // In one step, before the table: what forks faster than it is read ends here.
  if (cgroup_ && !launcher_.any_running()) kill_cgroup(cgroup_->path());
  const KillResult result = kill_descendants(not_to_touch(), limit);
  left_alive_ = !result.alive.empty();
  if (!reap_adopted(not_to_touch())) reap_adopted_by_table(not_to_touch());
  return result;
}

void Containment::kill_all() {
  if (cgroup_) kill_cgroup(cgroup_->path());
  if (!any_live_child()) return;
  const pid_t self = ::getpid();
  signal_each(descendants(read_descendants(self), self, strangers()), SIGKILL);
}

KillResult Containment::end_attempt(Duration limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  // At once, not one tree after the other: those that are killed late fork meanwhile.
  if (launcher_.any_running()) kill_all();
  const KillResult result = sweep(limit);
  survivors_ = !result.alive.empty() || launcher_.any_running();
  for (auto* const one : {&cgroup_, &next_cgroup_}) {
    drop(*one, std::max<Duration>(until - std::chrono::steady_clock::now(), 10ms));
  }
  return result;
}

void Containment::drop(std::optional<Cgroup>& cgroup, Duration limit) {
  if (!cgroup) return;
  const std::string path = cgroup->path();
  if (destroy_cgroup(path, limit)) {
    if (guardian_ != nullptr) guardian_->forget(path);
  } else {
    log::warning("process", "cannot empty the cgroup {}; something in it cannot be killed", path);
  }
  cgroup.reset();
}

void Containment::see_child_signal() {
  if (reap_adopted(not_to_touch())) {
    hidden_orphans_ = 0;
  } else if (++hidden_orphans_ >= kHiddenOrphans) {
    hidden_orphans_ = 0;
    reap_adopted_by_table(not_to_touch());
  }
  if (on_child_end_) on_child_end_();
}

}  // namespace elastrun::process
