// SPDX-License-Identifier: Apache-2.0

#include "elastrunctl/goodput_files.hpp"

#include "core/host.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "elastrunctl/command_line.hpp"
#include "export/record_line.hpp"
#include "goodput/compat/measurement_log.hpp"
#include "goodput/journals/journal_books.hpp"
#include "goodput/reports/summary.hpp"
#include "plain_step.hpp"
#include "runs/run_registry.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
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
namespace {

Status add_compatible(GoodputAnswer& answer, const GoodputInput& input, double until) {
  // All of the log, whenever it got what.
  constexpr double kEver = std::numeric_limits<double>::infinity();
  auto job = goodput::GoodputCalculator(input.measurements).job(until, {}, kEver);
  if (!job) return std::unexpected(job.error().context("ml-goodput-measurement's numbers"));
  answer.compatible = std::move(*job);
  return {};
}

double last_time(const goodput::MeasurementLog& log) {
  double last = 0;
  for (const auto& entry : log.entries()) last = std::max(last, entry.time);
  return last;
}

/// Of how many agents the journals are, and how often their clocks were set.
json::value agents_json(const GoodputInput& input) {
  const auto& agents = input.agents;
  json::object object;
  object["journals"] = agents.journals;
  object["clock_steps"] = agents.clock_steps + input.clocks.count();
  return object;
}

/// ", from 3 agents by their wall clocks".
std::string agents_text(const GoodputInput& input) {
  const auto& agents = input.agents;
  std::string text;
  if (agents.journals > 1) {
    text += fmt::format(", from {} agents by their wall clocks", agents.journals);
  }
  const auto steps = agents.clock_steps + input.clocks.count();
  if (steps > 0) text += fmt::format(", clock set {} time{}", steps, steps == 1 ? "" : "s");
  return text;
}

Result<GoodputAnswer> answer_of_log(const GoodputInput& input) {
  auto books = goodput::keep_books(input.measurements);
  if (!books) {
    return fail(Code::Usage, "the log has no job_start_time, so nothing is known of the job");
  }
  const auto summary = books->summary;
  return GoodputAnswer{input.job, input.job, summary, std::move(books), {}};
}

Result<GoodputAnswer> answer_of_journal(const GoodputInput& input) {
  const auto summary = input.journal.summary();
  if (!summary) {
    return fail(Code::Usage, "no job starts in what was given: no line with job.started");
  }
  return GoodputAnswer{input.journal.run_id(), input.name, *summary, {}, {}};
}

}  // namespace

Result<GoodputAnswer> answer_of(const GoodputInput& input, bool compatible) {
  if (compatible && !input.measured && input.measurements.entries().empty()) {
    return fail(
        Code::Usage,
        "--compatible needs a log of ml-goodput-measurement, or a journal of workers with a "
        "recorder; this is none");
  }
  auto answer = input.measured ? answer_of_log(input) : answer_of_journal(input);
  if (!answer || !compatible) return answer;
  const double until = answer->measured ? answer->measured->last : last_time(input.measurements);
  if (const auto added = add_compatible(*answer, input, until); !added) {
    return std::unexpected(added.error());
  }
  return answer;
}

json::object account_json(const GoodputInput& input, const GoodputAnswer& answer) {
  auto object = goodput::summary_json(answer.summary);
  const auto& books = answer.measured;
  const auto restarts = input.journal.restarts();
  object["hints"] = goodput::hints_json(goodput::hints(answer.summary, restarts));
  object["restart_waterfall"] = goodput::restarts_json(restarts);
  object["goodput_attempts"] = goodput::starts_json(input.journal.starts());
  object["job"] = answer.job;
  object["name"] = answer.name;
  object["submissions"] = books ? json::value(nullptr) : input.journal.submissions();
  object["records"] = input.records;
  object["agents"] = agents_json(input);
  object["skipped"] = input.skipped;
  object["other_jobs"] = input.other_jobs + input.journal.other_jobs();
  object["misplaced"] = input.journal.misplaced() + (books ? books->misplaced : 0);
  object["lost"] = input.lost + input.journal.lost();
  object["duplicates"] = books ? books->duplicates : 0;
  return object;
}

