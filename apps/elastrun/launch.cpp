// SPDX-License-Identifier: Apache-2.0

#include "elastrun/launch.hpp"

#include "agent/loop/job_result.hpp"
#include "agent/round/round_store.hpp"
#include "core/error.hpp"
#include "core/file_io.hpp"
#include "core/json.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "elastrun/end_of_run.hpp"
#include "launcher/elastic_agent.hpp"
#include "launcher/job_run.hpp"
#include "launcher/rendezvous_setup.hpp"
#include "logs/layout.hpp"
#include "process/affinity.hpp"
#include "process/cgroup.hpp"
#include "process/guardian.hpp"
#include "process/spawn.hpp"
#include "rendezvous/session/handler.hpp"
#include "spec/job_spec.hpp"
#include "spec/option_help.hpp"
#include "spec/sources.hpp"
#include "store/blocking_store.hpp"
#include "system/devices.hpp"
#include "system/machine.hpp"
#include "telemetry/events.hpp"
#include "telemetry/metrics.hpp"
#include "workers/environment.hpp"

#include <algorithm>
#include <array>
#include <boost/json/parse.hpp>
#include <boost/json/value_to.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <optional>
#include <poll.h>
#include <set>
#include <signal.h>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <tuple>
#include <unistd.h>
#include <utility>

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
rendezvous::Round assumed_round(const spec::JobSpec& spec) {
  rendezvous::Round round;
  round.group_rank = spec.node_rank_given ? spec.node_rank : 0;
  round.world_size = round.role_world_size = spec.nproc_per_node * spec.max_nodes;
  round.rank_base = round.role_rank_base = round.group_rank * spec.nproc_per_node;
  return round;
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
  const auto round = assumed_round(spec);
  const rendezvous::Node node{.role = spec.role, .local_world_size = spec.nproc_per_node};
  const auto port = static_cast<std::uint16_t>(spec.master_port.value_or(0));
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
                                                  .round = round,
                                                  .node = node,
                                                  .nodes = spec.max_nodes,
                                                  .meeting = {spec.master_addr, port},
                                                  .local_rank = local_rank,
                                                  .agent_id = "<agent>",
                                                  .error_file = logs::error_file(directory),
                                                  .run_dir = directory,
                                                  .channel = base.empty() ? "" : "<channel>"});
    if (!variables) return std::unexpected(variables.error());
    text += fmt::format("\nworker {} (local rank {})\n  command      {}\n",
                        round.rank_base + local_rank, local_rank,
                        shell_line(workers::worker_command(spec, local_rank)));
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

/// Help, version, completion script or default file.
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

/// `program`, what is installed with it (elastrunctl, the Python package), and a link `torchrun` as
/// DIR/bin and DIR/share: a prefix that another container finds in PATH. Each file appears whole,
/// and over an older one also while that runs. Fails with Io.
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

/// Last part of argv[0], for usage and error lines.
std::string program_name(int argc, char** argv) {
  const std::string_view path = argc > 0 ? argv[0] : "elastrun";
  return std::string(path.substr(path.rfind('/') + 1));
}

/// From LOGLEVEL, as torchrun reads it; refuses an unknown level.
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

/// Writes to stdout, and says where it cannot. The exit code.
int print(std::string_view text) {
  const int failed = write_all(STDOUT_FILENO, text);
  if (failed == 0 || failed == EPIPE) return 0;  // a reader may have seen enough (head(1))
  write_all(STDERR_FILENO,
            fmt::format("elastrun: error: cannot write to stdout: {}\n", std::strerror(failed)));
  return kExitFailed;
}

/// Says the same of a job that runs all the same, to tell the other nodes.
void say_refusal(const spec::Refusal& refusal, const std::string& program) {
  write_all(STDERR_FILENO, spec::refusal_text(refusal, program));
  log::warning("run",
               "this node cannot take part; it meets the other nodes of the job to tell them, and "
               "waits for them as a node that can: a signal ends that");
}

/// Says on stderr why the job cannot be run. The exit code.
int refuse_job(const spec::Refusal& refusal, const std::string& program) {
  write_all(STDERR_FILENO, spec::refusal_text(refusal, program));
  // torchrun's parser errors leave no error file, those of its launcher do.
  if (refusal.exit_code == kExitFailed) hand_error_on(refusal.text);
  return refusal.exit_code;
}

