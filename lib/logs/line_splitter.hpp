// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::logs {

/// Needles of --duplicate-*-filters: lines that contain any of them are also written to the file
/// that all ranks share. They are looked for in the line itself, without its prefix.
using LineFilter = std::vector<std::string>;

/// Cuts the bytes of one stream into whole lines, each with a prefix. Pure.
///
/// A line ends at LF only. What has no LF yet is held back, so that lines of several workers never
/// mix; at the end it is given out with an LF added. Of text that CR overwrites (a progress bar)
/// the last state is given out, as a terminal would show it: otherwise it would overwrite the
/// prefix. A line longer than `longest` is given out in pieces of that length, each as a separate
/// line: memory stays bounded.
class LineSplitter {
 public:
  static constexpr std::size_t kLongest = 1 << 20;
  explicit LineSplitter(std::string prefix, std::size_t longest = kLongest);

  /// Appends every line that `bytes` completed to `out`; those that `filter` (if any) lets pass
  /// also to `matching`.
  void feed(std::string_view bytes, std::string& out, const LineFilter* filter = nullptr,
            std::string* matching = nullptr);
  /// The stream has ended: what is held becomes the last line.
  void finish(std::string& out, const LineFilter* filter = nullptr,
              std::string* matching = nullptr);

  /// The bytes whose line end has not come.
  std::string_view held() const { return held_; }
  /// True if a progress bar is held: text without LF that was overwritten by CR at least once.
  bool holds_progress() const;
  /// Gives out the newest complete state of that bar as a line, and forgets the states before it,
  /// as a terminal would have overwritten them. What follows the last CR stays held.
  void show_progress(std::string& out);

 private:
  void add_line(std::string_view line, std::string& out, const LineFilter* filter,
                std::string* matching) const;
  void hold(std::string_view bytes, std::string& out, const LineFilter* filter,
            std::string* matching);

  std::string prefix_;
  std::size_t longest_;
  std::string held_;
};

/// The prefix of a worker's lines: `form` is a Python string.Template with role_name, rank,
/// local_rank and hostname, where what cannot be replaced stays as it is; empty:
/// "[ROLELOCAL_RANK]:".
std::string line_prefix(std::string_view form, std::string_view role, int rank, int local_rank);

}  // namespace elastrun::logs
