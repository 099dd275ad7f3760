// SPDX-License-Identifier: Apache-2.0

#include "elastrunctl/goodput_files.hpp"

#include "core/host.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "export/record_line.hpp"
#include "goodput/compat/goodput_calculator.hpp"
#include "goodput/journals/journal_books.hpp"
#include "runs/run_registry.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <deque>
#include <ext/stdio_filebuf.h>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <istream>
#include <iterator>
#include <limits>
#include <set>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace elastrun::ctl {
Result<GoodputAnswer> answer_of(const GoodputInput& input, bool compatible) {
  const auto& entries = input.measurements.entries();
  if (compatible && !input.measured && entries.empty()) {
    return fail(
        Code::Usage,
        "--compatible needs a log of ml-goodput-measurement, or a journal of workers with a "
        "recorder; this is none");
  }
  const auto& journal = input.journal;
  GoodputAnswer answer{.job = journal.run_id(),
                       .name = input.name,
                       .history = journal.history(),
                       .first = journal.first_wall(),
                       .other_jobs = input.other_jobs + journal.other_jobs(),
                       .misplaced = journal.misplaced(),
                       .lost = input.lost + journal.lost()};
  double until = 0;
  if (input.measured) {
    auto books = goodput::keep_books(input.measurements);
    if (!books) {
      return fail(Code::Usage, "the log has no job_start_time, so nothing is known of the job");
    }
    answer.job = answer.name = input.job;
    answer.summary = books->summary;
    answer.history = std::move(books->history);
    answer.first = WallTime() + from_seconds(books->first);
    answer.misplaced += books->misplaced;
    answer.duplicates = books->duplicates;
    until = books->last;
  } else if (const auto summary = journal.summary()) {
    answer.summary = *summary;
    for (const auto& entry : entries) until = std::max(until, entry.time);
  } else {
    return fail(Code::Usage, "no job starts in what was given: no line with job.started");
  }
  if (!compatible) return answer;
  // All of the log, whenever it got what.
  constexpr double kEver = std::numeric_limits<double>::infinity();
  auto job = goodput::GoodputCalculator(input.measurements).job(until, {}, kEver);
  if (!job) return std::unexpected(job.error().context("ml-goodput-measurement's numbers"));
  answer.compatible = std::move(*job);
  return answer;
}

namespace {

/// Lines of a journal are far below; a longer line is not a record.
constexpr std::size_t kLongestLine = 1 << 20;
// Bytes that are read at once, of one file and of each of many, and that may wait in a pipe.
constexpr int kAtOnce = 256 << 10, kOfMany = 8 << 10, kPipe = 1 << 20;

double number_or(const json::value& object, std::string_view name, double otherwise) {
  const auto* value = find_member(object, name);
  return value != nullptr && value->is_number() ? value->to_number<double>() : otherwise;
}

/// The lines of a file, which is opened with the first one; "-" is standard input.
class Lines {
 public:
  explicit Lines(std::string path, int at_once = kAtOnce)
      : path_(std::move(path)), at_once_(at_once) {}

  /// False: the end, or it failed().
  bool next(std::string& line) {
    if (held_) {
      line = *std::exchange(held_, {});
      return true;
    }
    if (!stream_) open();
    return *stream_ && std::getline(*stream_, line);
  }
  /// Is the next one again.
  void hold(std::string line) { held_ = std::move(line); }
  /// Io: it cannot be opened, or not be read to its end. The end of a file sets fail(), too.
  Status status() const {
    if (!stream_ || (error_ == 0 && !stream_->bad())) return {};
    if (error_ == 0) return fail(Code::Io, fmt::format("cannot read {} to its end", path_));
    return std::unexpected(errno_error(Code::Io, fmt::format("cannot read {}", path_), error_));
  }

