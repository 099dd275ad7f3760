// SPDX-License-Identifier: Apache-2.0

#include "core/file_io.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "elastrunctl/command_line.hpp"
#include "local_runs.hpp"
#include "runs/run_registry.hpp"

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <fmt/format.h>
#include <list>
#include <map>
#include <poll.h>
#include <set>
#include <string>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace elastrun::ctl {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator next(directory, error), end; !error && next != end;
       next.increment(error)) {
    names.push_back(next->path().filename().string());
  }
  return names;
}

void write_out(std::string_view text) {
  // A full disk; a closed pipe has ended us already.
  if (write_all(STDOUT_FILENO, text) != 0) std::_Exit(kExitFailed);
}

/// The files of one attempt: attempt_N, or attempt_N.M where it was started again.
struct AttemptName {
  std::int64_t attempt = 0, start = 0;
  auto operator<=>(const AttemptName&) const = default;
};

/// Reads such a name; nothing for another one. Pure.
std::optional<AttemptName> parse_attempt(std::string_view name) {
  constexpr std::string_view kPrefix = "attempt_";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const auto dot = name.find('.');
  const auto attempt = parse_int(name.substr(0, dot));
  const auto start = dot == std::string_view::npos ? 0 : parse_int(name.substr(dot + 1));
  if (!attempt || !start) return std::nullopt;
  return AttemptName{*attempt, *start};
}

/// Shows what the workers of one run write, attempt after attempt, and ends with the run.
/// inotify(7) says when something has happened: the writers are on this machine, so it also does
/// where the files are on a network's file system.
class LogFollower {
 public:
  /// `several`: lines need the rank of their worker in front.
  LogFollower(runs::ListedRun run, const LogsOptions& options, bool several)
      : run_(std::move(run)),
        options_(options),
        several_(several),
        events_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)),
        agent_(static_cast<int>(::syscall(SYS_pidfd_open, run_.entry.pid, 0))) {}

  /// Fails with Io where the system refuses watches.
  Status watch() {
    if (!events_) return std::unexpected(errno_error(Code::Io, "inotify_init1", errno));
    // The agent replaces its entry by a rename, and removes it at the end.
    const std::string registry = run_.path.substr(0, run_.path.rfind('/'));
    if (::inotify_add_watch(events_.get(), registry.c_str(), IN_MOVED_TO | IN_DELETE) < 0) {
      return std::unexpected(errno_error(Code::Io, "cannot watch " + registry, errno));
    }
    scan();
    return {};
  }

  /// To be polled for reading: something happened, and the agent has ended.
  int events_fd() const { return events_.get(); }
  int agent_fd() const { return agent_.get(); }
  /// Takes the events and shows what is new. True once the run has ended and all of it was shown.
  bool advance() {
    // Asked first: what the run wrote before its end is there when it has ended.
    const bool over = take_events();
    scan();
    if (over) return true;
    show();
    return false;
  }

  /// Shows what is there, to the end of each file.
  void finish() {
    // Once more: a file that was made after the last look, by a worker that ended at once, is
    // there.
    scan();
    for (auto& [name, attempt] : attempts_) {
      for (auto& [path, tail] : attempt.tails) tail.finish(write_out);
    }
  }

 private:
  struct Attempt {
    std::map<std::string, LogTail> tails;  // by path
    bool complete = false;                 // another has followed: nothing more comes
  };

  /// Takes events; true if the run has ended: its entry is gone, or its process.
  bool take_events() {
    alignas(inotify_event) std::array<char, 16384> buffer{};
    // What the events say is not looked at: the queue may overflow (inotify(7)), and a scan of the
    // few folders finds the same.
    while (::read(events_.get(), buffer.data(), buffer.size()) > 0) {
    }
    if (auto entry = runs::read_run(run_.path)) {
      run_.entry = std::move(*entry);
    } else if (entry.error().code == Code::Closed) {
      return true;
    }
    return !runs::is_alive(run_.entry);
  }

  void scan() {
    const std::string& root = run_.entry.run_directory;
    if (root.empty()) return;
    add_watch(root);
    std::map<AttemptName, std::string> found;
    for (const std::string& name : names_in(root)) {
      if (const auto attempt = parse_attempt(name)) found[*attempt] = root + "/" + name;
    }
    // The attempt that runs now: earlier ones are over, and are files that anybody can read.
    if (!first_ && !found.empty()) first_ = found.rbegin()->first;
    for (const auto& [name, path] : found) {
      if (name < *first_) continue;
      if (name != *first_ && !attempts_.contains(name)) {
        show();  // the rest of the one before it
        fmt::print(stderr, "==> {} <==\n", path.substr(path.rfind('/') + 1));
      }
      if (attempts_[name].complete) continue;
      scan_attempt(name, path);
      // A new attempt begins when the workers of the one before have ended, so nothing more is
      // written there.
      attempts_[name].complete = name != found.rbegin()->first;
    }
  }

  void scan_attempt(const AttemptName& name, const std::string& path) {
    Attempt& attempt = attempts_[name];
    add_watch(path);
    const auto lines = name == *first_ ? options_.lines : std::nullopt;
    for (const std::string& rank : names_in(path)) {
      const auto local_rank = parse_int(rank);
      if (local_rank) scan_rank(attempt, path + "/" + rank, static_cast<int>(*local_rank), lines);
    }
  }

  void scan_rank(Attempt& attempt, const std::string& path, int local_rank,
                 std::optional<int> lines) {
    const int rank = rank_of(path, local_rank);
    if (options_.rank && rank != *options_.rank) return;
    add_watch(path);
    for (const char* name : {"/stdout.log", "/stderr.log"}) {
      auto tail = attempt.tails.find(path + name);
      if (tail == attempt.tails.end()) {
        auto opened = LogTail::open(path + name, lines);
        if (!opened) continue;  // not there yet, or not asked for
        tail = attempt.tails.emplace(path + name, std::move(*opened)).first;
      }
      if (several_) tail->second.label(fmt::format("[{}] ", rank));
    }
  }

  void add_watch(const std::string& directory) {
    // The watch comes before the folder is listed: a file that is made in between is found by one
    // of the two.
    if (watched_.contains(directory)) return;
    if (::inotify_add_watch(events_.get(), directory.c_str(), IN_CREATE | IN_MODIFY) >= 0) {
      watched_.insert(directory);
    }
  }

  int rank_of(const std::string& directory, int local_rank) const {
    int rank = local_rank;
    for (const auto& worker : run_.entry.workers) {
      if (worker.directory == directory) return worker.rank;
      // The entry may not tell of this attempt yet; ranks seldom change.
      if (worker.local_rank == local_rank) rank = worker.rank;
    }
    return rank;
  }

  void show() {
    for (auto& [name, attempt] : attempts_) {
      for (auto& [path, tail] : attempt.tails) {
        attempt.complete ? tail.finish(write_out) : tail.read(write_out);
      }
      if (attempt.complete) attempt.tails.clear();
    }
  }

  runs::ListedRun run_;
  const LogsOptions options_;
  const bool several_;
  UniqueFd events_, agent_;
  std::set<std::string> watched_;
  std::optional<AttemptName> first_;  // earlier ones are not shown
  std::map<AttemptName, Attempt> attempts_;
};