/// For a job that could not begin. The exit code.
int give_up(const agent::StartFailure& failure, const std::string& program) {
  using Reason = agent::StartFailure::Reason;
  const auto& text = failure.error.text;
  write_all(STDERR_FILENO, fmt::format("{}: error: {}\n", program, text));
  hand_error_on(text);
  return failure.reason == Reason::WrongOption ? kExitUsage : kExitFailed;
}

int print_plan(const spec::JobSpec& spec, const std::string& program) {
  const auto text = dry_run_text(spec);
  if (!text) return give_up(text.error(), program);
  return print(*text);
}

/// Notes and warnings about the options, also of a dry run.
void say_warnings(const spec::Resolved& job) {
  for (const auto& note : job.notes) log::info("run", "{}", note);
  for (const auto& warning : job.warnings) log::warning("run", "{}", warning);
}

/// Says what a run does by itself or may stumble over, before it starts.
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

/// Words of a command line and names of files are bytes, and need not be UTF-8.
Result<json::value> parse_request(std::string_view line) {
  json::parse_options options;
  options.allow_invalid_utf8 = true;
  json::error_code error;
  auto value = json::parse(line, error, {}, options);
  if (error) return fail(Code::Protocol, "no valid JSON: " + error.message());
  return value;
}

/// A stream socket to the process that started this one, which is a Python program that drives it
/// as its agent (package elastrun.agent): one JSON text a line in each direction. What it says is
/// checked like all that comes from outside; a caller that does not read loses records, never the
/// result.
class Caller {
 public:
  /// Takes the descriptor. Fails with Usage unless it is a connected socket.
  static Result<Caller> take(int descriptor) {
    int type = 0;
    socklen_t size = sizeof type;
    // Looked at first: a number that a person has typed may be any descriptor, say a file that
    // would then be written to.
    if (::getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM) {
      return fail(Code::Usage,
                  fmt::format("--caller: descriptor {} is not a stream socket; the Python package "
                              "elastrun.agent gives this option, people do not",
                              descriptor));
    }
    // No process of ours is to keep it open beyond our end.
    ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    return Caller(UniqueFd(descriptor));
  }

  /// The next line. Waits without limit; fails with Closed at the end of the stream and with
  /// Protocol for what is too long or no JSON.
  Result<json::value> hear() {
    std::array<char, 65'536> bytes{};
    std::size_t end = std::string::npos;
    while ((end = heard_.find('\n')) == std::string::npos) {
      if (heard_.size() > kLongestLine) {
        return fail(Code::Protocol, "the caller's line is longer than 64 MiB");
      }
      pollfd readable{socket_.get(), POLLIN, 0};
      ::poll(&readable, 1, -1);  // the loop may have made the socket non-blocking
      // After poll(2) it may still have nothing (select(2), BUGS), and must not wait then.
      const auto count = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (count > 0) {
        heard_.append(bytes.data(), static_cast<std::size_t>(count));
      } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
        return fail(Code::Closed, "the caller has gone");
      }
    }
    const auto line = heard_.substr(0, end);
    heard_.erase(0, end + 1);
    return parse_request(line);
  }

  /// At once or, where the socket is full, with a later line; of what has waited too long, the
  /// newest is lost.
  void tell(const json::value& line) {
    auto text = python_json(line) + "\n";
    // A caller that does not read costs records and not memory; tell_last() is not bounded by it,
    // as the end has to arrive.
    if (waiting_.size() + text.size() > kBacklog) {
      ++lost_;
    } else {
      waiting_ += text;
    }
    write_some(false);
  }

  /// All that waits and then this: takes as long as the caller reads, a minute without reading at
  /// most.
  Status tell_last(const json::value& line) {
    waiting_ += python_json(line) + "\n";
    if (write_some(true)) return {};
    return fail(Code::Closed, "the process that started this job has gone, or does not read");
  }

  int descriptor() const { return socket_.get(); }
  std::uint64_t lost() const { return lost_; }

 private:
  static constexpr std::size_t kLongestLine = 64U << 20;  // both ways
  // What a caller may be behind: its handlers run between two reads of it.
  static constexpr std::size_t kBacklog = 4U << 20;
  // Its handlers run before it reads again, and one that hangs must not hold the agent for ever.
  static constexpr int kPatienceMs = 60'000;

  explicit Caller(UniqueFd socket) : socket_(std::move(socket)) {}

  bool write_some(bool waits) {
    while (!waiting_.empty()) {
      // MSG_NOSIGNAL: a caller that has gone must not end the agent by SIGPIPE, whose workers have
      // to be stopped first.
      const auto count =
          ::send(socket_.get(), waiting_.data(), waiting_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count > 0) {
        waiting_.erase(0, static_cast<std::size_t>(count));
        continue;
      }
      if (errno == EINTR) continue;
      if (errno != EAGAIN || !waits) return errno == EAGAIN;
      pollfd writable{socket_.get(), POLLOUT, 0};
      if (::poll(&writable, 1, kPatienceMs) == 0) return false;
    }
    return true;
  }

  UniqueFd socket_;
  std::string heard_;    // not yet a line
  std::string waiting_;  // not yet written
  std::uint64_t lost_ = 0;
};

