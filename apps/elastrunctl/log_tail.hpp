// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/unique_fd.hpp"

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace elastrun::ctl {

/// One log file, read as it grows. With a label it gives whole lines, each with the label in front;
/// without one the bytes as they are.
class LogTail {
 public:
  using Write = std::function<void(std::string_view)>;

  /// Begins `lines` lines before the end of what is there, or at the beginning. Fails with Io.
  static Result<LogTail> open(const std::string& path, std::optional<int> lines);

  void label(std::string label) { label_ = std::move(label); }
  /// Gives what has come since the last time.
  void read(const Write& write);
  /// Shows the rest, and a line end after an unfinished last line: nothing follows any more.
  void finish(const Write& write);

 private:
  explicit LogTail(UniqueFd file) : file_(std::move(file)) {}
  void give_lines(const Write& write);

  UniqueFd file_;
  std::string label_;
  std::string pending_;
};

}  // namespace elastrun::ctl
