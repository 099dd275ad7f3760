// SPDX-License-Identifier: Apache-2.0

#include "logs/layout.hpp"

#include "core/file_io.hpp"
#include "core/log.hpp"
#include "core/spdlog.hpp"
#include "core/text.hpp"
#include "files/whole_file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>
#include <utility>

namespace elastrun::logs {

using spdlog::details::log_msg;
using spdlog::details::log_msg_buffer;
using spdlog::details::null_mutex;
using spdlog::sinks::rotating_file_sink_st;

/// Used on the loop, but for what belongs to the thread.
class AgentLog::Sink final : public spdlog::sinks::base_sink<null_mutex> {
 public:
  Sink(files::BlockingCalls& calls, const std::string& path)
      : calls_(calls), log_(std::make_shared<Log>(path)) {
    set_level(spdlog::level::info);
  }

 private:
  struct Log {
    const std::string path;
    // The thread's; the file is opened by the first line.
    std::unique_ptr<spdlog::formatter> formatter = log::make_formatter();
    std::unique_ptr<rotating_file_sink_st> file{};
    // The loop's; answers may come after the sink has gone.
    int waiting = 0;
    std::uint64_t lost = 0;
    bool broken = false;
  };

  void sink_it_(const log_msg& message) override {
    if (log_->broken) return;
    // A file system that stands still must not let the agent's memory grow with every line.
    if (log_->waiting >= kMostWaiting) {
      log_->lost += 1;
      return;
    }
    if (log_->lost > 0) {
      const auto text = fmt::format("{} lines are missing here: the file did not take them in time",
                                    std::exchange(log_->lost, 0));
      enqueue(log_msg(message.logger_name, spdlog::level::warn, text));
    }
    enqueue(message);
  }
  void flush_() override {}

  void enqueue(const log_msg& message) {
    log_->waiting += 1;
    // A copy, since a log_msg only points to a text that ends with this call.
    calls_.enqueue({log_, &log_->path},
                   [log = log_, line = log_msg_buffer(message)]() -> files::BlockingCalls::Outcome {
                     return {[log, trouble = put(*log, line)] {
                               log->waiting -= 1;
                               if (trouble.empty() || std::exchange(log->broken, true)) return;
                               log::warning("logs", "The agent's log ends: {}", trouble);
                             },
                             false};
                   });
  }

