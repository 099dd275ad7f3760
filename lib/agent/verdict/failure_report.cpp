// SPDX-License-Identifier: Apache-2.0
#include "agent/verdict/failure_report.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::agent {
namespace {

constexpr std::size_t kWidest = 60;
constexpr std::string_view kHint =
    "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";

bool is_signal(const workers::Failure& failure) {
  return failure.status.how == process::ExitStatus::How::Signaled;
}

std::string without_error_file(const workers::Failure& failure) {
  if (!is_signal(failure)) return std::string(kHint);
  return fmt::format("Signal {} ({}) received by PID {}", failure.status.number,
                     process::torchrun_signal_name(failure.status.number), failure.pid);
}

std::string message_of(const workers::Failure& failure) {
  if (!failure.error_file || !failure.error_file->understood) return without_error_file(failure);
  const auto& file = *failure.error_file;
  if (file.report_text().empty()) return file.plain ? without_error_file(failure) : "<N/A>";
  if (file.plain) return file.message;
  std::string indented;
  for (const char c : file.report_text()) {
    indented += c;
    if (c == '\n') indented += "  ";
  }
  return indented;
}

std::string entry(const workers::Failure& failure, std::size_t index, const std::string& host) {
  // A signal that Python has no name for is not shown here at all.
  const auto name = process::torchrun_signal_name(failure.status.number);
  const std::string signal = is_signal(failure) && name != "<N/A>" ? " (" + name + ")" : "";
  const bool has_file = failure.error_file.has_value();
  return fmt::format(
      "[{}]:\n"
      "  time      : {}\n"
      "  host      : {}\n"
      "  rank      : {} (local_rank: {})\n"
      "  exitcode  : {} (pid: {}) {}\n"
      "  error_file: {}\n"
      "  traceback : {}",
      index, format_local_time(time_of(failure)), host, failure.rank, failure.local_rank,
      failure.status.as_python(), failure.pid, signal, has_file ? failure.error_file_path : "<N/A>",
      message_of(failure));
}

std::size_t widest_line(const std::string& text) {
  std::size_t widest = 0;
  for (const auto& line : split(text, '\n')) widest = std::max(widest, line.size());
  return widest;
}

}  // namespace

std::string signal_exception(int signal) {
  return fmt::format(
      "torch.distributed.elastic.multiprocessing.api.SignalException: Process {} got signal: {}",
      ::getppid(), signal);
}

WallTime time_of(const workers::Failure& failure) {
  if (failure.error_file && failure.error_file->timestamp) {
    return WallTime(std::chrono::seconds(*failure.error_file->timestamp));
  }
  return failure.wall;
}

std::string torchrun_report(const workers::Judgement& judgement, const std::string& entry_name,
                            const std::string& host) {
  const std::string title = entry_name + " FAILED";
  std::string root, others;
  std::size_t width = title.size();
  for (std::size_t i = 0; i < judgement.failures.size(); ++i) {
    const auto text = entry(judgement.failures[i], i, host);
    width = std::max(width, widest_line(text));
    if (i == judgement.root) {
      root = text;
    } else {
      others += (others.empty() ? "" : "\n") + text;
    }
  }
  // As torch's ChildFailedError draws it: longer lines of a traceback stand out, and no border is
  // wider.
  width = std::min(width, kWidest);
  if (others.empty()) others = "  <NO_OTHER_FAILURES>";
  const std::string border(width, '='), section(width, '-');
  return fmt::format(
      "\n{}\n{}\n{}\nFailures:\n{}\n{}\nRoot Cause (first observed failure):\n{}\n{}", border,
      title, section, others, section, root, border);
}

std::string brief_report(const workers::Judgement& judgement, const std::string& entry_name) {
  constexpr std::size_t kShown = 3;
  std::string text = "\n" + entry_name + " FAILED\n";
  const auto add = [&](std::size_t i) {
    const auto& failure = judgement.failures[i];
    const auto name =
        is_signal(failure) ? process::torchrun_signal_name(failure.status.number) : "";
    text +=
        fmt::format("  [{}] rank {} (local_rank {}), exitcode {}{}{}, pid {}{}\n", i, failure.rank,
                    failure.local_rank, failure.status.as_python(), name.empty() ? "" : " ", name,
                    failure.pid, i == judgement.root ? ": root cause" : "");
  };
  add(judgement.root);
  std::size_t shown = 1;
  for (std::size_t i = 0; i < judgement.failures.size() && shown < kShown; ++i) {
    if (i != judgement.root) add(i), ++shown;
  }
  const auto more = judgement.failures.size() - shown;
  if (more > 0) text += fmt::format("  and {} more\n", more);
  return text;
}

}  // namespace elastrun::agent
