// SPDX-License-Identifier: Apache-2.0

#include "elastrun/start_of_run.hpp"

#include "agent/round/round_store.hpp"
#include "core/file_io.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "elastrun/end_of_run.hpp"
#include "launcher/workers/binding.hpp"
#include "logs/layout.hpp"
#include "process/affinity.hpp"
#include "report_json.hpp"
#include "spec/option_help.hpp"
#include "spec/sources.hpp"
#include "workers/environment.hpp"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <tuple>
#include <unistd.h>

#ifndef ELASTRUN_VERSION  // CMake gives the project's
#define ELASTRUN_VERSION "of an unknown version"
#endif
#ifndef ELASTRUN_OPENSSL
#define ELASTRUN_OPENSSL "of an unknown version"
#endif

namespace elastrun {
namespace {

namespace fs = std::filesystem;

std::unexpected<Error> cannot(const fs::path& path, const std::error_code& error) {
  return fail(Code::Io,
              fmt::format("--install-into: cannot make {}: {}", path.string(), error.message()));
}

/// Under another name first: a pod that was started again may run what is there.
template <class Make>
Status put(const fs::path& to, Make make) {
  fs::path draft = to;
  draft += fmt::format(".{}", ::getpid());
  std::error_code error, ignored;
  // One that was killed may have had this number.
  fs::remove(draft, ignored);
  make(draft, error);
  // In one step; to write into a program that runs fails with ETXTBSY (open(2)).
  if (!error) fs::rename(draft, to, error);
  if (!error) return {};
  fs::remove(draft, ignored);
  return cannot(to, error);
}

Status put_copy(const fs::path& from, const fs::path& to) {
  return put(to, [&from](const fs::path& draft, std::error_code& error) {
    fs::copy_file(from, draft, error);
    // For the user of the other container, whatever the umask and the user of this one.
    constexpr auto kReadable = fs::perms::group_read | fs::perms::others_read;
    if (!error) fs::permissions(draft, kReadable, fs::perm_options::add, error);
  });
}

/// Each folder that is new can be entered by that user, too.
Status make_folder(const fs::path& path) {
  std::error_code error;
  if (path.empty() || fs::is_directory(path, error)) return {};
  if (auto done = make_folder(path.parent_path()); !done) return done;
  if (fs::create_directory(path, error)) {
    constexpr auto kOpen = fs::perms::group_read | fs::perms::group_exec | fs::perms::others_read |
                           fs::perms::others_exec;
    fs::permissions(path, kOpen, fs::perm_options::add, error);
  }
  if (error) return cannot(path, error);
  return {};
}

/// Copies the package without what Python has compiled meanwhile.
Status copy_package(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (auto done = make_folder(to); !done) return done;
  for (const auto& entry : fs::directory_iterator(from, error)) {
    const auto name = entry.path().filename();
    // Bytecode is of the Python that wrote it, and each writes it anyway.
    if (name == "__pycache__") continue;
    const auto done = entry.is_directory() ? copy_package(entry.path(), to / name)
                                           : put_copy(entry.path(), to / name);
    if (!done) return done;
  }
  if (error) return cannot(to, error);
  return {};
}

/// The word as a shell would need it.
std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string shell_line(const std::vector<std::string>& argv) {
  std::string line;
  for (const auto& word : argv) line += (line.empty() ? "" : " ") + quoted(word);
  return line;
}

std::string streams_text(const spec::JobSpec& spec, int local_rank) {
  constexpr std::string_view kNames[] = {"none", "stdout", "stderr", "stdout and stderr"};
  return fmt::format("redirected: {}; tee: {}", kNames[spec.redirects.of(local_rank) & 3],
                     kNames[spec.tee.of(local_rank) & 3]);
}

/// The world as it would be if this node were alone, or the first of equal ones.
workers::Placement assumed_placement(const spec::JobSpec& spec) {
  workers::Placement place;
  place.local_world_size = spec.nproc_per_node;
  place.group_world_size = spec.max_nodes;
  place.group_rank = spec.node_rank_given ? spec.node_rank : 0;
  place.world_size = place.role_world_size = spec.nproc_per_node * spec.max_nodes;
  place.rank_base = place.role_rank_base = place.group_rank * spec.nproc_per_node;
  place.role = spec.role;
  place.master_addr = spec.master_addr;
  place.master_port = static_cast<std::uint16_t>(spec.master_port.value_or(0));
  return place;
}

std::string counted(int count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string nodes_text(const spec::JobSpec& spec) {
  const auto most = counted(spec.max_nodes, "node");
  return spec.min_nodes == spec.max_nodes ? most : fmt::format("{} to {}", spec.min_nodes, most);
}

/// Tells what would be started, worker by worker, as far as it is known before a rendezvous:
/// command, what the environment gets, directories, binding. Makes and starts nothing.
Result<std::string> dry_run_text(const spec::JobSpec& spec) {
  const auto layout = logs::Layout::plan(spec.log_dir, spec.directory_name());
  if (!layout) return std::unexpected(layout.error());
  const auto place = assumed_placement(spec);
  const auto environment = workers::own_environment();
  const std::string base =
      layout->is_null() ? "" : (spec.log_dir.empty() ? "<temporary>" : spec.log_dir);
  std::string text = fmt::format(
      "job {}: {}, {}{}, {}\n"
      "rendezvous: {} at {}\n",
      spec.name, nodes_text(spec), counted(spec.nproc_per_node, "worker"),
      spec.max_nodes == 1 ? "" : " on each", counted(spec.max_restarts, "restart"),
      spec.rdzv_backend, spec.rdzv_endpoint);
  agent::Binding binding(spec);
  for (int local_rank = 0; local_rank < spec.nproc_per_node; ++local_rank) {
    const std::string directory = base.empty() ? ""
                                               : fmt::format("{}/{}_<random>/attempt_0/{}", base,
                                                             spec.directory_name(), local_rank);
    const auto variables =
        workers::contract_variables(environment, {.job = spec,
                                                  .place = place,
                                                  .local_rank = local_rank,
                                                  .agent_id = "<agent>",
                                                  .error_file = logs::error_file(directory),
                                                  .run_dir = directory,
                                                  .channel = base.empty() ? "" : "<channel>"});
    if (!variables) return std::unexpected(variables.error());
    text +=
        fmt::format("\nworker {} (local rank {})\n  command      {}\n", place.rank_of(local_rank),
                    local_rank, shell_line(workers::worker_command(spec, local_rank)));
    text += fmt::format("  directory    {}\n  streams      {}\n",
                        directory.empty() ? "none" : directory, streams_text(spec, local_rank));
    const auto cpus = binding.cpus(local_rank);
    if (!cpus) return std::unexpected(cpus.error());
    text += fmt::format("  binding      {}\n",
                        cpus->empty() ? "none" : "CPUs " + process::format_cpus(*cpus));
    for (const auto& variable : *variables) text += fmt::format("  environment  {}\n", variable);
    for (const auto& [name, value] : spec.worker_env) {
      if (!workers::is_secret(name, value))
        text += fmt::format("  environment  {}={}\n", name, value);
    }
  }
  return text;
}

int terminal_columns() {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  // Without a terminal what argparse takes, too.
  return known ? size.ws_col : 80;
}

std::string answer_to(const spec::CommandLine& line, const std::string& program) {
  using spec::operator""_opt;
  if (line.instead == "help"_opt) {
    return line.argument == "-h" ? spec::brief_help(program)
                                 : spec::help_text(program, terminal_columns());
  }
  if (line.instead == "version"_opt)
    return fmt::format("elastrun {} (OpenSSL {})\n", ELASTRUN_VERSION, ELASTRUN_OPENSSL);
  if (line.instead == "print-completion"_opt)
    return spec::completion_script(line.argument, spec::elastrun_commands());
  return spec::default_config();
}

constexpr std::string_view kStars = "*****************************************";

}  // namespace

Status install_into(const std::string& folder, const std::string& program) {
  const fs::path bin = fs::path(folder) / "bin", own = program;
  std::error_code error;
  if (auto done = make_folder(bin); !done) return done;
  if (fs::equivalent(bin, own.parent_path(), error)) {
    return fail(Code::Usage, fmt::format("--install-into {}: this program is there", folder));
  }
  if (auto done = put_copy(own, bin / "elastrun"); !done) return done;
  const auto beside = own.parent_path() / "elastrunctl";
  if (fs::exists(beside, error)) {
    if (auto done = put_copy(beside, bin / "elastrunctl"); !done) return done;
  }
  const auto package = own.parent_path().parent_path() / "share/elastrun/python";
  if (fs::exists(package, error)) {
    if (auto done = copy_package(package, fs::path(folder) / "share/elastrun/python"); !done) {
      return done;
    }
  }
  // Relative, since the folder has another path in the container that uses it.
  return put(bin / "torchrun", [](const fs::path& draft, std::error_code& why) {
    fs::create_symlink("elastrun", draft, why);
  });
}

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
  write_all(STDERR_FILENO, spec::refusal_text(refusal, program));
  log::warning("run",
               "this node cannot take part; it meets the other nodes of the job to tell them, and "
               "waits for them as a node that can: a signal ends that");
}

int refuse(const spec::Refusal& refusal, const std::string& program) {
  write_all(STDERR_FILENO, spec::refusal_text(refusal, program));
  // torchrun's parser errors leave no error file, those of its launcher do.
  if (refusal.exit_code == kExitFailed) hand_error_on(refusal.text);
  return refusal.exit_code;
}

int answer(const spec::CommandLine& line, const std::string& program) {
  return print(answer_to(line, program));
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
