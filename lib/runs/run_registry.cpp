// SPDX-License-Identifier: Apache-2.0

#include "runs/run_registry.hpp"

#include "core/codec.hpp"
#include "core/file_io.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "files/whole_file.hpp"
#include "process/process_table.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <memory>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <unordered_map>
#include <unordered_set>

namespace elastrun::runs {
namespace {

using process::ProcessEntry;
using process::ProcessTable;

bool has_mark(pid_t pid, const std::string& agent_id) {
  // Each pair in environ ends with a NUL (proc(5)). With one before the first pair, too, a search
  // finds whole pairs alone, and not the value of another variable.
  std::string text(1, '\0');
  text += read_kernel_file(fmt::format("/proc/{}/environ", pid));
  using namespace std::string_literals;
  return text.contains("\0ELASTRUN_AGENT_ID="s + agent_id + "\0"s);
}

/// A table by session, so that thousands of runs are compared with it in no time. Borrows it.
class Sessions {
 public:
  explicit Sessions(const ProcessTable& table) {
    for (const ProcessEntry& one : table) {
      by_pid_.emplace(one.pid, &one);
      members_[one.session].push_back(&one);
    }
    // insert() says false at the second visit: a number that was given away while the table was
    // read may lead in a circle.
    for (pid_t pid = ::getpid(); own_.insert(pid).second;) {
      const auto found = by_pid_.find(pid);
      if (found == by_pid_.end()) break;
      pid = found->second->parent;
    }
  }

  /// Adds what a run has left, as DeadRun says.
  void look_into(DeadRun& dead) const {
    // Without it nothing proves whose processes they are.
    if (dead.entry.agent_id.empty()) return;
    for (const RunWorker& worker : dead.entry.workers) {
      for (const auto* const one : of(worker)) {
        if (is_own(*one) || process::any_thread_hangs(one->pid)) {
          dead.unsure = true;
        } else if (has_mark(one->pid, dead.entry.agent_id)) {
          dead.left.push_back(*one);
        }
      }
    }
  }

 private:
  /// The processes in that worker's session that are not older than it; none if another process
  /// leads the session of that number by now.
  std::vector<const ProcessEntry*> of(const RunWorker& worker) const {
    const auto leader = by_pid_.find(worker.pid);
    const auto session = members_.find(worker.pid);
    if (worker.pid <= 1 || worker.start_time == 0 || session == members_.end()) return {};
    if (leader != by_pid_.end() && leader->second->start_time != worker.start_time) return {};
    auto found = session->second;
    std::erase_if(found, [&](const auto* one) {
      return one->zombie() || one->start_time < worker.start_time;
    });
    return found;
  }

  /// This process, who has started it, or of its session: a shell of the run in which a user types
  /// now.
  bool is_own(const ProcessEntry& one) const {
    return one.session == own_session_ || own_.contains(one.pid);
  }

