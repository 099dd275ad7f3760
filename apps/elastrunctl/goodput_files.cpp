// SPDX-License-Identifier: Apache-2.0
#include "goodput_files.hpp"

#include "core/json.hpp"
#include "export/plain_record.hpp"
#include "export/record_line.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fmt/format.h>
#include <fstream>
#include <iostream>
#include <limits>

namespace elastrun::ctl {
namespace {

/// Lines of a journal are far below; what is longer is no record.
constexpr std::size_t kLongestLine = 1 << 20;

double number_or(const json::value& object, std::string_view name, double otherwise) {
  const auto* value = find_member(object, name);
  return value != nullptr && value->is_number() ? value->to_number<double>() : otherwise;
}

/// When the first record of a file was written, so that files can be put in order; infinity if its
/// first line does not say.
double begins_at(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (path == "-" || !std::getline(file, line) || line.size() > kLongestLine) {
    return std::numeric_limits<double>::infinity();
  }
  const auto value = parse_json(line);
  if (!value) return std::numeric_limits<double>::infinity();
  return number_or(*value, "time", number_or(*value, "log_time", 0));
}

}  // namespace

Status GoodputReader::read(std::istream& stream) {
  std::string line;
  while (std::getline(stream, line)) {
    if (const auto status = take(line); !status) return status;
  }
  return {};
}

Status GoodputReader::take(const std::string& line) {
  if (line.empty()) return {};
  if (line.size() <= kLongestLine && exporter::read_plain_record(line, plain_)) {
    return take_record(plain_);
  }
  const auto value = line.size() > kLongestLine ? fail(Code::Protocol, "") : parse_json(line);
  if (!value || !value->is_object()) {
    ++input.skipped;
    return {};
  }
  const auto* payload = find_member(*value, "payload");
  const bool measured = payload != nullptr || find_member(*value, "job_name") != nullptr;
  if (!measured) return take_other_record(line);
  return take_entry(payload == nullptr ? *value : *payload,
                    number_or(*value, "log_time", std::nan("")));
}

Status GoodputReader::take_other_record(const std::string& line) {
  const auto record = exporter::from_json_line(line);
  if (record) return take_record(*record);
  ++input.skipped;
  return {};
}

Status GoodputReader::take_record(const telemetry::Record& record) {
  journal_ = true;
  ++input.records;
  input.last_wall = record.stamp.wall;
  input.journal.take(record);
  // What a recorder has told the agent, for --compatible.
  if (record.scope == goodput::kRecorderScope) {
    (void)input.measurements.add(goodput::entry_of(record));
  }
  if (on_record) on_record(record);
  return both();
}

Status GoodputReader::take_entry(const json::value& payload, double log_time) {
  const auto job = member_text_or(payload, "job_name", "");
  if (input.job.empty()) input.job = job;
  if (job != input.job) {
    ++input.other_jobs;
    return {};
  }
  input.measured = true;
  input.lost += static_cast<std::uint64_t>(
      std::max<std::int64_t>(member_int_or(payload, "lost_entries", 0), 0));
  if (input.measurements.add(payload, log_time)) {
    ++input.records;
  } else {
    ++input.skipped;
  }
  return both();
}

Status GoodputReader::both() const {
  if (!journal_ || !input.measured) return {};
  return fail(Code::Usage,
              "a journal of elastrun and a log of ml-goodput-measurement came together; "
              "report each by itself");
}

Status read_into(GoodputReader& reader, std::vector<std::string> paths) {
  // One alone may be a pipe, whose first line can be read once.
  if (paths.size() > 1) std::ranges::stable_sort(paths, {}, begins_at);
  for (const auto& path : paths) {
    Status status;
    if (path == "-") {
      std::ios::sync_with_stdio(false);  // else each character is a call
      status = reader.read(std::cin);
    } else {
      std::ifstream file(path, std::ios::binary);
      if (!file)
        return std::unexpected(errno_error(Code::Io, fmt::format("cannot read {}", path), errno));
      status = reader.read(file);
      if (file.bad()) return fail(Code::Io, fmt::format("cannot read {} to its end", path));
    }
    if (!status) return status;
  }
  return {};
}

Result<GoodputInput> read_goodput_files(std::vector<std::string> paths, bool history) {
  GoodputReader reader;
  if (history) reader.input.journal.keep_history();
  const auto status = read_into(reader, std::move(paths));
  if (!status) return std::unexpected(status.error());
  return std::move(reader.input);
}

}  // namespace elastrun::ctl