  /// On the thread. Empty, or why it did not work.
  static std::string put(Log& log, const log_msg& line) {
    // spdlog throws where a file cannot be opened, and nothing catches that on this thread.
    try {
      if (!log.file) {
        log.file = std::make_unique<rotating_file_sink_st>(log.path, kSize, kOlderFiles);
        log.file->set_formatter(std::move(log.formatter));
      }
      log.file->log(line);
      // After each line: spdlog writes through a buffer of stdio, which an agent that is killed
      // would take with it.
      log.file->flush();
      return {};
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  files::BlockingCalls& calls_;
  const std::shared_ptr<Log> log_;
};

AgentLog::AgentLog(files::BlockingCalls& calls, const std::string& path)
    : sink_(std::make_shared<Sink>(calls, path)) {
  log::add_sink(sink_);
}

AgentLog::~AgentLog() {
  log::remove_sink(sink_);
}

namespace {

// 36^8 names: runs that begin at the same moment do not meet.
constexpr std::size_t kRandomLetters = 8;

Error cannot_make(const std::string& path, int number) {
  Error error = errno_error(Code::Io, fmt::format("cannot make the directory {}", path), number);
  error.text += "; choose another place with --log-dir";
  return error;
}

/// mkdir(2); an existing directory is as good, unless it must be `fresh`.
int make_directory(const std::string& path, mode_t mode, bool fresh = false) {
  if (::mkdir(path.c_str(), mode) == 0) return 0;
  const int number = errno;
  // A private directory that is there already may be another user's, who would read what is put
  // there, or exchange it.
  if (fresh || number != EEXIST) return number;
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return errno;
  return S_ISDIR(info.st_mode) ? 0 : ENOTDIR;
}

/// A new private directory "PREFIXxxxxxxxx".
Result<std::string> make_private(const std::string& prefix,
                                 const std::function<void(const std::string&)>& announce = {}) {
  for (int attempt = 0;; ++attempt) {
    std::string path = prefix + random_text(kRandomLetters);
    // Before it is made: one that is killed in between leaves a name that can be tidied up, and not
    // a directory that is known to no process.
    if (announce) announce(path);
    const int number = make_directory(path, 0700, true);
    if (number == 0) return path;
    // 36^8 names: several hits in a row mean something else than bad luck.
    if (number != EEXIST || attempt == 10) return std::unexpected(cannot_make(path, number));
  }
}

constexpr const char* kMemory = "/dev/shm";
// A container has 64 MiB, which the workers of a DataLoader fill: then the error file that says so
// could not be written. Other machines have half of their memory there.
constexpr std::uint64_t kRoomInMemory = 256 << 20;

bool is_in_memory(const char* path) {
  struct statfs info {};
  return ::statfs(path, &info) == 0 && info.f_type == TMPFS_MAGIC &&
         info.f_bavail * static_cast<std::uint64_t>(info.f_bsize) >= kRoomInMemory &&
         // /dev/shm may be mounted read-only, or for root alone, in a container.
         ::access(path, W_OK | X_OK) == 0;
}

/// Checks the file systems that people use for temporary places. A place that does not exist
/// passes: another one is taken then.
bool is_on_this_machine(const std::string& path) {
  constexpr std::array<std::uint32_t, 8> kLocal = {
      TMPFS_MAGIC,           EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC,
      OVERLAYFS_SUPER_MAGIC, F2FS_SUPER_MAGIC, RAMFS_MAGIC,     0x2FC12FC1};  // the last one: ZFS
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) return true;
  return std::ranges::find(kLocal, static_cast<std::uint32_t>(info.f_type)) != kLocal.end();
}

/// Ours may be empty, or repeat what was said; what a worker has put there is its own affair.
bool explains_something(const std::filesystem::directory_entry& file) {
  constexpr std::array<std::string_view, 6> kOurs = {"agent.log",   "agent.1.log",
                                                     "agent.2.log", "journal.jsonl",
                                                     "report.json", "checkpoint_steps.json"};
  constexpr std::array<std::string_view, 5> kLogs = {"stdout.log", "stderr.log", "error.json",
                                                     "filtered_stdout.log", "filtered_stderr.log"};
  std::error_code error;
  if (!file.is_regular_file(error)) return false;
  const auto name = file.path().filename().native();
  if (std::ranges::find(kLogs, name) != kLogs.end()) return file.file_size(error) > 0 && !error;
  return std::ranges::none_of(kOurs, [&](auto ours) { return name.starts_with(ours); });
}

}  // namespace

Layout::Layout(Kind kind, std::string base, std::string run_id)
    : kind_(kind), base_(std::move(base)), run_id_(std::move(run_id)) {}

Result<Layout> Layout::plan(std::string log_dir, std::string run_id, Expected expected) {
  std::string name = file_name_of(run_id);
  std::string base = log_dir.empty() ? log_dir : absolute_path(log_dir);
  if (base.empty() || base == "/dev/null") {
    Layout layout(base.empty() ? Kind::Temporary : Kind::Null, {}, std::move(name));
    layout.expected_ = expected;
    const auto is_there = [](const auto& place) { return ::access(place.c_str(), F_OK) == 0; };
    const auto places = base.empty() ? layout.places() : socket_places();
    const auto place = std::ranges::find_if(places, is_there);
    layout.local_ = place == places.end() || is_on_this_machine(*place);
    return layout;
  }
  if (auto allowed = files::check_links(base); !allowed) {
    return std::unexpected(allowed.error().context("--log-dir"));
  }
  struct stat info {};
  if (::stat(base.c_str(), &info) == 0) {
    if (!S_ISDIR(info.st_mode)) {
      return fail(Code::Usage, fmt::format("log_dir: {} is a file", log_dir));
    }
    if (::access(base.c_str(), W_OK | X_OK) != 0) {
      return std::unexpected(
          errno_error(Code::Usage, fmt::format("cannot write to --log-dir {}", log_dir), errno));
    }
  } else if (errno != ENOENT) {
    const int number = errno;
    return std::unexpected(
        errno_error(Code::Usage, fmt::format("cannot use --log-dir {}", log_dir), number));
  }
  return Layout(Kind::Given, std::move(base), std::move(name));
}

Status Layout::make_run() {
  if (kind_ == Kind::Null || !run_.empty()) return {};
  std::string parent = base_;
  if (kind_ == Kind::Temporary) {
    auto root = make_temporary_root();
    if (!root) return std::unexpected(root.error());
    parent = temporary_root_ = *root;
  } else if (std::error_code error; !std::filesystem::create_directories(base_, error) && error) {
    // Of a link to what is not there mkdir(2) says that it exists.
    const bool dangles = error == std::errc::file_exists;
    return std::unexpected(cannot_make(base_, dangles ? ENOENT : error.value()));
  }
  auto run = make_private(parent + "/" + run_id_ + "_");
  if (!run) return std::unexpected(run.error());
  run_ = *run;
  return {};
}

std::vector<std::string> Layout::places() const {
  const bool in_memory = expected_ == Expected::ErrorFiles && is_in_memory(kMemory);
  return temporary_places(in_memory ? kMemory : "");
}

/// In the first place that can be used. One that the user has named and that cannot be is told.
Result<std::string> Layout::make_temporary_root() {
  std::optional<Error> first;
  for (const auto& place : places()) {
    auto root = make_private((place == "/" ? "" : place) + "/elastrun_", announce_);
    if (root) {
      if (first) remark_ = fmt::format("{}; files are in {}", first->text, *root);
      return root;
    }
    if (!first) first = root.error();
  }
  return std::unexpected(*first);
}

void Layout::say_remark() {
  if (!remark_.empty()) log::warning("logs", "{}", std::exchange(remark_, {}));
}

Result<std::string> Layout::make_attempt(int restart_count) {
  if (kind_ == Kind::Null) return std::string();
  std::string name = fmt::format("/attempt_{}", restart_count);
  const int start = starts_[restart_count]++;
  // The workers may start again without a restart that counts, when nodes come or go: the logs of
  // the earlier start stay.
  if (start > 0) name += fmt::format(".{}", start);
  int number = ENOENT;
  for (int tries = 0; tries < 2 && number == ENOENT; ++tries) {
    // ENOENT: the whole run has been removed meanwhile, say by a service that tidies up /tmp. A new
    // one is made, once.
    if (tries > 0) run_.clear();
    if (auto made = make_run(); !made) return std::unexpected(made.error());
    number = make_directory(run_ + name, 0777);
  }
  if (number != 0) return std::unexpected(cannot_make(run_ + name, number));
  return run_ + name;
}

Result<std::string> Layout::make_rank(const std::string& attempt, int local_rank) const {
  if (kind_ == Kind::Null) return std::string();
  std::string path = fmt::format("{}/{}", attempt, local_rank);
  const int number = make_directory(path, 0777);
  if (number != 0) return std::unexpected(cannot_make(path, number));
  return path;
}

std::string Layout::in_run(std::string_view name) const {
  return run_.empty() ? run_ : fmt::format("{}/{}", run_, name);
}

std::string error_file(const std::string& rank_directory) {
  return rank_directory.empty() ? rank_directory : rank_directory + "/error.json";
}

std::string file_name_of(std::string_view run_id) {
  constexpr std::size_t kLongest = 200;  // NAME_MAX is 255, and a random ending follows
  std::string name(cut(run_id, kLongest));
  for (char& c : name) {
    // A slash would lead elsewhere, and control characters do harm in a terminal that lists them.
    if (c == '/' || static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '_';
  }
  return name;
}

bool holds_something(const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (fs::recursive_directory_iterator next(directory, error), end; !error && next != end;
       next.increment(error)) {
    if (explains_something(*next)) return true;
  }
  return error && error != std::errc::no_such_file_or_directory;  // what cannot be seen may do so
}

Fate settle(const std::string& temporary_root, bool keep) {
  if (temporary_root.empty()) return Fate::Removed;
  if (keep && holds_something(temporary_root)) return Fate::Kept;
  std::error_code ignored;  // another process may tidy up the same place
  std::filesystem::remove_all(temporary_root, ignored);
  return ::access(temporary_root.c_str(), F_OK) == 0 ? Fate::Stays : Fate::Removed;
}

}  // namespace elastrun::logs
