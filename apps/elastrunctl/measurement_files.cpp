// SPDX-License-Identifier: Apache-2.0
#include "measurement_files.hpp"

#include "core/unique_fd.hpp"
#include "goodput/journals/journal_books.hpp"
#include "plain_step.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace elastrun::ctl {
namespace {

constexpr std::size_t kLongestEntry = 1 << 20;  // a longer line is not an entry
constexpr std::size_t kEntryBytes = 256 << 10;
constexpr std::string_view kBlank = " \t\r\n\v\f";

double time_or_nan(const json::value* value) {
  return value != nullptr && value->is_number() ? value->to_number<double>() : std::nan("");
}

std::uint64_t count_of(const json::object& object, std::string_view name) {
  const auto* value = object.if_contains(name);
  const double count = time_or_nan(value);
  // Below 2^53, up to which doubles name every whole number.
  constexpr double kMost = 9.0e15;
  return count >= 1 && count <= kMost ? static_cast<std::uint64_t>(count) : 0;
}

bool is_checkpoint(const json::object& payload) {
  const auto* type = payload.if_contains("event_type");
  if (type == nullptr || !type->is_string()) return false;
  const std::string_view text = type->get_string();
  return text == "save" || text == "restore" || text == "emergency_restore";
}

}  // namespace

bool MeasurementFiles::replaced(const std::string& path, const File& file) {
  if (!file.known) return false;
  struct stat now {};
  if (::stat(path.c_str(), &now) != 0) return errno == ENOENT;
  // Another inode is another file under the name; a shorter one was emptied. In both cases what was
  // read is no longer there, and all is read again.
  return now.st_dev != file.device || now.st_ino != file.inode || now.st_size < file.offset;
}

Result<bool> MeasurementFiles::read() {
  const bool again = std::ranges::any_of(
      files_, [](const auto& known) { return replaced(known.first, known.second); });
  // What was read is in sums by now, from which nothing can be taken out: all begins again.
  if (again) {
    files_.clear();
    found_ = {};
  }
  for (const auto& path : paths_) {
    if (const auto status = read_file(path, files_[path]); !status) {
      return std::unexpected(status.error());
    }
  }
  return again;
}

Status MeasurementFiles::read_file(const std::string& path, File& file) {
  const auto failed = [&] {
    errno_ = errno;
    return std::unexpected(errno_error(Code::Io, fmt::format("cannot read {}", path), errno_));
  };
  // Opened again for each question: over NFS the size of a file that stays open may be an old one
  // (nfs(5), close-to-open).
  const UniqueFd input(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!input) {
    if (errno == ENOENT) return {};
    return failed();
  }
  struct stat now {};
  if (::fstat(input.get(), &now) != 0) return failed();
  file.known = true;
  file.device = now.st_dev;
  file.inode = now.st_ino;
  if (file.offset > 0 && ::lseek(input.get(), file.offset, SEEK_SET) < 0) return failed();
  std::string text;
  for (;;) {
    const auto kept = text.size();
    text.resize(kept + kEntryBytes);
    const auto count = ::read(input.get(), text.data() + kept, kEntryBytes);
    if (count < 0 && errno != EINTR) return failed();
    text.resize(kept + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    const auto taken = take_lines(text, count == 0, file);
    // Behind the last whole line: half of one is read again with the next question.
    file.offset += static_cast<off_t>(taken);
    text.erase(0, taken);
    if (count == 0) return {};
  }
}

/// How many bytes of `text` are done with. `at_end`: no more of it is there yet.
std::size_t MeasurementFiles::take_lines(std::string_view text, bool at_end, File& file) {
  std::size_t taken = 0;
  while (taken < text.size()) {
    const auto end = text.find('\n', taken);
    const auto line = text.substr(taken, end == text.npos ? end : end - taken);
    if (end != text.npos) {
      const bool too_long = line.size() >= kLongestEntry;
      if (too_long && !file.skipping) ++found_.skipped;
      if (!too_long && !file.skipping) (void)take(line, true);
      file.skipping = false;
      taken = end + 1;
      continue;
    }
    if (!file.skipping && line.size() >= kLongestEntry) {
      ++found_.skipped;
      file.skipping = true;
    }
    // A last line without its LF may be whole, or may still be written. If it parses it counts now;
    // else it waits for the rest.
    if (file.skipping || (at_end && take(line, false))) taken = text.size();
    break;
  }
  return taken;
}

/// False: half a line. `whole`: it is none, whatever it says.
bool MeasurementFiles::take(std::string_view line, bool whole) {
  if (const auto step = read_plain_step(line)) {
    if (step->job == job_) found_.log.add_step(step->step, step->time, step->log_time);
    return true;
  }
  if (line.find_first_not_of(kBlank) == line.npos) return whole;
  const auto value = parse_json(line);
  if (!value && !whole) return false;
  const auto* object = value ? value->if_object() : nullptr;
  if (object == nullptr || !take_value(*object)) ++found_.skipped;
  return true;
}

bool MeasurementFiles::take_value(const json::object& value) {
  if (const auto* payload = value.if_contains("payload")) {
    return payload->is_object() &&
           take_payload(payload->get_object(), time_or_nan(value.if_contains("log_time")));
  }
  if (value.contains("job_name")) return take_payload(value, std::nan(""));
  const auto* scope = value.if_contains("scope");
  if (scope == nullptr || !scope->is_string()) return false;
  if (std::string_view(scope->get_string()) != goodput::kRecorderScope) return true;
  const auto* attributes = value.if_contains("attributes");
  if (attributes == nullptr || !attributes->is_object()) return false;
  const auto* name = value.if_contains("name");
  const auto text = name != nullptr && name->is_string() ? std::string_view(name->get_string())
                                                         : std::string_view();
  if (text != "lost" && text != "left_out") {
    return take_payload(attributes->get_object(), std::nan(""));
  }
  take_note(text, attributes->get_object());
  return true;
}

void MeasurementFiles::take_note(std::string_view name, const json::object& attributes) {
  (name == "lost" ? found_.lost : found_.skipped) += count_of(attributes, "count");
}

bool MeasurementFiles::take_payload(const json::object& payload, double log_time) {
  if (const auto* job = payload.if_contains("job_name")) {
    if (!job->is_string() || std::string_view(job->get_string()) != job_) return true;
  }
  found_.lost += count_of(payload, "lost_entries");
  const bool added = found_.log.add(payload, log_time).has_value();
  if (is_checkpoint(payload)) found_.checkpoints.push_back(payload);
  return added;
}

}  // namespace elastrun::ctl
