// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "files/blocking_calls.hpp"
#include "workers/error_file.hpp"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::workers {

/// What workers have left in their error files, as it was read last. Files may be on a file system
/// that does not answer: they are read elsewhere, and waited for during `kTimeLimit` at most. What
/// comes later is known to later questions. One reading at a time; those who come meanwhile share
/// the next one.
class ErrorFileReader {
 public:
  using Found = std::vector<std::optional<ErrorFile>>;  // one for each path
  /// Calls `then` on the loop, later, when it has read them all; maybe never.
  using Read = std::function<void(std::vector<std::string> paths, std::function<void(Found)> then)>;
  /// Much more than a healthy network file system takes for some dozen small files, and what a
  /// frozen one may add to the time until a group is stopped.
  static constexpr Duration kTimeLimit = std::chrono::seconds(1);

  /// Without `read`, files are read inside look_at().
  ErrorFileReader(Clock& clock, Read read);
  ErrorFileReader(const ErrorFileReader&) = delete;
  ErrorFileReader& operator=(const ErrorFileReader&) = delete;

  /// Runs `then` once, inside or later, when these files have been looked at again or are waited
  /// for no longer. While an earlier reading is overdue `then` runs at once.
  void look_at(std::vector<std::string> paths, std::function<void()> then);
  /// Nothing if there was no such file, or it was not read.
  std::optional<ErrorFile> of(const std::string& path) const;

 private:
  struct Request {
    std::vector<std::string> paths;
    std::vector<std::function<void()>> then;
    void answer();
  };
  void ask(Request request);
  void found(const std::vector<std::string>& paths, Found files);
  void give_up();

  Clock& clock_;
  const Read read_;
  std::map<std::string, ErrorFile> files_;
  std::unique_ptr<Alarm> alarm_;
  Request now_, next_;
  bool asking_ = false, overdue_ = false;
  Lifetime lifetime_;  // answers look whether we exist
};

/// Reads them all, one after the other; may wait for the file system.
ErrorFileReader::Found read_error_files(const std::vector<std::string>& paths);
/// Reads them on the thread of `calls`, which outlives it.
ErrorFileReader::Read reader_by(files::BlockingCalls& calls);

}  // namespace elastrun::workers