/// Why nothing can be shown; empty if something can, now or later.
std::string obstacle(const std::vector<runs::ListedRun>& chosen, const LogsOptions& options) {
  const auto& name = chosen.front().entry.name;
  if (std::ranges::none_of(chosen, [](const auto& run) { return run.entry.keeps_output; })) {
    return fmt::format(
        "the job \"{}\" keeps no log files: its output goes to where elastrun was started. Start "
        "it with --tee 3 (to both) or --redirects 3 (to files)",
        shown(name));
  }
  if (!options.rank) return {};
  std::vector<std::string> ranks;
  for (const auto& run : chosen) {
    for (const auto& worker : run.entry.workers) {
      if (worker.rank == *options.rank) return {};
      ranks.push_back(fmt::format("{}", worker.rank));
    }
  }
  if (ranks.empty()) return {};  // no worker runs at the moment: that one may come
  return fmt::format("the job \"{}\" has no rank {} on this machine; ranks here: {}", shown(name),
                     *options.rank, join(ranks, ", "));
}

/// Until all have ended.
void follow(std::list<LogFollower>& followers) {
  while (!followers.empty()) {
    for (auto one = followers.begin(); one != followers.end();) {
      if (one->advance()) {
        one->finish();
        one = followers.erase(one);
      } else {
        ++one;
      }
    }
    std::vector<pollfd> waits;
    for (const auto& one : followers) {
      waits.push_back({one.events_fd(), POLLIN, 0});
      waits.push_back({one.agent_fd(), POLLIN, 0});
    }
    // Without a limit: inotify tells of the log folder, of the entry and of its removal, and the
    // pidfd of an agent that was killed and removed nothing.
    if (!waits.empty()) ::poll(waits.data(), waits.size(), -1);
  }
}

}  // namespace

int run_logs(const LogsOptions& options) {
  auto chosen = runs_of(runs_here(), options.job);
  if (!chosen) return report_error(chosen.error().text, kExitFailed);
  if (const auto why = obstacle(*chosen, options); !why.empty())
    return report_error(why, kExitFailed);
  std::size_t workers = 0;
  for (const auto& run : *chosen) workers += run.entry.workers.size();
  std::list<LogFollower> followers;
  for (auto& run : *chosen) {
    followers.emplace_back(std::move(run), options, !options.rank && workers != 1);
    if (const auto watched = followers.back().watch(); !watched) {
      return report_error(watched.error().text, kExitFailed);
    }
  }
  if (options.follow) {
    follow(followers);
  } else {
    for (auto& one : followers) one.finish();
  }
  return kExitDone;
}

}  // namespace elastrun::ctl
