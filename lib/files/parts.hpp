// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/unique_fd.hpp"

#include <cstdint>
#include <string>
#include <sys/types.h>
#include <vector>

/// A file that grows in parts: "journal.jsonl", "journal.1.jsonl", "journal.2.jsonl", ... A part
/// keeps its name, and is not touched once the next one has begun: readers lose nothing.
namespace elastrun::files {

struct Part {
  std::string path;
  std::uint64_t number = 0;  // 0: the file that gives its name to all
};

std::string part_path(const std::string& path, std::uint64_t number);
/// Those that are there, in order; some may have been taken away. May wait for the file system. A
/// directory that cannot be listed has what its names tell when they are opened: part 0.
std::vector<Part> parts_of(const std::string& path);

/// Opens the parts of one file for its writer. May wait for the file system.
class PartOpener {
 public:
  /// `flags` of open_by_name(), to which O_CREAT and O_APPEND come; from `part_size` bytes on a
  /// part is followed by another. 0: there is one file, and other parts are not looked for.
  PartOpener(std::string path, int flags, mode_t mode, std::uint64_t part_size);

  /// The last part that is there, or the first. Fails as open_by_name().
  Result<UniqueFd> open_last();
  /// The next one, if `current` is a regular file and large enough; else not open. Neither where it
  /// cannot be made: then it is tried again when `current` has grown by as much.
  UniqueFd open_next(int current);
  /// The path of the part that is written.
  std::string path() const { return part_path(path_, number_); }
  /// That part again, under its name, which `current` has no more. Not open: errno says why.
  UniqueFd open_again();

 private:
  UniqueFd open(std::uint64_t number) const;

  const std::string path_;
  const int flags_;
  const mode_t mode_;
  const std::uint64_t part_size_;
  std::uint64_t number_ = 0, next_at_ = 0;
};

}  // namespace elastrun::files
