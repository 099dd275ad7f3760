// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "goodput/compat/goodput_calculator.hpp"
#include "goodput/journals/journal_books.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::ctl {

/// What files about goodput hold: journals of ours, or a log of ml-goodput-measurement.
struct GoodputInput {
  std::string job;        // of the log: its first job_name
  std::string name;       // of a journal: what people call the job; may be empty
  bool measured = false;  // a log of ml-goodput-measurement, not a journal with such entries
  goodput::MeasurementLog measurements;
  goodput::JournalBooks journal;
  std::uint64_t records = 0;
  std::uint64_t skipped = 0;     // invalid lines, a torn tail among them
  std::uint64_t other_jobs = 0;  // entries with another job_name
  std::uint64_t lost = 0;        // entries that a recorder could not write into its own file
  WallTime last_wall{};          // of the last record of a journal
  std::set<std::int64_t> pids;   // of the agents of this host that wrote journals
  goodput::ClockSteps clocks;    // of the machines of all journals
  std::size_t agents = 1;        // whose journals were put together, of one submission at most
};

/// Where a journal that `convert` has made of a log comes from: the `source` of its first record.
/// No agent saw that job, so its books stay those of the log (keep_books).
inline constexpr std::string_view kLogSource = "ml-goodput-measurement";

/// Takes such files line by line.
class GoodputReader {
 public:
  /// The next line is the first of a file.
  void begin_file() { logged_ = false; }
  /// A line without its end. Fails with Usage if a journal and a log come together.
  Status take(std::string_view line);
  /// A record of a journal, whatever before_record says.
  void add(const telemetry::Record& record);

  GoodputInput input;
  std::function<void(telemetry::Record)> on_record;  // gets those of a journal, after the books
  /// Asked before the books get a record of a journal, and may change it. False: they do not.
  std::function<bool(telemetry::Record&)> before_record;
  /// Gets the entries of a log that are sound or of another job; the time as in
  /// MeasurementLog::add().
  std::function<void(goodput::Members entry, double log_time)> on_entry;

 private:
  Status take_record(telemetry::Record& record);
  void note_writer(const telemetry::Record& record);
  Status take_entry(goodput::Members entry, double log_time);
  Status count_entry(std::string_view job, const auto& add);
  Status both() const;
  bool lacks_start(const telemetry::Record& record);
  void begin_at(const telemetry::Record& record);

  bool begun_ = false;  // the job of a journal
  bool journal_ = false;
  bool logged_ = false;  // in a journal that `convert` has made of a log
  // The last ones that were plain, so that the next reuse their memory.
  telemetry::Record plain_;
  std::vector<telemetry::Attribute> entry_;
};

/// Of a directory, which is that of a run, or a --log-dir with one run in it, the path of the
/// journal; anything else as it is. Usage: none there, or several runs, which the error names.
Result<std::string> journal_at(const std::string& path);

/// The files of each job, as far as their first lines tell which it is; a file that does not tell
/// is of the job before it. Fails as journal_at().
Result<std::vector<std::vector<std::string>>> files_by_job(const std::vector<std::string>& paths);

/// Reads JSON lines: records of our journal, or entries of ml-goodput-measurement, bare or as
/// {"log_time": SECONDS, "payload": {...}}; "-" is standard input. Files are taken in the order in
/// which they begin, journals of agents of one submission as one, and of a directory its journal,
/// see journal_at(). A journal that does not tell its end, and that no agent of this machine goes
/// on with, ends with the death of that agent. Fails with Io if a file cannot be read, with Usage
/// if both kinds come together.
Status read_into(GoodputReader& reader, std::vector<std::string> paths);

/// The account of one job, whichever kind of file it came from.
struct GoodputAnswer {
  std::string job;   // run id
  std::string name;  // what people call it
  goodput::Ledger::Summary summary{};
  goodput::History history{};  // if it was kept, and of a log
  WallTime first{};            // the first start of the job
  // What is not in the books, beside GoodputInput::skipped.
  std::uint64_t other_jobs = 0, misplaced = 0, lost = 0, duplicates = 0;
  std::optional<goodput::CalculatedGoodput> compatible{};  // if asked for

  /// So long after the start; at the latest what the clock can tell, whatever a log says.
  WallTime at(Duration since_start) const {
    const auto most = Duration::max() - std::max(first.time_since_epoch(), Duration::zero());
    return first + std::min(since_start, most);
  }
};

/// Fails with Usage if no job starts in what was read, or `compatible` has nothing to go by.
Result<GoodputAnswer> answer_of(const GoodputInput& input, bool compatible);

/// goodput_page.html, which the program has as text.
std::string_view goodput_page_html();

}  // namespace elastrun::ctl