using rendezvous::RendezvousInfo;

/// Maps the caller's name for what its handler has raised.
Code code_of(std::string_view kind) {
  if (kind == "closed") return Code::Closed;
  if (kind == "timeout") return Code::Timeout;
  if (kind == "graceful_exit") return Code::Cancelled;
  return Code::Rendezvous;
}

/// Null where it is missing or none.
const json::value* object_in(const json::value& value, std::string_view name) {
  const auto* member = find_member(value, name);
  return member != nullptr && member->is_object() ? member : nullptr;
}

Result<std::uint16_t> port_in(const json::value& answer) {
  const auto port = member_int_or(answer, "port", 0);
  if (port > 0 && port <= 65'535) return static_cast<std::uint16_t>(port);
  return fail(Code::Rendezvous, fmt::format("the caller's handler names the port {}", port));
}

Result<std::shared_ptr<store::BlockingStore>> store_at(const json::value& place) {
  const auto prefix = member_text_or(place, "prefix", "");
  const auto path = member_text_or(place, "path", "");
  auto store = Result<std::shared_ptr<store::BlockingStore>>();
  if (!path.empty()) {
    store = store::BlockingStore::open_file(path);
  } else if (const auto port = port_in(place)) {
    store = store::BlockingStore::connect(member_text_or(place, "host", ""), *port);
  } else {
    return std::unexpected(port.error());
  }
  if (!store || prefix.empty()) return store;
  return (*store)->within(prefix);
}

/// The rendezvous handler of a caller: a call is a line to it, and its answer the next line.
/// `backend`, `run_id`: as it said in the request.
class CallerHandler final : public rendezvous::RendezvousHandler {
 public:
  CallerHandler(Caller caller, std::string backend, std::string run_id)
      : caller_(std::move(caller)), backend_(std::move(backend)), run_id_(std::move(run_id)) {}

  std::string get_backend() const override { return backend_; }
  std::string get_run_id() const override { return run_id_; }

  Result<RendezvousInfo> next_rendezvous() override {
    const auto answer = ask("next_rendezvous");
    if (!answer) return std::unexpected(answer.error());
    use_agent_store_ = member_int_or(*answer, "use_agent_store", 0) != 0;
    RendezvousInfo info;
    info.rank = static_cast<int>(member_int_or(*answer, "rank", -1));
    info.world_size = static_cast<int>(member_int_or(*answer, "world_size", 0));
    // The handler is a program of the user: what it says becomes RANK and WORLD_SIZE of all
    // workers.
    if (info.world_size < 1 || info.rank < 0 || info.rank >= info.world_size) {
      return fail(Code::Rendezvous, fmt::format("rank {} of {} nodes", info.rank, info.world_size));
    }
    if (const auto* place = object_in(*answer, "bootstrap")) {
      const auto port = port_in(*place);
      if (!port) return std::unexpected(port.error());
      info.bootstrap_store_info = {member_text_or(*place, "host", ""), *port};
    }
    if (const auto* place = object_in(*answer, "store")) {
      auto store = store_at(*place);
      if (!store) return std::unexpected(store.error());
      info.store = std::move(*store);
    }
    return info;
  }

  bool use_agent_store() const override { return use_agent_store_; }
  bool is_closed() override { return number("is_closed") != 0; }
  Status set_closed() override {
    const auto done = ask("set_closed");
    if (!done) return std::unexpected(done.error());
    return {};
  }
  int num_nodes_waiting() override { return static_cast<int>(number("num_nodes_waiting")); }
  bool shutdown() override { return number("shutdown") != 0; }

 private:
  Result<json::value> ask(std::string_view call) {
    if (const auto told = caller_.tell_last(json::object{{"call", call}}); !told) {
      return std::unexpected(told.error());
    }
    // One question at a time, so the next line is its answer.
    auto answer = caller_.hear();
    if (!answer) return answer;
    if (const auto* said = object_in(*answer, "answer")) return *said;
    const auto* refused = object_in(*answer, "error");
    if (refused == nullptr) return fail(Code::Protocol, "the caller's answer has none");
    return fail(code_of(member_text_or(*refused, "kind", "")),
                member_text_or(*refused, "text", "the caller's handler failed"));
  }

  /// Asks one of the two calls that return no error: an exception tells it (make_session.cpp).
  std::int64_t number(std::string_view call) {
    const auto answer = ask(call);
    if (!answer) throw std::runtime_error(answer.error().text);
    return member_int_or(*answer, "value", 0);
  }

  Caller caller_;
  const std::string backend_, run_id_;
  bool use_agent_store_ = false;
};

constexpr std::string_view kOption = "--caller=";
constexpr std::string_view kHandler = "caller";

/// Metrics of the agent, for the handlers that the caller has configured.
class MetricsToCaller final : public telemetry::metrics::MetricHandler {
 public:
  explicit MetricsToCaller(Caller& caller) : caller_(caller) {}
  void emit(const telemetry::metrics::MetricData& data) override {
    json::object metric{{"time", data.timestamp}, {"group", data.group_name}, {"name", data.name}};
    if (const auto* whole = std::get_if<std::int64_t>(&data.value)) {
      metric["value"] = *whole;
    } else if (const auto* number = std::get_if<double>(&data.value)) {
      metric["value"] = *number;
    } else {
      return;
    }
    caller_.tell(json::object{{"metric", std::move(metric)}});
  }

 private:
  Caller& caller_;
};

/// Its events, as the text that torchelastic serializes them to.
class EventsToCaller final : public telemetry::events::EventHandler {
 public:
  explicit EventsToCaller(Caller& caller) : caller_(caller) {}
  void record(const telemetry::events::Event& event) override {
    caller_.tell(json::object{{"event", event.to_json()}});
  }

 private:
  Caller& caller_;
};

/// Names the exception of torchelastic by which a caller tells it.
std::string_view name_of(Code code) {
  constexpr std::array<std::string_view, 10> kNames = {
      "usage",  "spawn",   "io",     "store",    "rendezvous",
      "closed", "timeout", "signal", "internal", "internal"};  // in the order of Code
  static_assert(kNames.size() == static_cast<std::size_t>(Code::Internal) + 1);
  return kNames[static_cast<std::size_t>(code)];
}

json::object refusal_of(const Error& error) {
  return {{"kind", name_of(error.code)}, {"text", error.text}};
}

int tell_refusal(Caller& caller, const Error& error) {
  const auto told = caller.tell_last(json::object{{"ended", {{"error", refusal_of(error)}}}});
  if (!told) log::error("caller", "{}", error.text);
  return error.code == Code::Usage ? kExitUsage : kExitFailed;
}

/// CPUs that this process may run on.
int count_own_cpus() {
  const auto own = process::affinity_of(0);
  // Only where the mask cannot be read: those of the machine, also what a batch system has given to
  // others.
  return static_cast<int>(own ? std::ssize(*own) : ::sysconf(_SC_NPROCESSORS_ONLN));
}

/// The caller has decided: what a scheduler or PET_* say is for those who type a command. No device
/// but CPUs is counted, since the request has its number of workers.
struct CallersEnvironment final : spec::HostEnvironment {
  std::optional<std::string> variable(const std::string&) const override { return std::nullopt; }
  std::vector<std::string> pet_variables() const override { return {}; }
  int count_cpus() const override { return count_own_cpus(); }
};

/// Reads the words of a command line, in which most of a request is said.
Result<spec::JobSpec> read_options(std::vector<std::string> words) {
  // A line of options needs something to start; true(1) is never run, since the request has its
  // entry point. The terminal belongs to the program around us, which may draw on it, too.
  words.insert(words.end(), {"--status=off", "--no-python", "true"});
  const auto line = spec::parse_command_line(words);
  if (!line) return fail(Code::Usage, line.error().text);
  if (line->instead) return fail(Code::Usage, "options have to be of a run");
  auto job = spec::resolve(*line, CallersEnvironment());
  if (!job) return fail(Code::Usage, job.error().text);
  if (job->spec.dry_run || job->spec.explain) {
    return fail(Code::Usage, "options have to be of a run, which dry_run and explain are not");
  }
  for (const auto& warning : job->warnings) log::warning("run", "{}", warning);
  job->spec.script.clear();
  if (!job->spec.named) job->spec.name.clear();
  job->spec.limit_omp_threads = false;  // torch's agent leaves that to its launcher
  return std::move(job->spec);
}

/// Opens a pidfd of the socket's peer; empty where the kernel does not tell.
UniqueFd death_of_caller(int socket) {
  ucred other{};
  socklen_t size = sizeof other;
  // The pid of the process that made the pair of sockets (unix(7)): our parent may be a shell in
  // between. 0 is one of another pid namespace.
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &size) != 0 || other.pid <= 0) {
    return UniqueFd();
  }
  // The end of the socket alone tells too little: a child of the caller that has inherited it keeps
  // it open.
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, other.pid, 0)));
}

