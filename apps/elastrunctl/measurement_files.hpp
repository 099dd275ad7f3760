// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/json.hpp"
#include "goodput/compat/measurement_log.hpp"

#include <cstdint>
#include <ctime>
#include <map>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace elastrun::ctl {

/// The entries of one job, of files that grow: those of recorders, journals of ours, and what other
/// programs keep as JSON lines, bare or as {"log_time": SECONDS, "payload": {...}}. Each byte is
/// read once; a line without an end is read again until it is whole.
class MeasurementFiles {
 public:
  MeasurementFiles(std::string job, std::vector<std::string> paths)
      : job_(std::move(job)), paths_(std::move(paths)) {}

  struct Found {
    goodput::MeasurementLog log;
    json::array checkpoints;    // entries of Orbax, as they are
    std::uint64_t skipped = 0;  // invalid lines
    std::uint64_t lost = 0;     // entries that recorders could not write
  };

  /// Takes what is new. True: a file was replaced or has become shorter, and all was read again;
  /// `found` is another one then. What is not there yet is empty; another error is Io.
  Result<bool> read();
  /// An entry that did not come in a file.
  void take_entry(std::string_view line) { (void)take(line, true); }
  const Found& found() const { return found_; }
  int error_number() const { return errno_; }  // of the last failure of read()

 private:
  struct File {
    off_t offset = 0;
    bool known = false;  // which file it was:
    dev_t device = 0;
    ino_t inode = 0;
    bool skipping = false;  // the rest of a line that is too long
  };

  static bool replaced(const std::string& path, const File& file);
  Status read_file(const std::string& path, File& file);
  std::size_t take_lines(std::string_view text, bool at_end, File& file);
  bool take(std::string_view line, bool whole);
  bool take_value(const json::object& value);
  bool take_payload(const json::object& payload, double log_time);
  void take_note(std::string_view name, const json::object& attributes);

  const std::string job_;
  const std::vector<std::string> paths_;
  std::map<std::string, File> files_;  // by path
  Found found_;
  int errno_ = 0;
};

}  // namespace elastrun::ctl