std::string job_line(const GoodputInput& input, const GoodputAnswer& answer) {
  const int submissions = input.journal.submissions();
  const auto missing = left_out(input, answer);
  return fmt::format("job \"{}\"{}, {} record{}{}{}", shown(answer.name),
                     submissions > 1 ? fmt::format(", submitted {} times", submissions) : "",
                     input.records, input.records == 1 ? "" : "s", agents_text(input),
                     missing.empty() ? "" : fmt::format(" (left out: {})", missing));
}

std::string left_out(const GoodputInput& input, const GoodputAnswer& answer) {
  const auto& books = answer.measured;
  const std::pair<std::uint64_t, std::string_view> counts[] = {
      {input.skipped, "lines that are not records"},
      {input.other_jobs + input.journal.other_jobs(), "records of other jobs"},
      {input.journal.misplaced() + (books ? books->misplaced : 0), "out of place"},
      {books ? books->duplicates : 0, "given twice"},
      {input.lost + input.journal.lost(), "that the recorder lost"}};
  std::string text;
  for (const auto& [count, what] : counts) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
  }
  return text;
}

namespace {

/// Lines of a journal are far below; a longer line is not a record.
constexpr std::size_t kLongestLine = 1 << 20;
constexpr int kAtOnce = 256 << 10, kPipe = 1 << 20;  // bytes that are read, and may wait in a pipe

double number_or(const json::value& object, std::string_view name, double otherwise) {
  const auto* value = find_member(object, name);
  return value != nullptr && value->is_number() ? value->to_number<double>() : otherwise;
}

/// What the first lines of a file tell.
struct Beginning {
  double time = std::numeric_limits<double>::infinity();  // of its first record
  std::string job;                                        // its run id or job name
};

Beginning beginning_of(const std::string& path) {
  constexpr int kTorn = 3;  // lines that may be torn
  std::ifstream file(path == "-" ? std::string() : path);
  std::string line;
  for (int i = 0; i < kTorn && std::getline(file, line); ++i) {
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
  if (path == "-") {
    ::fcntl(STDIN_FILENO, F_SETPIPE_SZ, kPipe);  // fails on other files
    // A copy: the buffer closes what it is given.
    __gnu_cxx::stdio_filebuf<char> input(::dup(STDIN_FILENO), std::ios::in | std::ios::binary,
                                         kAtOnce);
    std::istream stream(&input);
    return reader.read(stream);
  }
  std::vector<char> room(kAtOnce);
  std::ifstream file;
  // Before open(): libstdc++ ignores it on a file that is open.
  file.rdbuf()->pubsetbuf(room.data(), kAtOnce);
  file.open(path, std::ios::binary);
  if (!file) {
    return std::unexpected(errno_error(Code::Io, fmt::format("cannot read {}", path), errno));
  }
  const auto status = reader.read(file);
  if (file.bad()) return fail(Code::Io, fmt::format("cannot read {} to its end", path));
  return status;
}

/// The lines of a journal, which is opened with the first one.
class Lines {
 public:
  explicit Lines(std::string path) : path_(std::move(path)) {}

  /// None: the end, or it failed().
  std::optional<std::string> next() {
    if (held_) return std::exchange(held_, {});
    if (!std::exchange(opened_, true)) stream_.open(path_, std::ios::binary);
    std::string line;
    if (std::getline(stream_, line)) return line;
    return std::nullopt;
  }
  /// Is the next one again.
  void hold(std::string line) { held_ = std::move(line); }
  /// It cannot be read. Not fail(), which the end of a file sets as well.
  bool failed() const { return opened_ && (!stream_.is_open() || stream_.bad()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool opened_ = false;
  std::ifstream stream_;
  std::optional<std::string> held_;
};

goodput::JournalOutline outline_of(const std::string& path) {
  goodput::JournalOutline outline;
  if (path == "-") return outline;  // what comes through a pipe comes once
  Lines lines(path);
  telemetry::Record record;
  while (const auto line = lines.next()) {
    if (exporter::read_plain_record(*line, record)) {
      outline.take(record);
    } else if (goodput::JournalOutline::concerns(*line)) {
      if (const auto read = exporter::from_json_line(*line)) outline.take(*read);
    }
  }
  return outline;
}

/// Lets `reader` take several journals of one submission as one.
Status read_agents(GoodputReader& reader, const std::vector<std::string>& all,
                   const std::vector<goodput::JournalOutline>& outlines) {
  using Verdict = goodput::AgentJournals::Verdict;
  goodput::AgentJournals agents(outlines);
  std::vector<Lines> journals(all.begin(), all.end());
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
    while (!over) {
      auto line = journals[journal].next();
      if (!line) break;
      if (auto status = reader.take(*line); !status) return status;
      // The line that ended this stretch is the first of a later one of the same journal.
      if (over) journals[journal].hold(std::move(*line));
    }
    if (journals[journal].failed())
      return fail(Code::Io, fmt::format("cannot read {} to its end", journals[journal].path()));
  }
  // It refers to variables of this function.
  reader.before_record = {};
  for (const auto& one : steps) reader.input.agents.clock_steps += one.count();
  reader.input.agents.journals = std::max(reader.input.agents.journals, all.size());
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

Status GoodputReader::read(std::istream& stream) {
  std::string line;
  logged_ = false;
  while (std::getline(stream, line)) {
    if (const auto status = take(line); !status) return status;
  }
  return {};
}

Status GoodputReader::take(const std::string& line) {
  if (line.empty()) return {};
  // Nearly all lines are of that form, and a parser that makes a tree of each takes several times
  // as long.
  if (line.size() <= kLongestLine && exporter::read_plain_record(line, plain_)) {
    return take_record(plain_);
  }
  // Who asks for entries wants all of each, which the quick way leaves out.
  if (const auto step = on_entry ? std::nullopt : read_plain_step(line)) return take_step(*step);
  const auto value = line.size() > kLongestLine ? fail(Code::Protocol, "") : parse_json(line);
  if (!value || !value->is_object()) {
    ++input.skipped;
    return {};
  }
  const auto* payload = find_member(*value, "payload");
  const bool measured = payload != nullptr || find_member(*value, "job_name") != nullptr;
  if (!measured) return take_other_record(line);
  return take_entry(payload == nullptr ? *value : *payload,
                    number_or(*value, "log_time", std::nan("")));
}

Status GoodputReader::take_other_record(const std::string& line) {
  auto record = exporter::from_json_line(line);
  if (record) return take_record(*record);
  ++input.skipped;
  return {};
}

Status GoodputReader::take_record(telemetry::Record& record) {
  const bool begins_log = goodput::is_begin_of_log(record);
  if (begins_log || record.name == "job.started") logged_ = begins_log;
  if (begins_log) return {};
  if (logged_) return take_logged(record);
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
  if (record.scope == goodput::kRecorderScope) {
    (void)input.measurements.add(goodput::entry_of(record));
  }
  if (on_record) on_record(record);
}

Status GoodputReader::take_logged(const telemetry::Record& record) {
  if (const auto left_out = goodput::count_left_out(record); left_out > 0) {
    input.skipped += left_out;
    return {};
  }
  auto entry = json::value(goodput::entry_of(record));
  return take_entry(entry, number_or(entry, "log_time", std::nan("")));
}

Status GoodputReader::take_entry(const json::value& payload, double log_time) {
  const auto job = member_text_or(payload, "job_name", "");
  // The first one decides which job this account is of.
  if (input.job.empty()) input.job = job;
  const auto pass_on = [&] {
    if (on_entry && payload.is_object()) on_entry(payload.get_object(), log_time);
  };
  if (job != input.job) {
    ++input.other_jobs;
    pass_on();
    return {};
  }
  input.measured = true;
  input.lost += static_cast<std::uint64_t>(
      std::max<std::int64_t>(member_int_or(payload, "lost_entries", 0), 0));
  if (input.measurements.add(payload, log_time)) {
    ++input.records;
    pass_on();
  } else {
    ++input.skipped;
  }
  return both();
}

/// As take_entry().
Status GoodputReader::take_step(const PlainStep& step) {
  if (input.job.empty()) input.job = step.job;
  if (step.job != input.job) {
    ++input.other_jobs;
    return {};
  }
  input.measured = true;
  input.measurements.add_step(step.step, step.time, step.log_time);
  ++input.records;
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

Result<GoodputInput> read_goodput_files(std::vector<std::string> paths, bool history) {
  GoodputReader reader;
  if (history) reader.input.journal.keep_history();
  const auto status = read_into(reader, std::move(paths));
  if (!status) return std::unexpected(status.error());
  return std::move(reader.input);
}

}  // namespace elastrun::ctl
