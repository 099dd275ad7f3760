// SPDX-License-Identifier: Apache-2.0
#include "core/host_name.hpp"
#include "core/text.hpp"
#include "export/tensorboard.hpp"
#include "goodput_conversions.hpp"
#include "goodput_output.hpp"
#include "subcommands.hpp"

#include <filesystem>
#include <fmt/format.h>
#include <unistd.h>

namespace elastrun::ctl {
namespace {

namespace fs = std::filesystem;

/// Nothing for standard output.
std::string output_of(const ConvertOptions& options) {
  std::error_code none;
  if (options.to != "tensorboard" || !fs::is_directory(options.output, none)) return options.output;
  return (fs::path(options.output) / exporter::tensorboard_file_name(
                                         std::chrono::system_clock::now(), host_name(), ::getpid()))
      .string();
}

Status convert(const ConvertOptions& options, GoodputOutput& file) {
  const auto conversion = conversion_to(options.to);
  GoodputReader reader;
  reader.input.journal.keep_history();
  auto status = file.write(conversion->begin());
  reader.on_record = [&](telemetry::Record record) {
    if (status) status = file.write(conversion->record(std::move(record), reader.input));
  };
  reader.on_entry = [&](const json::object& entry, double log_time) {
    if (status) status = file.write(conversion->entry(entry, log_time, reader.input));
  };
  if (const auto read = read_into(reader, options.files); !read) return read;
  if (!status) return status;
  if (options.to == "journal" && !reader.input.measured && reader.input.records > 0) {
    return fail(Code::Usage, "what is to be converted is a journal already");
  }
  const auto answer = answer_of(reader.input, false);
  if (!answer) return std::unexpected(answer.error());
  status = file.write(conversion->end(reader.input, *answer));
  return status ? file.finish() : status;
}

}  // namespace

int run_goodput_convert(const ConvertOptions& options) {
  const auto path = output_of(options);
  if (path.empty() && options.to == "tensorboard" && ::isatty(STDOUT_FILENO) == 1) {
    return report_error("an event file is nothing for a terminal: name a file or directory with -o",
                        kExitUsage);
  }
  std::error_code none;
  for (const auto& input : options.files) {
    // What is written would replace what it was made of.
    if (!path.empty() && fs::equivalent(input, path, none)) {
      return report_error(fmt::format("{} is what is to be converted", path), kExitUsage);
    }
  }
  auto file = GoodputOutput::open(path);
  if (!file) return report_error(file.error().text, kExitFailed);
  const auto status = convert(options, **file);
  return status ? kExitDone : report_error(status.error().text, kExitFailed);
}

}  // namespace elastrun::ctl