/// The fields of one object: takes those that are there, and remembers the first that is wrong.
class Fields {
 public:
  Fields(const json::object& object, std::string_view where) : object_(object), where_(where) {}

  template <class T>
  void take(std::string_view name, T& into) {
    const auto* value = find(name);
    if (value == nullptr || value->is_null()) return;
    auto read = json::try_value_to<T>(*value);
    if (!read) return refuse(name, "is of another type than it has to be");
    into = std::move(*read);
  }
  const json::value* find(std::string_view name) {
    known_.insert(name);
    return object_.if_contains(name);
  }
  void refuse(std::string_view name, std::string_view why) {
    // The first one: those that follow are often its consequences.
    if (!error_) error_ = Error{Code::Usage, fmt::format("{}{} {}", where_, name, why)};
  }
  Status end() {
    for (const auto& field : object_) {
      // A package that is newer than this program asks for something that would silently not
      // happen.
      if (!known_.contains(field.key())) refuse(field.key(), "is not known to this elastrun");
    }
    if (error_) return std::unexpected(*error_);
    return {};
  }

 private:
  const json::object& object_;
  const std::string_view where_;
  std::set<std::string_view> known_;
  std::optional<Error> error_;
};

/// A caller's request, in the words of elastrun-protocol(7), "A caller and its agent".
struct CallerRequest {
  spec::JobSpec job{};
  agent::OwnRendezvous own{};
  std::vector<int> inherited_fds{};
  bool wants_metrics = false, wants_events = false;
};

