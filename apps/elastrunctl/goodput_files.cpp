// SPDX-License-Identifier: Apache-2.0
#include "goodput_files.hpp"

#include "core/json.hpp"
#include "core/text.hpp"
#include "core/utf8.hpp"
#include "export/record_line.hpp"
#include "files/parts.hpp"
#include "goodput/journals/measurement_journal.hpp"
#include "goodput_agents.hpp"
#include "plain_step.hpp"

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

/// Lines of a journal are far below; a longer line is not a record.
constexpr std::size_t kLongestLine = 1 << 20;
constexpr int kAtOnce = 256 << 10, kPipe = 1 << 20;  // bytes that are read, and may wait in a pipe

double number_or(const json::value& object, std::string_view name, double otherwise) {
  const auto* value = find_member(object, name);
  return value != nullptr && value->is_number() ? value->to_number<double>() : otherwise;
}

/// When the first record of a file was written, so that files can be put in order; infinity if its
/// first lines do not say.
double begins_at(const std::string& path) {
  constexpr int kTorn = 3;  // lines that may be torn
  std::ifstream file(path == "-" ? std::string() : path);
  std::string line;
  for (int i = 0; i < kTorn && std::getline(file, line); ++i) {
    const auto value = line.size() > kLongestLine ? fail(Code::Protocol, "") : parse_json(line);
    if (value) return number_or(*value, "time", number_or(*value, "log_time", 0));
  }
  return std::numeric_limits<double>::infinity();
}

/// A pattern of the shell names parts, too: each file once, where the first of its parts stands.
std::vector<JournalFiles> with_parts(const std::vector<std::string>& paths) {
  std::set<std::string> further;
  std::set<std::pair<dev_t, ino_t>> seen;
  std::vector<JournalFiles> all;
  for (const auto& path : paths) {
    struct stat file {};
    // By device and inode: "runs/*" and a link name one file twice, and its records would count
    // twice.
    const bool known = path != "-" && ::stat(path.c_str(), &file) == 0;
    if (known && !seen.emplace(file.st_dev, file.st_ino).second && S_ISREG(file.st_mode)) continue;
    auto& files = all.emplace_back(1, path);
    if (path == "-") continue;
    for (const auto& part : files::parts_of(path)) {
      if (part.number > 0 && further.insert(part.path).second) files.push_back(part.path);
    }
  }
  std::erase_if(all, [&](const JournalFiles& files) { return further.contains(files.front()); });
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
  if (before_record && !before_record(record)) return {};
  if (lacks_start(record)) begin_at(record);
  if (!before_record) input.clocks.take(record);
  add(record);
  return both();
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
  if (before_record) {  // of several agents, whose axis is the coordinator's clock
    start.stamp.wall = WallTime(start.stamp.mono.time_since_epoch());
    start.attributes.emplace_back("max_nodes", std::int64_t{2});  // or more
  }
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
  if (paths.size() > 1) std::ranges::stable_sort(paths, {}, begins_at);
  for (const auto& submission : find_submissions(with_parts(paths))) {
    if (submission.journals.size() > 1) {
      if (auto status = read_agents(reader, submission); !status) return status;
      continue;
    }
    for (const auto& path : submission.journals.front()) {
      if (auto status = read_one(reader, path); !status) return status;
    }
  }
  return {};
}

Result<GoodputInput> read_goodput_files(std::vector<std::string> paths, bool history) {
  GoodputReader reader;
  if (history) reader.input.journal.keep_history();
  const auto status = read_into(reader, std::move(paths));
  if (!status) return std::unexpected(status.error());
  return std::move(reader.input);
}

}  // namespace elastrun::ctl
