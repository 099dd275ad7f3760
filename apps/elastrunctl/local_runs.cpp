// SPDX-License-Identifier: Apache-2.0

#include "elastrunctl/local_runs.hpp"

#include "core/text.hpp"
#include "elastrunctl/command_line.hpp"
#include "process/process_table.hpp"
#include "rendezvous/membership/wording.hpp"
#include "runs/run_registry.hpp"
#include "spec/option_help.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <iterator>
#include <set>
#include <sys/stat.h>
#include <tuple>
#include <unistd.h>

namespace elastrun::ctl {
namespace {

constexpr std::size_t kPiece = 65536;
constexpr std::size_t kLongestPart = 1 << 20;  // longer ones are given in parts

/// Finds the offset of the last `lines` lines of a file. A last line without an end counts as one.
std::int64_t begin_of_last_lines(int file, std::int64_t size, int lines) {
  if (lines == 0) return size;
  std::array<char, kPiece> piece{};
  int ends = 0;
  for (std::int64_t stop = size; stop > 0;) {
    const auto start = std::max<std::int64_t>(stop - static_cast<std::int64_t>(kPiece), 0);
    // From the end, piece by piece: a log may have gigabytes, and its last lines are wanted.
    const auto got = ::pread(file, piece.data(), static_cast<std::size_t>(stop - start), start);
    if (got <= 0) return start;
    for (auto at = got - 1; at >= 0; --at) {
      // The end of the last line is not that of one before it.
      if (piece[static_cast<std::size_t>(at)] != '\n' || start + at == size - 1) continue;
      if (++ends == lines) return start + at + 1;
    }
    stop = start;
  }
  return 0;
}

}  // namespace

Result<LogTail> LogTail::open(const std::string& path, std::optional<int> lines) {
  // O_NONBLOCK: a FIFO would wait for its writer before it can be seen that it is one.
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0) {
    return std::unexpected(errno_error(Code::Io, "cannot read " + path, errno));
  }
  if (!S_ISREG(info.st_mode)) return fail(Code::Io, path + " is not a regular file");
  if (lines) ::lseek(file.get(), begin_of_last_lines(file.get(), info.st_size, *lines), SEEK_SET);
  return LogTail(std::move(file));
}