 private:
  void open() {
    UniqueFd file(path_ == "-" ? ::dup(STDIN_FILENO) : ::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    error_ = file ? 0 : errno;
    ::fcntl(file.get(), F_SETPIPE_SZ, kPipe);  // fails on other files
    buffer_.emplace(file.release(), std::ios::in | std::ios::binary, at_once_);
    stream_.emplace(&*buffer_);
  }

  const std::string path_;
  const int at_once_;
  int error_ = 0;
  std::optional<__gnu_cxx::stdio_filebuf<char>> buffer_;
  std::optional<std::istream> stream_;
  std::optional<std::string> held_;
};

/// What the first lines of a file tell.
struct Beginning {
  double time = std::numeric_limits<double>::infinity();  // of its first record
  std::string job;                                        // its run id or job name
};

Beginning beginning_of(const std::string& path) {
  constexpr int kTorn = 3;  // lines that may be torn
  if (path == "-") return {};
  Lines file(path, kOfMany);
  std::string line;
  for (int i = 0; i < kTorn && file.next(line); ++i) {
    const auto value = line.size() > kLongestLine ? fail(Code::Protocol, "") : parse_json(line);
    if (!value) continue;
    const auto* attributes = find_member(*value, "attributes");
    const auto* payload = find_member(*value, "payload");
    const auto job = attributes != nullptr
                         ? member_text_or(*attributes, "run_id", "")
                         : member_text_or(payload ? *payload : *value, "job_name", "");
    return {number_or(*value, "time", number_or(*value, "log_time", 0)), job};
  }
  return {};
}

/// Each file once.
std::vector<std::string> different_files(const std::vector<std::string>& paths) {
  std::set<std::pair<dev_t, ino_t>> seen;
  std::vector<std::string> all;
  for (const auto& path : paths) {
    struct stat file {};
    // By device and inode: "runs/*" and a link name one file twice, and its records would count
    // twice.
    const bool known = path != "-" && ::stat(path.c_str(), &file) == 0;
    if (known && !seen.emplace(file.st_dev, file.st_ino).second && S_ISREG(file.st_mode)) continue;
    all.push_back(path);
  }
  return all;
}

Status read_one(GoodputReader& reader, const std::string& path) {
  Lines lines(path);
  reader.begin_file();
  for (std::string line; lines.next(line);) {
    if (auto status = reader.take(line); !status) return status;
  }
  return lines.status();
}

goodput::JournalOutline outline_of(const std::string& path) {
  goodput::JournalOutline outline;
  if (path == "-") return outline;  // what comes through a pipe comes once
  Lines lines(path);
  telemetry::Record record;
  for (std::string line; lines.next(line);) {
    if (exporter::read_plain_record(line, record)) {
      outline.take(record);
    } else if (goodput::JournalOutline::concerns(line)) {
      if (const auto read = exporter::from_json_line(line)) outline.take(*read);
    }
  }
  return outline;
}

/// Lets `reader` take several journals of one submission as one.
Status read_agents(GoodputReader& reader, const std::vector<std::string>& all,
                   const std::vector<goodput::JournalOutline>& outlines) {
  using Verdict = goodput::AgentJournals::Verdict;
  goodput::AgentJournals agents(outlines);
  std::deque<Lines> journals;
  for (const auto& path : all) journals.emplace_back(path, kOfMany);
  std::vector<goodput::ClockSteps> steps(all.size());
  for (std::size_t i = 0; i < agents.stretches().size(); ++i) {
    const auto journal = agents.stretches()[i].journal;
    bool over = false;
    reader.before_record = [&](telemetry::Record& record) {
      const auto stamp = record.stamp;
      const auto verdict = agents.take(i, record);
      over = verdict == Verdict::Over;
      if (!over) steps[journal].take(record, stamp);
      return verdict == Verdict::Taken;
    };
    for (std::string line; !over && journals[journal].next(line);) {
      if (auto status = reader.take(line); !status) return status;
      // The line that ended this stretch is the first of a later one of the same journal.
      if (over) journals[journal].hold(std::move(line));
    }
    if (auto status = journals[journal].status(); !status) return status;
  }
  // It refers to variables of this function.
  reader.before_record = {};
  for (const auto& one : steps) reader.input.clocks.add(one);
  reader.input.agents = std::max(reader.input.agents, all.size());
  return {};
}

/// Whether such a process is an agent's, which may be another user's: then no registry tells.
bool is_agent(std::int64_t pid) {
  const auto runs = runs::list_runs(runs::registry_places());
  const auto is_its = [pid](const runs::ListedRun& run) { return run.entry.pid == pid; };
  if (std::ranges::any_of(runs, is_its)) return true;
  std::string words;
  std::getline(std::ifstream(fmt::format("/proc/{}/cmdline", pid)), words);
  return words.contains("elastrun");
}

}  // namespace

Status GoodputReader::take(std::string_view line) {
  if (line.empty()) return {};
  const bool fits = line.size() <= kLongestLine;
  // Nearly all lines are of these forms, and a parser that makes a tree of each takes several times
  // as long.
  if (fits && exporter::read_plain_record(line, plain_)) return take_record(plain_);
  const auto step = fits && !on_entry ? exporter::read_plain_step(line) : std::nullopt;
  if (step) {
    return count_entry(step->job, [&] {
      return input.measurements.add_step(step->step, step->time, step->log_time);
    });
  }
  double log_time = 0;
  if (fits && exporter::read_plain_entry(line, entry_, log_time)) {
    return take_entry(entry_, log_time);
  }
  const auto value = fits ? parse_json(line) : fail(Code::Protocol, "");
  const auto* payload = value ? find_member(*value, "payload") : nullptr;
  if (payload != nullptr && !payload->is_object()) {
    // No entry has told yet of which job the log is.
    const bool first = input.job.empty();
    ++(first ? input.skipped : input.other_jobs);
    input.measured = input.measured || first;
    return both();
  }
  if (payload != nullptr || (value && find_member(*value, "job_name") != nullptr)) {
    const auto& entry = payload != nullptr ? *payload : *value;
    return take_entry(goodput::members_of(entry.get_object()),
                      number_or(*value, "log_time", std::nan("")));
  }
  auto record = fits ? exporter::from_json_line(line) : fail(Code::Protocol, "too long");
  if (record) return take_record(*record);
  ++input.skipped;
  return {};
}

Status GoodputReader::take_record(telemetry::Record& record) {
  if (record.name == "job.started") {
    logged_ = record.scope == "elastrun.agent" && record.text("source") == kLogSource;
    if (logged_) return {};
  }
  if (logged_) {
    const bool left_out = record.scope == goodput::kRecorderScope && record.name == "left_out";
    const auto lines = left_out ? goodput::count_in(record.attributes, "count") : 0;
    input.skipped += lines;
    if (lines > 0) return {};
    const auto* at = record.find("log_time");
    const auto log_time = at == nullptr ? std::nullopt : telemetry::as_real(*at);
    return take_entry(record.attributes, log_time.value_or(std::nan("")));
  }
  if (record.name == "job.started") note_writer(record);
  if (before_record && !before_record(record)) return {};
  if (lacks_start(record)) begin_at(record);
  if (!before_record) input.clocks.take(record);
  add(record);
  return both();
}

void GoodputReader::note_writer(const telemetry::Record& record) {
  const auto* host = std::get_if<std::string>(record.find("host"));
  const auto* pid = std::get_if<std::int64_t>(record.find("pid"));
  if (host != nullptr && pid != nullptr && *host == host_name()) input.pids.insert(*pid);
}

/// Of a journal whose first line is torn, the job began with what comes first.
bool GoodputReader::lacks_start(const telemetry::Record& record) {
  const bool starts = record.name == "job.started";
  const bool lacks = !begun_ && !starts && input.skipped > 0 && record.scope == "elastrun.agent";
  begun_ = begun_ || starts || lacks;
  return lacks;
}

void GoodputReader::begin_at(const telemetry::Record& record) {
  telemetry::Record start;
  start.stamp = record.stamp;
  start.scope = record.scope;
  start.name = "job.started";
  // Of several agents.
  if (before_record) start.attributes.emplace_back("max_nodes", std::int64_t{2});
  add(start);
  // It is not a line of the file.
  --input.records;
}

void GoodputReader::add(const telemetry::Record& record) {
  journal_ = true;
  ++input.records;
  input.last_wall = record.stamp.wall;
  if (record.name == "job.started" && input.name.empty()) {
    const auto* name = record.find("job_name");
    if (name == nullptr) name = record.find("run_id");
    const auto* text = std::get_if<std::string>(name);
    if (text != nullptr) input.name = *text;
  }
  input.journal.take(record);
  // What a recorder has told the agent, for --compatible.
  if (record.scope == goodput::kRecorderScope) (void)input.measurements.add(record.attributes);
  if (on_record) on_record(record);
}

Status GoodputReader::take_entry(goodput::Members entry, double log_time) {
  const auto* name = std::get_if<std::string>(goodput::find_in(entry, "job_name"));
  bool sound = true;
  auto status = count_entry(name == nullptr ? std::string_view() : std::string_view(*name), [&] {
    input.lost += goodput::count_in(entry, "lost_entries");
    return sound = input.measurements.add(entry, log_time).has_value();
  });
  if (sound && on_entry) on_entry(entry, log_time);
  return status;
}

/// `add` is called for one of this job, and is false if it is not sound.
Status GoodputReader::count_entry(std::string_view job, const auto& add) {
  // The first one decides which job this account is of.
  if (input.job.empty()) input.job = job;
  const bool its = job == input.job;
  ++(!its ? input.other_jobs : add() ? input.records : input.skipped);
  input.measured = input.measured || its;
  return both();
}

Status GoodputReader::both() const {
  if (!journal_ || !input.measured) return {};
  return fail(Code::Usage,
              "a journal of elastrun and a log of ml-goodput-measurement came together; "
              "report each by itself");
}

Result<std::string> journal_at(const std::string& path) {
  constexpr std::string_view kJournal = "journal.jsonl";
  namespace fs = std::filesystem;
  std::error_code none;
  if (!fs::is_directory(path, none)) return path;
  if (const auto journal = fs::path(path) / kJournal; fs::exists(journal, none)) return journal;
  std::vector<std::string> runs;
  for (fs::directory_iterator it(path, none), end; it != end; it.increment(none)) {
    if (fs::exists(it->path() / kJournal, none)) runs.push_back(it->path());
  }
  if (runs.size() == 1) return runs.front() + "/" + std::string(kJournal);
  std::ranges::sort(runs);
  return fail(Code::Usage, runs.empty() ? fmt::format("there is no journal.jsonl in {}, nor in a "
                                                      "directory of it",
                                                      printable(path))
                                        : fmt::format("{} holds {} runs; name one or more of {}",
                                                      printable(path), runs.size(),
                                                      printable(join(runs, ", "))));
}

Status read_into(GoodputReader& reader, std::vector<std::string> paths) {
  for (auto& path : paths) {
    auto journal = journal_at(path);
    if (!journal) return std::unexpected(journal.error());
    path = std::move(*journal);
  }
  // One alone may be a pipe, whose first line can be read once.
  // Stable, so that files whose first lines do not say stay in the order in which they were given.
  if (paths.size() > 1) {
    std::ranges::stable_sort(paths, {}, [](const auto& path) { return beginning_of(path).time; });
  }
  const auto all = different_files(paths);
  std::vector<goodput::JournalOutline> outlines(all.size());
  // One alone is read once, and may be a pipe.
  for (std::size_t i = 0; all.size() > 1 && i < all.size(); ++i) outlines[i] = outline_of(all[i]);
  for (const auto& members : goodput::submissions_of(outlines)) {
    if (members.size() > 1) {
      std::vector<std::string> files;
      std::vector<goodput::JournalOutline> theirs;
      for (const auto index : members) {
        files.push_back(all[index]);
        theirs.push_back(outlines[index]);
      }
      if (auto status = read_agents(reader, files, theirs); !status) return status;
      continue;
    }
    if (auto status = read_one(reader, all[members.front()]); !status) return status;
  }
  if (std::ranges::none_of(reader.input.pids, is_agent)) reader.input.journal.close();
  return {};
}

Result<std::vector<std::vector<std::string>>> files_by_job(const std::vector<std::string>& paths) {
  std::vector<std::vector<std::string>> jobs;
  std::vector<std::string> names;
  for (const auto& path : paths) {
    auto journal = journal_at(path);
    if (!journal) return std::unexpected(journal.error());
    const auto name = paths.size() > 1 ? beginning_of(*journal).job : std::string();
    const auto is_it = [&](const std::string& known) { return known == name || known.empty(); };
    auto place = std::ranges::find_if(names, is_it);
    if (place == names.end() && name.empty() && !names.empty()) place = std::prev(names.end());
    if (place == names.end()) {
      jobs.emplace_back();
      place = names.insert(place, name);
    }
    if (place->empty()) *place = name;
    jobs[static_cast<std::size_t>(place - names.begin())].push_back(std::move(*journal));
  }
  return jobs;
}

}  // namespace elastrun::ctl
