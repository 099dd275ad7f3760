// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/unique_fd.hpp"
#include "telemetry/route.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

/// Records as JSON, one object a line:
///
///     {"time":1767323045.123456789,"mono_ns":5200000000,"kind":"event","scope":"elastrun.agent",
///      "name":"worker.ended","value":3,"attributes":{"rank":0}}
///
/// (on one line). `value` and `attributes` are left out when empty. Readers must skip keys and
/// kinds that they do not know.
namespace elastrun::exporter {

/// One line without its newline.
std::string to_json_line(const telemetry::Record& record);
/// Fails with Protocol for anything else than an object with at least time, kind and name.
Result<telemetry::Record> from_json_line(std::string_view line);

/// The journal: appends each record to a file. Events are written at once, because they must be
/// there after a crash; the rest is collected up to 64 KiB and written with the next event or
/// flush. One write(2) a batch of whole lines. A full disk costs records, counted, and is told
/// once.
class JsonLines final : public telemetry::Sink {
 public:
  /// Opens or makes the file, mode 0600. A torn last line of an earlier process is closed off, so
  /// that the first new record has a line of its own. Fails with Io.
  static Result<std::shared_ptr<JsonLines>> open(std::string path);

  void consume(const telemetry::Record& record) override;
  void flush(TimePoint deadline) override;
  std::uint64_t lost() const { return lost_; }
  const std::string& path() const { return path_; }

 private:
  JsonLines(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  void write_out();

  UniqueFd fd_;
  std::string path_;
  std::string waiting_;
  std::uint64_t waiting_records_ = 0, lost_ = 0;
  bool torn_ = false;  // the file does not end with a newline
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
