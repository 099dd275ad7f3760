// SPDX-License-Identifier: Apache-2.0
#include "start_of_run.hpp"

#include "command_line.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "core/write_all.hpp"
#include "dry_run.hpp"
#include "exit_code.hpp"
#include "report.hpp"
#include "report_json.hpp"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace elastrun {
namespace {

int terminal_columns() {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  // Without a terminal what argparse takes, too.
  return known ? size.ws_col : 80;
}

constexpr std::string_view kStars = "*****************************************";

}  // namespace

std::string program_name(int argc, char** argv) {
  const std::string_view path = argc > 0 ? argv[0] : "elastrun";
  return std::string(path.substr(path.rfind('/') + 1));
}

std::optional<spec::Refusal> set_log_level() {
  using log::Level;
  // The names and numbers of Python's logging.
  constexpr std::array<std::tuple<std::string_view, Level, int>, 8> kLevels{{
      {"notset", Level::Debug, 0},
      {"debug", Level::Debug, 10},
      {"info", Level::Info, 20},
      {"warning", Level::Warning, 30},
      {"warn", Level::Warning, 30},
      {"error", Level::Error, 40},
      {"critical", Level::Critical, 50},
      {"fatal", Level::Critical, 50},
  }};
  const char* text = std::getenv("LOGLEVEL");
  const std::string given = to_lower(trim(text == nullptr ? "" : text));
  if (given.empty()) return std::nullopt;
  const auto number = parse_int(given);
  for (const auto& [name, level, least] : kLevels) {
    // A number between two levels lets through what the upper one does.
    if (number ? *number > least && least != 50 : name != given) continue;
    log::set_level(level);
    return std::nullopt;
  }
  spec::Refusal refusal;
  // The words of Python's logging, with which torchrun ends.
  refusal.text = fmt::format("Unknown level: '{}'", text);
  refusal.exit_code = kExitFailed;
  refusal.hint = "LOGLEVEL is one of DEBUG, INFO, WARNING, ERROR, CRITICAL, or a number";
  return refusal;
}

int print(std::string_view text) {
  const int failed = write_all(STDOUT_FILENO, text);
  if (failed == 0 || failed == EPIPE) return 0;  // a reader may have seen enough (head(1))
  write_all(STDERR_FILENO,
            fmt::format("elastrun: error: cannot write to stdout: {}\n", std::strerror(failed)));
  return kExitFailed;
}

void say_refusal(const spec::Refusal& refusal, const std::string& program) {
  write_all(STDERR_FILENO, refusal_text(refusal, program));
  log::warning("run",
               "this node cannot take part; it meets the other nodes of the job to tell them, and "
               "waits for them as a node that can: a signal ends that");
}

int refuse(const spec::Refusal& refusal, const std::string& program) {
  write_all(STDERR_FILENO, refusal_text(refusal, program));
  // torchrun's parser errors leave no error file, those of its launcher do.
  if (refusal.exit_code == kExitFailed) hand_error_on(refusal.text);
  return refusal.exit_code;
}

int answer(const spec::CommandLine& line, const std::string& program) {
  return print(answer_to(line, program, terminal_columns()));
}

int print_plan(const spec::JobSpec& spec, const std::string& program) {
  const auto text = dry_run_text(spec);
  if (!text) return give_up(text.error(), program);
  return print(*text);
}

int give_up(const agent::StartFailure& failure, const std::string& program) {
  using Reason = agent::StartFailure::Reason;
  const auto& text = failure.error.text;
  write_all(STDERR_FILENO, fmt::format("{}: error: {}\n", program, text));
  hand_error_on(text);
  return failure.reason == Reason::WrongOption ? kExitUsage : kExitFailed;
}

void say_warnings(const spec::Resolved& job) {
  for (const auto& note : job.notes) log::info("run", "{}", note);
  for (const auto& warning : job.warnings) log::warning("run", "{}", warning);
}

void say_start(const spec::Resolved& job) {
  const auto& report = job.spec.report_file;
  // At the start, when it can be mended, and not after days at the end.
  if (const auto trouble = trouble_with_report(report); !report.empty() && !trouble.empty()) {
    log::warning("report", "{}", trouble);
  }
  if (job.spec.limit_omp_threads) {
    log::warning("run",
                 "\n{}\nSetting OMP_NUM_THREADS environment variable for each process to be 1: {} "
                 "of them share this machine, and by default each would start a thread for every "
                 "core. Set the variable yourself if your job is faster with more.\n{}",
                 kStars, job.spec.nproc_per_node, kStars);
  }
}

}  // namespace elastrun