Status take_rendezvous(const json::value* text, CallerRequest& request) {
  if (text == nullptr) return fail(Code::Usage, "rendezvous is missing");
  const auto* object = text->if_object();
  if (object == nullptr) return fail(Code::Usage, "rendezvous has to be an object");
  Fields fields(*object, "rendezvous.");
  auto parameters = agent::parameters_of(request.job);
  std::optional<int> asked_at;
  fields.take("asked_at", asked_at);
  fields.take("backend", parameters.backend);
  fields.take("endpoint", parameters.endpoint);
  fields.take("run_id", parameters.run_id);
  fields.take("min_nodes", parameters.min_nodes);
  fields.take("max_nodes", parameters.max_nodes);
  fields.take("local_addr", parameters.local_addr);
  fields.take("node_rank", parameters.node_rank);
  fields.take("conf", parameters.conf);
  if (const auto sound = fields.end(); !sound) return sound;
  agent::meet_by(parameters, request.own.master, request.job);
  // A handler of the caller's own needs no name; it is asked over a socket that the caller gives
  // us.
  if (!asked_at) return parameters.check();
  auto asked = Caller::take(*asked_at);
  if (!asked) return std::unexpected(asked.error());
  request.own.handler =
      std::make_shared<CallerHandler>(std::move(*asked), parameters.backend, parameters.run_id);
  return {};
}

void take_program(Fields& fields, CallerRequest& request) {
  auto& job = request.job;
  fields.take("entrypoint", job.script);
  fields.take("args", job.script_args);
  if (job.script.contains('\0') ||
      std::ranges::any_of(job.script_args, [](const auto& one) { return one.contains('\0'); })) {
    fields.refuse("args", "must not have a null character, where execve(2) would cut them off");
  }
  fields.take("inherited_fds", request.inherited_fds);
  fields.take("fork_socket", job.fork_socket);
  // Up to 2 are the streams of the job.
  if (std::ranges::any_of(request.inherited_fds, [](int fd) { return fd < 3; })) {
    fields.refuse("inherited_fds", "have to be above 2");
  }
  if (job.fork_socket >= 0 && job.fork_socket < 3) {
    fields.refuse("fork_socket", "has to be above 2");
  }
}

