// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "export/record_line.hpp"
#include "files/appended_file.hpp"
#include "telemetry/route.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace elastrun::exporter {

/// The journal: appends each record to a file, through the thread for files. Events are handed over
/// at once, because they must be there after a crash; the rest is collected for kPause or up to
/// 64 KiB, and goes with the next event or flush. With a failure, a restart, a checkpoint and a
/// flush, as at the end of the job, the file is synced as well (fdatasync(2)): those outlive a
/// crash of the machine. A file that cannot be made, a full disk and one that takes nothing for
/// long cost records, counted, and are told once. Of what may wait for such a file 1 MiB is kept
/// for the agent's own events: no flood of what workers say pushes a restart out.
class JsonLines final : public telemetry::Sink {
 public:
  static constexpr Duration kPause = std::chrono::milliseconds(100);

  /// Borrows `clock` and `calls`. Makes the file, mode 0600, or goes on with it: a torn last line
  /// of an earlier process is closed off, so that the first new record starts a line. The
  /// thread of `syncs`, also borrowed, syncs, so that no other file waits for the disk; null: that
  /// of `calls`.
  JsonLines(Clock& clock, files::BlockingCalls& calls, std::string path,
            files::BlockingCalls* syncs = nullptr);

  void consume(const telemetry::Record& record) override;
  void flush(TimePoint deadline) override;
  std::uint64_t lost() const { return file_.counts().lost + held_back_; }
  std::uint64_t synced() const { return file_.counts().synced; }
  const std::string& path() const { return file_.path(); }

 private:
  void write_out();

  Clock& clock_;
  files::AppendedFile file_;
  std::string waiting_;
  std::unique_ptr<Alarm> pause_;
  bool pausing_ = false;
  std::uint64_t held_back_ = 0;  // records for which there was no room beside the agent's
};

}  // namespace elastrun::exporter
