// SPDX-License-Identifier: Apache-2.0
#include "runs/registry.hpp"

#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "files/draft.hpp"
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
#include <sys/stat.h>
#include <unistd.h>

namespace elastrun::runs {
namespace {

constexpr std::size_t kLongest = 1 << 20;  // of a file: 64 workers take 10 KiB

/// A directory of this user, which others can neither enter nor have put there: /tmp is
/// everybody's.
Result<UniqueFd> open_private(const std::string& place) {
  UniqueFd directory(::open(place.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory) return std::unexpected(errno_error(Code::Io, place, errno));
  struct stat info {};
  if (::fstat(directory.get(), &info) != 0) {
    return std::unexpected(errno_error(Code::Io, place, errno));
  }
  if (info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) {
    return fail(Code::Io, fmt::format("{} is not this user's alone (mode 0700)", place));
  }
  return directory;
}

Result<UniqueFd> make_private(const std::string& place) {
  if (::mkdir(place.c_str(), 0700) != 0 && errno != EEXIST) {
    return std::unexpected(errno_error(Code::Io, place, errno));
  }
  return open_private(place);
}

Status write_at(int directory, const std::string& name, std::string_view text) {
  const std::string draft_name = "." + name;
  ::unlinkat(directory, draft_name.c_str(), 0);
  files::Draft draft(directory, draft_name);
  int number = draft.open(0600);
  if (number != 0) return std::unexpected(errno_error(Code::Io, draft_name, number));
  number = draft.write(text);
  if (number == 0) number = draft.put_in_place(name);
  if (number == 0) return {};
  return std::unexpected(errno_error(Code::Io, name, number));
}

Result<std::string> read_at(int directory, const std::string& name) {
  const UniqueFd file(
      ::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file) {
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
  return fmt::format("{}-{}.json", entry.pid, entry.start_time);
}

void list_place(const std::string& place, Agents agents, std::vector<ListedRun>& found) {
  auto directory = open_private(place);
  if (!directory) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(place.c_str()), ::closedir);
  const auto here = process::own_pid_namespace();
  while (listing) {
    const dirent* const item = ::readdir(listing.get());
    if (item == nullptr) break;
    const std::string name = item->d_name;
    if (name.starts_with('.') || !name.ends_with(".json")) continue;
    const auto text = read_at(directory->get(), name);
    auto entry = text ? decode(*text) : Result<RunEntry>(std::unexpected(text.error()));
    if (!entry || entry->pid_namespace != here) continue;
    const bool alive = is_alive(*entry);
    if (!alive && (entry->agent_id.empty() || entry->workers.empty())) {
      ::unlinkat(directory->get(), name.c_str(), 0);
      continue;
    }
    if (alive != (agents == Agents::Alive)) continue;
    const std::string path = place + "/" + name;
    found.push_back({std::move(*entry), path});
  }
}

}  // namespace

bool is_place_named() {
  const char* chosen = std::getenv("ELASTRUN_RUNTIME_DIR");
  return chosen != nullptr && *chosen == '/';
}

std::vector<std::string> registry_places() {
  if (is_place_named()) return {std::getenv("ELASTRUN_RUNTIME_DIR")};
  std::vector<std::string> places;
  const auto add = [&places](std::string place) {
    if (std::ranges::find(places, place) == places.end()) places.push_back(std::move(place));
  };
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime == '/') add(std::string(runtime) + "/elastrun");
  add(fmt::format("/run/user/{}/elastrun", ::geteuid()));
  add(fmt::format("/tmp/elastrun-{}", ::geteuid()));
  return places;
}

Status identify(RunEntry& entry) {
  const auto self = process::read_process(::getpid());
  entry.pid_namespace = process::own_pid_namespace();
  if (!self || entry.pid_namespace == 0) return fail(Code::Io, "/proc tells nothing of us");
  entry.pid = self->pid;
  entry.start_time = self->start_time;
  return {};
}

Status Registration::write(const RunEntry& entry) {
  const std::string name = file_name(entry), text = encode(entry);
  std::string reasons;
  for (const std::string& place : places_) {
    const auto directory = make_private(place);
    const Status written = directory ? write_at(directory->get(), name, text)
                                     : Status(std::unexpected(directory.error()));
    if (written) {
      std::string path = place + "/" + name;
      if (path != path_) remove();
      path_ = std::move(path);
      return {};
    }
    reasons += (reasons.empty() ? "" : "; ") + written.error().text;
  }
  return fail(Code::Io, reasons);
}

void Registration::remove() {
  if (!path_.empty()) ::unlink(path_.c_str());
  path_.clear();
}

bool is_alive(const RunEntry& entry) {
  const auto process = process::read_process(entry.pid);
  if (process) return process->start_time == entry.start_time && !process->zombie();
  // It has gone, or /proc hides it (hidepid), or no file can be opened now. Who takes a run for
  // dead kills what it has left.
  return ::kill(entry.pid, 0) == 0;
}

std::vector<ListedRun> list_runs(const std::vector<std::string>& places, Agents agents) {
  std::vector<ListedRun> found;
  for (const std::string& place : places) list_place(place, agents, found);
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