/// Fails with Usage and names the field; unknown ones are an error, too.
Result<CallerRequest> read_request(const json::value& text) {
  const auto* object = text.if_object();
  if (object == nullptr) return fail(Code::Usage, "the caller's request has to be an object");
  Fields fields(*object, "");
  std::vector<std::string> options;
  fields.take("options", options);
  auto job = read_options(std::move(options));
  if (!job) return std::unexpected(job.error());
  CallerRequest request{.job = std::move(*job)};
  take_program(fields, request);
  double shutdown_timeout = to_seconds(request.job.shutdown_timeout);
  fields.take("shutdown_timeout", shutdown_timeout);
  constexpr double kLongest = 1e9;  // thirty years; nan is below nothing
  if (!(shutdown_timeout >= 0 && shutdown_timeout <= kLongest)) {
    fields.refuse("shutdown_timeout", "has to be a number of seconds from 0 to 1e9");
  } else {
    request.job.shutdown_timeout = from_seconds(shutdown_timeout);
  }
  fields.take("duplicate_stdout_filters", request.job.stdout_filters);
  fields.take("duplicate_stderr_filters", request.job.stderr_filters);
  fields.take("master_addr", request.own.master.master_addr);
  fields.take("master_port", request.own.master.master_port);
  fields.take("metrics", request.wants_metrics);
  fields.take("events", request.wants_events);
  const auto* rendezvous = fields.find("rendezvous");
  if (const auto sound = fields.end(); !sound) return std::unexpected(sound.error());
  if (const auto taken = take_rendezvous(rendezvous, request); !taken) {
    return std::unexpected(taken.error());
  }
  if (request.job.script.empty()) return fail(Code::Usage, "entrypoint has to name a program");
  return request;
}

void listen_for(Caller& caller, CallerRequest& request) {
  if (request.wants_metrics) {
    telemetry::metrics::configure(std::make_shared<MetricsToCaller>(caller));
  }
  if (!request.wants_events) return;
  telemetry::events::register_handler(std::string(kHandler), [&caller](const auto&) {
    return std::make_shared<EventsToCaller>(caller);
  });
  request.job.event_log_handler = kHandler;
}

json::object end_of(const agent::LocalElasticAgent& agent, const Result<agent::RunResult>& ended,
                    const spec::JobSpec& job, const Caller& caller, int& code) {
  json::object out;
  out["state"] = agent::state_name(ended ? ended->state : agent::WorkerState::Unknown);
  out["error"] = ended ? json::value(nullptr) : json::value(refusal_of(ended.error()));
  out["lost_records"] = caller.lost();
  const auto& result = agent.job_result();
  if (!result) return out;
  code = exit_code(*result, false);
  out["signal"] = result->ending.signal;
  json::array returned;
  if (ended) {
    for (const auto& [rank, worker_code] : ended->return_values) returned.emplace_back(rank);
  }
  out["returned"] = std::move(returned);
  if (auto report = parse_json(report_json(*result, job, code, {}))) out["report"] = *report;
  return out;
}

/// The descriptor in `--caller=N`, by which a program drives this one as its agent;
/// nothing in any other command line.
std::optional<int> caller_descriptor(int argc, char** argv) {
  if (argc != 2) return std::nullopt;
  const std::string_view word = argv[1];
  if (!word.starts_with(kOption)) return std::nullopt;
  const auto number = parse_int(std::string(word.substr(kOption.size())));
  // Not 0 to 2, which are the streams of the job. A wrong number is told by run_for_caller(), so
  // that the option is never taken for a script's.
  return number && *number > 2 && *number < 1 << 20 ? std::optional(static_cast<int>(*number))
                                                    : std::optional(-1);
}