void LogTail::read(const Write& write) {
  std::array<char, kPiece> piece{};
  while (true) {
    const auto got = ::read(file_.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    const std::string_view text(piece.data(), static_cast<std::size_t>(got));
    if (!label_) {
      write(text);
      continue;
    }
    // Half a line waits for its end, or the label would come again in its middle.
    pending_ += text;
    give_lines(write);
  }
}

void LogTail::give_lines(const Write& write) {
  std::string out;
  std::size_t begin = 0;
  for (auto end = pending_.find('\n'); end != std::string::npos; end = pending_.find('\n', begin)) {
    out += *label_;
    out.append(pending_, begin, end + 1 - begin);
    begin = end + 1;
  }
  pending_.erase(0, begin);
  if (pending_.size() > kLongestPart) {
    out += *label_ + pending_ + "\n";
    pending_.clear();
  }
  if (!out.empty()) write(out);
}

void LogTail::finish(const Write& write) {
  read(write);
  if (!pending_.empty()) write(*label_ + pending_ + "\n");
  pending_.clear();
}

namespace {

using runs::ListedRun;
using runs::RunEntry;

/// Nodes of one job on one machine share both.
auto job_of(const RunEntry& run) {
  return std::tie(run.name, run.run_id);
}

bool are_one_job(const std::vector<ListedRun>& runs) {
  return std::ranges::all_of(
      runs, [&](const auto& run) { return job_of(run.entry) == job_of(runs.front().entry); });
}

/// "\"night\" (agent 4711), \"train\" (agent 4722)".
std::string names_of(const std::vector<ListedRun>& runs) {
  std::set<std::string> names;
  for (const auto& run : runs) {
    names.insert(fmt::format("\"{}\" (agent {})", shown(run.entry.name), run.entry.pid));
  }
  return join({names.begin(), names.end()}, ", ");
}

std::string age(WallTime since, WallTime now) {
  return format_duration(std::max<Duration>(now - since, Duration::zero()));
}

std::string overview(const std::vector<ListedRun>& runs, WallTime now) {
  std::vector<std::vector<std::string>> rows{
      {"JOB", "PHASE", "RESTARTS", "NODES", "WORKERS", "UP", "AGENT", "SCRIPT"}};
  for (const auto& [run, path] : runs) {
    // shown(): names and phases come from a file that others write, and a terminal would obey
    // the escapes in them.
    rows.push_back({shown(run.name), shown(run.phase),
                    fmt::format("{} of {}", run.max_restarts - run.restarts_left, run.max_restarts),
                    nodes_text(run.min_nodes, run.max_nodes), fmt::format("{}", run.workers.size()),
                    age(run.started, now), fmt::format("{}", run.pid), shown(run.entry_point)});
  }
  return table(rows);
}

std::string files_text(const RunEntry& run) {
  if (!run.keeps_output) return "  output goes to the terminal of elastrun, not to log files\n";
  if (run.run_directory.empty()) return "  log folder: not made yet\n";
  return fmt::format("  log folder: {}\n", shown(run.run_directory));
}

/// Names the workers that are stopped or in a debugger: their job waits for them.
std::string held_text(const RunEntry& run) {
  std::string text;
  for (const auto& worker : run.workers) {
    const auto process = process::read_process(worker.pid);
    // The pid may be another process's by now.
    if (!process || process->start_time != worker.start_time) continue;
    const auto by = process::held_by(worker.pid);
    if (!by.empty()) text += fmt::format("  rank {} is {}\n", worker.rank, by);
  }
  return text;
}

std::string details(const RunEntry& run, WallTime now) {
  std::string text = fmt::format(
      "job \"{}\": {} for {}, {}, up {}\n  {}, agent {}{}{}\n", shown(run.name), shown(run.phase),
      age(run.phase_since, now),
      rendezvous::restarts_text(run.attempt, run.restarts_left, run.max_restarts),
      age(run.started, now), shown(run.entry_point), run.pid,
      run.max_nodes > 1 ? fmt::format(", one of {} nodes", nodes_text(run.min_nodes, run.max_nodes))
                        : "",
      run.name == run.run_id ? "" : ", run id " + shown(run.run_id));
  text += files_text(run);
  if (!run.endpoint.empty()) {
    text += fmt::format("  all nodes: elastrunctl status {}\n", shown(run.endpoint));
  }
  if (run.workers.empty()) return text;
  std::vector<std::vector<std::string>> rows{{"RANK", "LOCAL RANK", "PID", "UP"}};
  for (const auto& worker : run.workers) {
    rows.push_back({fmt::format("{}", worker.rank), fmt::format("{}", worker.local_rank),
                    fmt::format("{}", worker.pid), age(run.group_started, now)});
  }
  return text + table(rows) + held_text(run);
}

}  // namespace

std::string nodes_text(std::int64_t least, std::int64_t most) {
  return least == most ? fmt::to_string(most) : fmt::format("{} to {}", least, most);
}

std::vector<ListedRun> runs_here() {
  const auto places = runs::registry_places();
  // Else "no job runs here" would be believed.
  if (const auto trouble = runs::trouble_of_places(places); !trouble.empty())
    report_error("runs may be missing: " + trouble, kExitDone);
  return runs::list_runs(places);
}

Result<std::vector<ListedRun>> runs_of(std::vector<ListedRun> all, const std::string& job) {
  using Meant = bool (*)(const RunEntry&, const std::string&);
  constexpr Meant kWays[] = {
      [](const RunEntry& run, const std::string& word) {
        return run.name == word || run.run_id == word;
      },
      [](const RunEntry& run, const std::string& word) { return fmt::to_string(run.pid) == word; },
      [](const RunEntry& run, const std::string& word) {
        return run.name.starts_with(word) || run.run_id.starts_with(word);
      }};
  if (all.empty() && job.empty()) {
    return fail(Code::Rendezvous, "no job of this user runs on this machine");
  }
  std::vector<ListedRun> meant;
  if (job.empty()) meant = all;  // not the one that has no name
  for (const auto is_meant : kWays) {
    // A whole name wins over one that begins so: "train" is not "train-2".
    if (!meant.empty()) break;
    std::ranges::copy_if(all, std::back_inserter(meant),
                         [&](const auto& run) { return is_meant(run.entry, job); });
  }
  if (meant.empty()) {
    const auto others =
        all.empty() ? "" : "\n  " + spec::wrapped("jobs here: " + names_of(all), 78, "  ");
    return fail(Code::Rendezvous,
                fmt::format("no job \"{}\" runs here; it may have ended{}", shown(job), others));
  }
  if (are_one_job(meant)) return meant;
  return fail(Code::Usage,
              (job.empty() ? "several jobs run here, name one or its agent: "
                           : fmt::format("\"{}\" means several jobs, name one or its agent: ",
                                         shown(job))) +
                  names_of(meant));
}

Error neither_here(const Error& here, const Error& there) {
  return {there.code, here.text + "\n  " + spec::wrapped(there.text, 78, "  ")};
}

std::string local_status_text(const std::vector<ListedRun>& runs, WallTime now) {
  if (runs.empty()) return "no job of this user runs on this machine\n";
  if (!are_one_job(runs)) return overview(runs, now);
  std::string text;
  for (const auto& run : runs) text += details(run.entry, now);
  return text;
}

std::string dead_runs_text(const std::vector<runs::DeadRun>& dead) {
  std::string text;
  for (const auto& one : dead) {
    text += fmt::format("job \"{}\": agent and guardian were killed, and these live on: {}\n",
                        shown(one.entry.name), process::names_of(one.left));
  }
  if (dead.empty()) return text;
  return text + "  elastrunctl clean kills them, and so does the next start of elastrun\n";
}

std::string local_status_json(const std::vector<ListedRun>& runs) {
  std::string list;
  for (const auto& run : runs) {
    list += (list.empty() ? "" : ",") + std::string(trim(runs::encode(run.entry)));
  }
  return "{\"runs\":[" + list + "]}\n";
}

int run_clean() {
  int code = kExitDone;
  for (const auto& run : runs::end_dead_runs(runs::registry_places(), process::kKillBound)) {
    const auto name = shown(run.entry.name);
    fmt::print("job \"{}\": killed {}\n", name, process::names_of(run.left));
    if (run.alive.empty()) continue;
    code = report_error(
        fmt::format("job \"{}\": cannot end {}", name, process::names_of(run.alive)), kExitFailed);
  }
  return code;
}

}  // namespace elastrun::ctl