  std::unordered_map<pid_t, const ProcessEntry*> by_pid_;
  std::unordered_map<pid_t, std::vector<const ProcessEntry*>> members_;
  std::unordered_set<pid_t> own_;  // this process and its ancestors
  const pid_t own_session_ = ::getsid(0);
};

constexpr std::int64_t kFormat = 1;

bool is_hexadecimal(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

constexpr std::size_t kLongest = 1 << 20;  // of a file: 64 workers take 10 KiB
// O_NONBLOCK because a FIFO of such a name would hold up the open for ever (fifo(7)); O_NOFOLLOW
// because a link would lead out of the directory.
constexpr int kReading = O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC;

/// Why what is there cannot be the directory; empty: it can, others neither enter it nor have put
/// it there (/tmp is everybody's). Entries name processes that may be killed.
std::string trouble_of(const std::string& place, const struct stat& info) {
  if (info.st_uid != ::geteuid()) {
    return fmt::format("{} belongs to user {}: have it removed, or set ELASTRUN_RUNTIME_DIR", place,
                       info.st_uid);
  }
  const bool ours = S_ISDIR(info.st_mode) && (info.st_mode & 077) == 0;
  return ours ? "" : fmt::format("{} is not a directory of this user's alone (mode 0700)", place);
}

Result<UniqueFd> open_private(const std::string& place) {
  UniqueFd directory(::open(place.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const int number = errno;
  struct stat info {};
  const bool there =
      (directory ? ::fstat(directory.get(), &info) : ::lstat(place.c_str(), &info)) == 0;
  auto trouble = there ? trouble_of(place, info) : std::string();
  if (!trouble.empty()) return fail(Code::Usage, std::move(trouble));
  if (!directory) return std::unexpected(errno_error(Code::Io, place, number));
  return directory;
}

Result<UniqueFd> make_private(const std::string& place) {
  if (::mkdir(place.c_str(), 0700) != 0 && errno != EEXIST) {
    return std::unexpected(errno_error(Code::Io, place, errno));
  }
  return open_private(place);
}

/// The descriptor that is returned keeps a lock on the file, where the file system has locks: by
/// that, those see that we live who do not see our process.
Result<UniqueFd> write_at(int directory, const std::string& name, std::string_view text) {
  const std::string draft_name = "." + name;
  ::unlinkat(directory, draft_name.c_str(), 0);
  files::Draft draft(directory, draft_name);
  int number = draft.open(0600);
  if (number != 0) return std::unexpected(errno_error(Code::Io, draft_name, number));
  // The duplicate shares the lock, which lasts until the last of both is closed (flock(2)). It is
  // taken before the file has its name: no reader ever sees the entry unlocked.
  UniqueFd lock(::fcntl(draft.fd(), F_DUPFD_CLOEXEC, 0));
  if (lock) ::flock(lock.get(), LOCK_EX | LOCK_NB);
  number = draft.write(text);
  if (number == 0) number = draft.put_in_place(name);
  if (number == 0) return lock;
  return std::unexpected(errno_error(Code::Io, name, number));
}

Result<std::string> read_at(int directory, const std::string& name) {
  const UniqueFd file(::openat(directory, name.c_str(), kReading));
  if (!file) {
    // Closed: that run has ended since the directory was read.
    return std::unexpected(errno_error(errno == ENOENT ? Code::Closed : Code::Io, name, errno));
  }
  std::string text;
  std::array<char, 16384> piece{};
  while (text.size() <= kLongest) {
    const auto got = ::read(file.get(), piece.data(), piece.size());
    if (got < 0) return std::unexpected(errno_error(Code::Io, name, errno));
    if (got == 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
  return fail(Code::Protocol, fmt::format("{} is larger than 1 MiB", name));
}

std::string file_name(const RunEntry& entry) {
  return format_file_name(
      {entry.pid, entry.start_time, entry.pid_namespace, boot_prefix(entry.boot_id)});
}

std::string own_boot_id() {
  return std::string(trim(read_kernel_file("/proc/sys/kernel/random/boot_id")));
}

bool is_alive(pid_t pid, std::uint64_t start_time) {
  const auto process = process::read_process(pid);
  if (process) return process->start_time == start_time && !process->zombie();
  // It has gone, or /proc hides it (hidepid), or no file can be opened now. Who takes a run for
  // dead kills what it has left.
  return ::kill(pid, 0) == 0;
}

/// The entries of one directory. Bounded in what it reads: a directory that many containers or
/// nodes share is not to hold up who starts.
class Listing {
 public:
  Listing(const std::string& place, int directory) : place_(place), directory_(directory) {}

  void read(Agents agents, std::vector<ListedRun>& found) {
    const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(place_.c_str()), ::closedir);
    for (int names = 0; listing && names < kMostNames; ++names) {
      const dirent* const item = ::readdir(listing.get());
      if (item == nullptr) break;
      const std::string name = item->d_name;
      if (name.ends_with(".json")) consider(name, agents, found);
    }
  }

 private:
  void consider(const std::string& name, Agents agents, std::vector<ListedRun>& found) {
    const bool draft = name.starts_with('.');
    const auto told = parse_file_name(draft ? name.substr(1) : name);
    if (told && !is_from_here(*told)) return remove_if_gone(name, *told);
    const bool gone = told && !is_alive(told->pid, told->start_time);
    if (draft && gone) remove(name);
    if (!draft && (!told || gone || agents == Agents::Alive)) look_at(name, agents, found);
  }

  static constexpr int kMostNames = 20'000, kMostReads = 1000, kMostLocks = 500;

  bool is_from_here(const FileName& name) const {
    return name.pid_namespace == namespace_ && name.boot == boot_;
  }

  /// Of another container, of another machine by a shared directory, or of this one before it was
  /// started again. Who holds no lock has gone; but what it left in its container, of which we see
  /// nothing, is found by its entry when a run starts there.
  void remove_if_gone(const std::string& name, const FileName& told) {
    constexpr time_t kDay = 24 * 60 * 60;
    if (++locks_ > kMostLocks || namespace_ == 0 || boot_.empty()) return;
    const UniqueFd file(::openat(directory_, name.c_str(), kReading));
    struct stat info {};
    if (!file || ::fstat(file.get(), &info) != 0) return;
    const bool old = told.boot != boot_ || info.st_mtime < ::time(nullptr) - kDay;
    // Shared, so that two readers do not take each other for the agent, which holds it exclusively.
    if (old && ::flock(file.get(), LOCK_SH | LOCK_NB) == 0) remove(name);
  }

  void look_at(const std::string& name, Agents agents, std::vector<ListedRun>& found) {
    if (++reads_ > kMostReads) return;
    const auto text = read_at(directory_, name);
    auto entry = text ? decode(*text) : Result<RunEntry>(std::unexpected(text.error()));
    if (!entry || entry->pid_namespace != namespace_) return;
    const bool alive = runs::is_alive(*entry);
    if (!alive && (entry->agent_id.empty() || entry->workers.empty())) return remove(name);
    if (alive != (agents == Agents::Alive)) return;
    found.push_back({std::move(*entry), place_ + "/" + name});
  }

  void remove(const std::string& name) const { ::unlinkat(directory_, name.c_str(), 0); }

  const std::string& place_;
  const int directory_;
  const std::uint64_t namespace_ = process::own_pid_namespace();
  const std::string boot_ = boot_prefix(own_boot_id());
  int reads_ = 0, locks_ = 0;
};

}  // namespace

std::vector<DeadRun> list_dead_runs(const std::vector<std::string>& places) {
  std::vector<DeadRun> found;
  auto gone = list_runs(places, Agents::Gone);
  // Nearly every start ends here, and reads no table of all processes.
  if (gone.empty()) return found;
  const auto table = process::read_all_processes();
  const Sessions sessions(table);
  for (auto& run : gone) {
    DeadRun dead{std::move(run)};
    sessions.look_into(dead);
    if (!dead.left.empty()) {
      found.push_back(std::move(dead));
    } else if (!dead.unsure) {
      ::unlink(dead.path.c_str());
    }
  }
  return found;
}

std::vector<DeadRun> end_dead_runs(const std::vector<std::string>& places, Duration limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  auto dead = list_dead_runs(places);
  // All, before the first one is waited for: they end side by side within the limit.
  for (const DeadRun& run : dead) process::signal_each(run.left, SIGKILL);
  for (DeadRun& run : dead) {
    const Duration left = until - std::chrono::steady_clock::now();
    run.alive = process::kill_listed(run.left, std::max(left, Duration::zero()));
    // The file names the sessions to look into, so it stays while something may live in them.
    if (run.alive.empty() && !run.unsure) ::unlink(run.path.c_str());
  }
  return dead;
}

void members(Codec& codec, RunEntry& entry) {
  if (!codec.reads()) codec.put("format", kFormat);
  elastrun::members<RunEntry>(codec, entry);
}

std::string encode(const RunEntry& entry) {
  return json::serialize(to_json(entry, Codec::Texts::Whole)) + "\n";
}

Result<RunEntry> decode(std::string_view text) {
  const auto value = parse_json(text);
  if (!value) return std::unexpected(value.error());
  RunEntry entry;
  // What else is unsound is at its default, and hides no run.
  from_json(*value, entry, Codec::Texts::Whole);
  // Without these a process that got the number later would pass for the agent.
  if (entry.run_id.empty() || entry.pid <= 0 || entry.start_time == 0) {
    return fail(Code::Protocol, "not the entry of a run: run_id, pid or start_time is missing");
  }
  return entry;
}

std::string boot_prefix(std::string_view boot_id) {
  const auto size = std::ranges::find_if_not(boot_id, is_hexadecimal) - boot_id.begin();
  return std::string(boot_id.substr(0, static_cast<std::size_t>(size)));
}

std::string format_file_name(const FileName& name) {
  return fmt::format("{}-{}-{}-{}.json", name.pid, name.start_time, name.pid_namespace, name.boot);
}

std::optional<FileName> parse_file_name(std::string_view name) {
  const auto parts = split(name.substr(0, name.rfind('.')), '-');
  if (parts.size() != 4 || parts[3].empty() || boot_prefix(parts[3]) != parts[3]) return {};
  const auto number = [&](std::size_t part) { return parse_int(parts[part]).value_or(0); };
  if (number(0) <= 0 || number(1) <= 0 || number(2) <= 0) return {};
  FileName parsed{static_cast<pid_t>(number(0)), static_cast<std::uint64_t>(number(1)),
                  static_cast<std::uint64_t>(number(2)), parts[3]};
  // So that it has no sign, no blank, and no number that does not fit.
  return format_file_name(parsed) == name ? std::optional(std::move(parsed)) : std::nullopt;
}

bool is_place_named() {
  const char* chosen = std::getenv("ELASTRUN_RUNTIME_DIR");
  return chosen != nullptr && *chosen == '/';
}

bool are_places_near() {
  // A home or a scratch directory of a site is often on a network file system.
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const bool chosen = runtime != nullptr && *runtime == '/';
  return !is_place_named() && (!chosen || std::string_view(runtime).starts_with("/run/user/"));
}

std::vector<std::string> registry_places() {
  if (is_place_named()) return {std::getenv("ELASTRUN_RUNTIME_DIR")};
  std::vector<std::string> places;
  const auto add = [&places](std::string place) {
    if (std::ranges::find(places, place) == places.end()) places.push_back(std::move(place));
  };
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime == '/') add(std::string(runtime) + "/elastrun");
  // cron(8) and su(1) give no XDG_RUNTIME_DIR, and runs that were started with it have to be found
  // there.
  add(fmt::format("/run/user/{}/elastrun", ::geteuid()));
  add(fmt::format("/tmp/elastrun-{}", ::geteuid()));
  return places;
}

std::string trouble_of_places(const std::vector<std::string>& places) {
  std::string troubles;
  for (const auto& place : places) {
    const auto directory = open_private(place);
    if (directory || directory.error().code != Code::Usage) continue;
    troubles += (troubles.empty() ? "" : "; ") + directory.error().text;
  }
  return troubles;
}

Status identify(RunEntry& entry) {
  const auto self = process::read_process(::getpid());
  entry.pid_namespace = process::own_pid_namespace();
  if (!self || entry.pid_namespace == 0) return fail(Code::Io, "/proc tells nothing of us");
  entry.pid = self->pid;
  entry.start_time = self->start_time;
  entry.boot_id = own_boot_id();
  return {};
}

Status Registration::write(const RunEntry& entry) {
  const std::string name = file_name(entry), text = encode(entry);
  std::string reasons;
  for (const std::string& place : places_) {
    const auto directory = make_private(place);
    auto written = directory ? write_at(directory->get(), name, text)
                             : Result<UniqueFd>(std::unexpected(directory.error()));
    if (written) {
      std::string path = place + "/" + name;
      // After the new file is there: a run that moves to another place is found twice for a moment,
      // and never not at all.
      if (path != path_) remove();
      path_ = std::move(path);
      lock_ = std::move(*written);
      return {};
    }
    reasons += (reasons.empty() ? "" : "; ") + written.error().text;
  }
  return fail(Code::Io, reasons);
}

std::string Registration::preferred_path(const RunEntry& entry) const {
  return places_.front() + "/" + file_name(entry);
}

void Registration::remove() {
  if (!path_.empty()) ::unlink(path_.c_str());
  path_.clear();
  lock_.reset();
}

bool is_alive(const RunEntry& entry) {
  return is_alive(entry.pid, entry.start_time);
}

std::vector<ListedRun> list_runs(const std::vector<std::string>& places, Agents agents) {
  std::vector<ListedRun> found;
  for (const std::string& place : places) {
    if (const auto directory = open_private(place)) {
      Listing(place, directory->get()).read(agents, found);
    }
  }
  std::ranges::sort(
      found, {}, [](const ListedRun& run) { return std::pair(run.entry.started, run.entry.pid); });
  return found;
}

Result<RunEntry> read_run(const std::string& path) {
  const auto text = read_at(AT_FDCWD, path);
  if (!text) return std::unexpected(text.error());
  return decode(*text);
}

}  // namespace elastrun::runs