/// Runs the one job that the caller asks for, and tells it what the agent tells and how the job
/// ended. Ends the job as by SIGTERM when the caller has gone. The exit code.
int run_for_caller(guardian::Agent& guardian, int descriptor) {
  auto caller = Caller::take(descriptor);
  if (!caller) {
    fmt::print(stderr, "elastrun: error: {}\n", caller.error().text);
    return kExitUsage;
  }
  const auto text = caller->hear();
  if (!text) return tell_refusal(*caller, text.error());
  auto request = read_request(*text);
  if (!request) return tell_refusal(*caller, request.error());
  if (const auto enough = process::enough_descriptors(); !enough) {
    return tell_refusal(*caller, enough.error());
  }
  // Before the agent is made, which resolves the name of the event handler.
  listen_for(*caller, *request);
  const auto death = death_of_caller(caller->descriptor());
  agent::LocalElasticAgent agent(request->job, std::move(request->own),
                                 std::move(request->inherited_fds), &guardian);
  agent.end_with({caller->descriptor(), death.get()});
  const auto ended = agent.run();
  int code = kExitFailed;
  const auto told =
      caller->tell_last(json::object{{"ended", end_of(agent, ended, request->job, *caller, code)}});
  if (!told) log::warning("caller", "{}", told.error().text);
  return code;
}

/// This machine, for `spec::resolve`.
struct ThisMachine final : spec::HostEnvironment {
  int count_cpus() const override {
    return process::cpus_within_quota(count_own_cpus(), process::own_cgroup("cpu"));
  }
  int count_gpus() const override {
    return system::count_gpus([](const char* name) { return std::getenv(name); });
  }
  int count_xpus() const override { return system::count_xpus(); }
  bool has_other_accelerators() const override { return system::has_other_accelerators(); }
  Result<spec::Accelerators> ask_torch(const std::string& interpreter,
                                       const std::string& name) const override {
    return system::ask_torch(interpreter, name);
  }
  std::string nvlink_domain() const override {
    return system::nvlink_domain(std::chrono::seconds(10));
  }
};

/// `called_as`: argv[0].
ThisMachine this_machine(std::string called_as) {
  ThisMachine around;
  around.called_as = std::move(called_as);
  around.rdzv_backends = rendezvous::registered_backends();
  around.event_handlers = telemetry::events::handler_names();
  // resolve knows these two by itself.
  std::erase_if(around.event_handlers,
                [](const auto& name) { return name == "null" || name == "console"; });
  return around;
}

int run_job(guardian::Agent& guardian, int argc, char** argv) {
  const auto program = program_name(argc, argv);
  // First, because all that follows may log.
  if (const auto refused = set_log_level()) return refuse_job(*refused, program);
  if (const auto caller = caller_descriptor(argc, argv)) return run_for_caller(guardian, *caller);
  const auto line =
      // argc may be 0: Linux before 5.18 lets execve(2) start a program without any argument.
      spec::parse_command_line(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
  if (!line) return refuse_job(line.error(), program);
  const auto around = this_machine(argc > 0 ? argv[0] : "");
  using spec::operator""_opt;
  if (line->instead == "install-into"_opt) {
    const auto done = install_into(line->argument, around.own_program());
    return done ? 0 : give_up(done.error(), program);
  }
  if (line->instead) return print(answer_to(*line, program));
  const auto job = spec::resolve(*line, around);
  if (!job) return refuse_job(job.error(), program);
  if (job->spec.explain && print(spec::explain_text(*job)) != 0) return kExitFailed;
  // Before the first line of this run: what parses the log gets no other form in between.
  if (job->spec.json_log) log::set_format(log::Format::Json);
  say_warnings(*job);
  if (job->spec.dry_run) return print_plan(job->spec, program);
  say_start(*job);
  if (job->refusal) say_refusal(*job->refusal, program);
  // Before anything is opened, so that it fails here with advice and not in the middle of a start.
  if (const auto enough = process::enough_descriptors(); !enough) {
    return give_up(enough.error(), program);
  }
  auto run = agent::JobRun::make(job->spec, guardian);
  if (!run) return give_up(run.error(), program);
  (*run)->tell_process();
  const auto result = (*run)->run();
  return end_of_run(result, job->spec, **run);
}

/// They must not end the agent, which listens to them as soon as it knows the job. Workers
/// start with none blocked.
void hold_passing_signals() {
  sigset_t passing;
  ::sigemptyset(&passing);
  ::sigaddset(&passing, SIGUSR1);
  ::sigaddset(&passing, SIGUSR2);
  ::sigprocmask(SIG_BLOCK, &passing, nullptr);
}

}  // namespace

int launch(int argc, char** argv) {
  auto guardian = guardian::split();
  return launch(guardian, argc, argv);
}

int launch(guardian::Agent& guardian, int argc, char** argv) {
  hold_passing_signals();
  return run_job(guardian, argc, argv);
}

}  // namespace elastrun
