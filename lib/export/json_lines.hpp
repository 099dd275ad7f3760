// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "files/appended_file.hpp"
#include "telemetry/route.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

/// Records as JSON, one object a line:
///
///     {"time":1767323045.123456789,"mono_ns":5200000000,"kind":"event","scope":"elastrun.agent",
///      "name":"worker.ended","value":3,"attributes":{"rank":0}}
///
/// (on one line). `value` and `attributes` are left out when empty, `severity` when it is INFO,
/// `id` when there is none. A window has "window":{"start_ns":0,"end_ns":60000000000,"index":0,
/// "count":2,"dropped":0,"unit":"s","aggregates":{"mean":0.5}} in monotonic time, and
/// "no_data":true when nothing was seen. Readers must skip keys and kinds that they do not know.
namespace elastrun::exporter {

/// One line without its newline.
std::string to_json_line(const telemetry::Record& record);
/// Fails with Protocol for anything else than an object with at least time, kind and name.
Result<telemetry::Record> from_json_line(std::string_view line);

/// The journal: appends each record to a file, through the thread for files. Events are handed over
/// at once, because they must be there after a crash; the rest is collected up to 64 KiB and goes
/// with the next event or flush. A file that cannot be made, a full disk and one that takes nothing
/// for long cost records, counted, and are told once.
class JsonLines final : public telemetry::Sink {
 public:
  /// Borrows `calls`. Makes the file, mode 0600, or goes on with it: a torn last line of an earlier
  /// process is closed off, so that the first new record has a line of its own.
  JsonLines(files::BlockingCalls& calls, std::string path);

  void consume(const telemetry::Record& record) override;
  void flush(TimePoint deadline) override;
  std::uint64_t lost() const { return file_.lost(); }
  const std::string& path() const { return file_.path(); }

 private:
  void write_out();

  files::AppendedFile file_;
  std::string waiting_;
};

struct JournalRead {
  std::uint64_t records = 0;
  std::uint64_t skipped = 0;  // lines that are no record, the torn tail among them
};
/// Calls `take` for each record of a journal, in order. Memory stays bounded by the longest line.
/// Fails with Io only if the file cannot be read.
Result<JournalRead> read_journal(const std::string& path,
                                 const std::function<void(telemetry::Record)>& take);

}  // namespace elastrun::exporter
