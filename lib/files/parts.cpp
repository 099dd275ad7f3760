// SPDX-License-Identifier: Apache-2.0
#include "files/parts.hpp"

#include "files/whole_file.hpp"

#include <algorithm>
#include <charconv>
#include <fcntl.h>
#include <filesystem>
#include <optional>
#include <string_view>
#include <sys/stat.h>
#include <utility>

namespace elastrun::files {
namespace {

namespace fs = std::filesystem;

/// Of a name between those of the first part: "journal." 12 ".jsonl".
std::optional<std::uint64_t> number_in(std::string_view name, std::string_view begin,
                                       std::string_view end) {
  if (name.size() <= begin.size() + end.size() || !name.starts_with(begin) || !name.ends_with(end))
    return std::nullopt;
  name = name.substr(begin.size(), name.size() - begin.size() - end.size());
  std::uint64_t number = 0;
  const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool whole = error == std::errc() && rest == name.data() + name.size();
  // Longer ones are dates: "metrics.20241122.jsonl" belongs to another writer.
  if (!whole || name.front() == '0' || name.size() > 5) return std::nullopt;
  return number;
}

}  // namespace

std::string part_path(const std::string& path, std::uint64_t number) {
  if (number == 0) return path;
  const fs::path whole(path);
  const auto name =
      whole.stem().native() + '.' + std::to_string(number) + whole.extension().native();
  return (whole.parent_path() / name).native();
}

std::vector<Part> parts_of(const std::string& path) {
  const fs::path whole(path);
  const auto begin = whole.stem().native() + '.', end = whole.extension().native();
  const auto folder = whole.has_parent_path() ? whole.parent_path() : fs::path(".");
  std::vector<Part> parts;
  std::error_code error;
  // One that cannot be looked at may be there: opening it then tells why it cannot be read.
  if (fs::exists(whole, error) || error) parts.push_back({path, 0});
  auto entry = fs::directory_iterator(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const auto number = number_in(entry->path().filename().native(), begin, end);
    std::error_code none;
    if (number && entry->is_regular_file(none))
      parts.push_back({part_path(path, *number), *number});
  }
  std::ranges::sort(parts, {}, &Part::number);
  return parts;
}

PartOpener::PartOpener(std::string path, int flags, mode_t mode, std::uint64_t part_size)
    : path_(std::move(path)),
      // O_APPEND: several writers of one file then write behind each other, and not over each other
      // (open(2)).
      flags_(flags | O_CREAT | O_APPEND),
      mode_(mode),
      part_size_(part_size),
      next_at_(part_size) {}

UniqueFd PartOpener::open(std::uint64_t number) const {
  return open_by_name(part_path(path_, number), flags_, mode_).value_or(UniqueFd());
}

Result<UniqueFd> PartOpener::open_last() {
  const auto parts = part_size_ > 0 ? parts_of(path_) : std::vector<Part>();
  // The highest number and not the first gap: an older part may have been removed to make room.
  if (!parts.empty()) number_ = parts.back().number;
  return open_by_name(path(), flags_, mode_);
}

UniqueFd PartOpener::open_again() {
  auto again = open(number_);
  if (again) next_at_ = part_size_;
  return again;
}

UniqueFd PartOpener::open_next(int current) {
  struct stat info {};
  if (part_size_ == 0 || ::fstat(current, &info) != 0 || !S_ISREG(info.st_mode)) return {};
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size < next_at_) return {};
  auto next = open(number_ + 1);
  number_ += next ? 1 : 0;
  // When the next part cannot be opened, this one goes on, and the next try comes after as much
  // again: not with each line, on a disk that is full.
  next_at_ = next ? part_size_ : size + part_size_;
  return next;
}

}  // namespace elastrun::files
