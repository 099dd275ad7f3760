// SPDX-License-Identifier: Apache-2.0

#include "core/file_io.hpp"
#include "core/text.hpp"
#include "spec/agreed_rules.hpp"
#include "spec/job_spec.hpp"
#include "spec/option_values.hpp"
#include "spec/sources.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace elastrun::spec {

namespace {

using Refused = std::optional<Refusal>;

bool has_slash(const std::string& name) {
  return name.find('/') != std::string::npos;
}

constexpr double kLongestSave = 366.0 * 86400;  // seconds
constexpr std::size_t kLongestNames = 2000;     // of what travels with each join

constexpr std::string_view kVariable = "PYTHONPATH";
// Below the folder of the program. Never site-packages itself: a folder of PYTHONPATH comes before
// those of the worker's own Python, and would bring other packages along.
constexpr std::array<std::string_view, 2> kPlaces = {"../share/elastrun/python",
                                                     "../../../lib/python"};

constexpr std::size_t kLongestName = 100;

std::string_view name_of_script(std::string_view script) {
  while (script.ends_with('/')) script.remove_suffix(1);
  script.remove_prefix(script.rfind('/') + 1);
  if (script.ends_with(".py")) script.remove_suffix(3);
  return script;
}

constexpr std::int64_t kMostSpares = 4096;

Refusal missing_script() {
  return {
      "the following arguments are required: training_script, training_script_args", {}, 2, true};
}

struct Found {
  std::string address, source;

  void add(const std::string& level, std::string_view from) {
    if (level.empty()) return;
    address += (address.empty() ? "" : ".") + level;
    source += (source.empty() ? "" : ", ") + std::string(from);
  }
};

template <class Names>
bool contains(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || host.starts_with("127.");
}

class Resolver {
 public:
  Resolver(const CommandLine& line, const HostEnvironment& around) : line_(line), around_(around) {}

  Answer<Resolved> run() {
    // The order counts: the name comes before the scheduler, whose id would become it; nodes and
    // workers are counted before ranks and backends are compared with them. Then how the nodes
    // meet, by torchrun's rules: the backend says which keys count, and one of the keys what an
    // endpoint is. What these rules drop although it was given is a warning; what they decide is
    // written into the values as implied.
    for (const auto step : {&Resolver::collect,
                            &Resolver::take_script,
                            &Resolver::name,
                            &Resolver::ask_scheduler,
                            &Resolver::count_nodes,
                            &Resolver::take_plain_fields,
                            &Resolver::limit_hang,
                            &Resolver::take_signals,
                            &Resolver::take_restart_rules,
                            &Resolver::take_role_restarts,
                            &Resolver::take_preempt_timeout,
                            &Resolver::take_preempt_signals,
                            &Resolver::count_workers,
                            &Resolver::apply_single_node_rules,
                            &Resolver::take_backend,
                            &Resolver::read_conf,
                            &Resolver::check_empty_place,
                            &Resolver::decide_endpoint,
                            &Resolver::check_node_rank,
                            &Resolver::check_meeting_place,
                            &Resolver::warn_of_local_addr,
                            &Resolver::check_role_restarts,
                            &Resolver::replace_empty_id,
                            &Resolver::take_topology,
                            &Resolver::take_logs,
                            &Resolver::take_metrics,
                            &Resolver::check_event_handler,
                            &Resolver::choose_mode,
                            &Resolver::take_fork_server,
                            &Resolver::take_worker_library}) {
      (this->*step)();
      if (refused_) return std::unexpected(std::move(*refused_));
    }
    out_.notes.insert(out_.notes.begin(),
                      fmt::format("Using nproc_per_node={}.", text("nproc-per-node"_opt)));
    return std::move(out_);
  }

 private:
  /// The step that refuses is the last one.
  void refuse(Refusal refusal) { refused_ = std::move(refusal); }
  void refuse(std::string text, std::string hint) {
    refuse(Refusal{std::move(text), std::move(hint)});
  }
  /// In torchrun's words, with where the value of the option comes from.
  void refuse(Opt id, std::string text, std::string hint = {}) {
    refuse(placed(launcher_refusal(std::move(text), std::move(hint)), values_[id]));
  }

  const std::string& text(Opt id) const { return values_[id].text; }
  bool is_on(Opt id) const { return values_.is_on(id); }
  void warn(std::string warning) { out_.warnings.push_back(std::move(warning)); }

  std::vector<std::string> candidates(const std::string& name) {
    return program_candidates(name, around_.variable("PATH"));
  }

  /// The first executable file of that name in PATH, or the name itself if it has a slash and is
  /// one.
  std::optional<std::string> find_program(const std::string& name) {
    for (const auto& path : candidates(name)) {
      if (around_.is_executable(path)) return path;
    }
    return std::nullopt;
  }

  Refusal cannot_run(std::string_view what, const std::string& name, std::string hint) {
    // execvp(3) ends with EACCES where a file is there and cannot be run, and with ENOENT else: the
    // two need different advice.
    const auto paths = candidates(name);
    const bool there =
        std::ranges::any_of(paths, [&](const auto& path) { return around_.exists(path); });
    if (there) {
      return launcher_refusal(
          fmt::format("cannot run the {} {}: Permission denied", what, in_quotes(name)),
          "it is not an executable file (chmod +x)");
    }
    return launcher_refusal(
        fmt::format("cannot run the {} {}: No such file or directory", what, in_quotes(name)),
        std::move(hint));
  }

  /// The interpreter of the folder that this program was called in: torchrun, installed in a
  /// virtual environment and called by its path (cron, systemd), runs that one's Python. A folder
  /// of PATH counts only if it is an environment's: /usr/bin/elastrun serves whatever environment
  /// is active. That is so too when the caller has looked it up in PATH before: srun(1) calls by
  /// the whole path.
  std::optional<std::string> beside_us() {
    const auto& called = around_.called_as;
    if (called.empty()) return std::nullopt;
    const auto found = find_program(called.substr(called.rfind('/') + 1));
    const auto program = has_slash(called) ? called : found.value_or("");
    if (!has_slash(program)) return std::nullopt;
    const auto folder = program.substr(0, program.rfind('/'));
    const bool is_environment =
        around_.exists(folder + "/../pyvenv.cfg") || around_.exists(folder + "/../conda-meta");
    if (program == found && !is_environment) return std::nullopt;
    for (const char* name : {"/python3", "/python"}) {
      if (around_.is_executable(folder + name)) return folder + name;
    }
    return std::nullopt;
  }

  /// The kernel takes the CR for a part of the interpreter's name or of its argument.
  void check_first_line(const std::string& path) {
    // execve(2) reads no more of it (BINPRM_BUF_SIZE, since Linux 5.1).
    const auto start = around_.read_file(path, 256).value_or("");
    const auto line = start.substr(0, start.find('\n') + 1);
    // execve(2) then fails with ENOENT, for an interpreter called "python3\r", and the script seems
    // to be missing.
    if (!line.starts_with("#!") || !line.ends_with("\r\n")) return;
    warn(
        fmt::format("the first line of {}, {}, ends in CR LF, as Windows writes it, and the kernel "
                    "takes the CR for a part of it; convert the file: sed -i 's/\\r$//' {}",
                    in_quotes(path), in_quotes(line.substr(0, line.size() - 2)), path));
  }

  void check_script() {
    // The interpreter of PYTHON_EXEC may mean something else by its argument; `$local_rank` is not
    // replaced yet.
    const bool is_path = job_.mode == Mode::Script || job_.mode == Mode::RunPath;
    if (!is_path || job_.script == "-" || job_.interpreter_given ||
        job_.script.find('$') != std::string::npos || around_.exists(job_.script)) {
      return;
    }
    const auto name = job_.script.substr(job_.script.rfind('/') + 1);
    const bool is_python = name.starts_with("python") && !name.ends_with(".py");
    warn(fmt::format("the script {} does not exist{}{}", in_quotes(job_.script),
                     job_.script.starts_with('/') ? "" : " in the current directory",
                     is_python ? "; elastrun starts Python itself: leave out " + job_.script : ""));
  }

  /// A pipe gives each of its bytes to one reader, and readers of one open file go on where another
  /// one is: with several workers each would run a part of the script, or nothing.
  Refused check_input() const {
    const bool is_path = job_.mode == Mode::Script || job_.mode == Mode::RunPath;
    std::error_code error;
    const bool is_input = job_.mode == Mode::Script && job_.script == "-";
    const bool is_pipe = is_path && std::filesystem::is_fifo(job_.script, error);
    if (job_.nproc_per_node == 1 || (!is_input && !is_pipe)) return std::nullopt;
    return Refusal{
        fmt::format("the script {} is {}, which only one of the {} workers of this node "
                    "could read",
                    job_.script, is_input ? "standard input" : "a pipe", job_.nproc_per_node),
        "give elastrun a file, or --nproc-per-node 1"};
  }

  /// Fills `job_.interpreter`: PYTHON_EXEC as it is, else one beside the program that was called,
  /// else python3 of PATH, else that of the active virtual environment, else python of PATH.
  /// Refuses, with exit code 1 as torchrun, one that is missing or not executable.
  Refused find_interpreter() {
    if (const auto given = around_.variable("PYTHON_EXEC")) {
      job_.interpreter_given = true;
      job_.interpreter = *given;
      if (given->empty()) {
        return launcher_refusal("PYTHON_EXEC is empty", "unset it, or name a Python interpreter");
      }
      if (find_program(*given)) return std::nullopt;
      return cannot_run("interpreter", *given,
                        "it is named by PYTHON_EXEC; correct or unset the variable");
    }
    // PATH before VIRTUAL_ENV: an active environment is first in PATH anyway, and where it is not,
    // the user has put something before it.
    if (auto path = beside_us()) {
      job_.interpreter = *path;
    } else if (auto first = find_program("python3")) {
      job_.interpreter = *first;
    } else if (const auto active = around_.variable("VIRTUAL_ENV").value_or("") + "/bin/python3";
               active != "/bin/python3" && around_.is_executable(active)) {
      job_.interpreter = active;
    } else if (auto last = find_program("python")) {
      job_.interpreter = *last;
    } else {
      return launcher_refusal(
          "no python3 and no python in PATH: No such file or directory",
          "activate a virtual environment, set PYTHON_EXEC, or use --no-python");
    }
    return std::nullopt;
  }

  /// The interpreter for the modes that need one, else the program (--no-python), which is refused
  /// likewise. A missing script is a warning: Python itself says so too, and the job ends as with
  /// torchrun.
  Refused find_programs() {
    if (job_.mode == Mode::Program) {
      if (const auto path = find_program(job_.script)) {
        check_first_line(*path);
        return std::nullopt;
      }
      return cannot_run("program", job_.script,
                        has_slash(job_.script)
                            ? "the path is relative to the current directory"
                            : "it is not in PATH; write ./NAME for a file of this directory");
    }
    if (auto refusal = check_input()) return refusal;
    if (auto refusal = find_interpreter()) return refusal;
    check_script();
    return std::nullopt;
  }

  /// Names the job for people: --name, else the --rdzv-id that was given, else the script's name
  /// without `.py`, or the module's. Refuses (exit code 2) a --name that cannot be shown on a line
  /// or be a part of a file name.
  void name() {
    const auto& given = values_["name"_opt];
    job_.name = given.text;
    // It becomes a part of file names, and stands in tables and on terminals, where control
    // characters do harm.
    if (job_.name.size() > kLongestName || job_.name.contains('/') ||
        printable(job_.name) != job_.name) {
      return refuse(
          fmt::format("{}: {} cannot be the name of a job", given.source,
                      in_quotes(printable(job_.name))),
          fmt::format("at most {} bytes of UTF-8, without / and control characters", kLongestName));
    }
    job_.named = !job_.name.empty();
    if (job_.named) return;
    const auto& id = values_["rdzv-id"_opt];
    // Its default, given in full, names no job.
    const bool has_id =
        values_.is_given(id.id) && !id.text.empty() && id.text != row(id.id).fallback;
    if (has_id) {
      job_.name = id.text;
    } else {
      job_.name = is_on("module"_opt) ? job_.script : name_of_script(job_.script);
      if (job_.name.empty()) job_.name = "job";
    }
    values_.imply("name"_opt, job_.name, has_id ? "implied by --rdzv-id" : "implied by the script");
  }

  void take_restart_rules() {
    const auto& given = values_["restart-rule"_opt];
    job_.restart_rule = given.listed ? join(given.items, ",") : given.text;
    const auto rules = parse_restart_rules(job_.restart_rule);
    if (rules) return;
    refuse(fmt::format("{}: {}", given.source, rules.error().text),
           "elastrun-restarts(7) has the rules");
  }

  /// "generator=own". The names in one order, since all agents have to say the same.
  void take_role_restarts() {
    const auto& given = values_["role-restart"_opt];
    std::map<std::string, bool> own;
    for (const auto& item : given.listed ? given.items : split(given.text, ',')) {
      const auto text = trim(item);
      if (text.empty()) continue;
      const auto at = std::min(text.rfind('='), text.size());
      const std::string name(trim(text.substr(0, at)));
      const auto whom = text.substr(std::min(at + 1, text.size()));
      if (name.empty() || name.contains(',') || (whom != "own" && whom != "all")) {
        return refuse(fmt::format("{}: '{}' does not say whom a role restarts", given.source, text),
                      "expected ROLE=own (the agents with that --role alone) or ROLE=all (every "
                      "agent, as without it)");
      }
      own[name] = whom == "own";
    }
    std::erase_if(own, [](const auto& one) { return !one.second; });
    std::vector<std::string> names;
    for (const auto& [name, alone] : own) names.push_back(name);
    job_.role_restart = join(names, ",");
    if (job_.role_restart.size() <= kLongestNames) return;
    refuse(fmt::format("{}: the names of the roles are longer than {} bytes together", given.source,
                       kLongestNames),
           "use shorter names");
  }

  void take_preempt_timeout() {
    const auto& given = values_["preempt-timeout"_opt];
    if (given.text.empty()) return;
    const auto seconds = parse_float(given.text);
    if (!seconds || !(*seconds > 0) || *seconds > kLongestSave) {
      return refuse(fmt::format("{}: {} is not a time to save in", given.source, given.text),
                    "expected a number of seconds above 0");
    }
    job_.preempt_timeout = from_seconds(*seconds);
  }

  /// A signal that preempts is handled, and passed on to no worker.
  void take_preempt_signals() {
    if (values_.is_given("preempt-signals"_opt)) {
      job_.preempt_signals = parse_signals(values_["preempt-signals"_opt], out_.warnings);
    }
    for (const auto& name : job_.preempt_signals) {
      std::erase(job_.forward_signals, name);
      if (std::ranges::count(job_.signals_to_handle, name) == 0)
        job_.signals_to_handle.push_back(name);
    }
  }

  /// Empty if it is in none of the places, which are in `tried` then.
  std::string find_package(std::string& tried) {
    const std::filesystem::path folder = std::filesystem::path(around_.own_program()).parent_path();
    for (const auto place : kPlaces) {
      const std::string path = (folder / place).lexically_normal().string();
      if (around_.exists(path + "/elastrun/channel.py")) return path;
      tried += (tried.empty() ? "" : " and ") + path;
    }
    return {};
  }

  /// --worker-lib and --goodput auto: appends the folder of the Python package that came with this
  /// program to PYTHONPATH of the workers. Refused if there is none beside the program: below
  /// PREFIX/share/elastrun/python (cmake --install, wheel), or in the source tree of a build. With
  /// --goodput auto a folder comes before all others from which Python starts the hooks into torch.
  void take_worker_library() {
    const bool hooks = job_.goodput == Goodput::Auto;
    if (!is_on("worker-lib"_opt) && !hooks) return;
    std::string tried;
    const auto found = find_package(tried);
    if (found.empty()) {
      return refuse(
          fmt::format("{}: the Python package elastrun is not beside this program",
                      hooks ? "--goodput auto" : "--worker-lib"),
          fmt::format("looked in {}; install it with cmake --install or pip, or leave the "
                      "option away and set PYTHONPATH",
                      tried));
    }
    // Last: what the user has there is found first.
    auto& variable = job_.worker_env[std::string(kVariable)];
    if (variable.empty()) variable = around_.variable(std::string(kVariable)).value_or("");
    variable += (variable.empty() ? "" : ":") + found;
    // First: the sitecustomize there, which calls the one that it hides.
    if (hooks) variable = found + "/elastrun/start:" + variable;
    job_.worker_lib = true;
  }

  void collect() {
    for (const auto& given : line_.given) values_.offer(given);
    const bool has_file =
        // The variable is asked for here, because all of them are read only after these refusals.
        values_.is_given("config"_opt) || around_.variable("PET_CONFIG").has_value();
    // Before unknown words are told, as argparse does: it looks for required arguments first.
    if (!line_.script && !has_file) return refuse(missing_script());
    if (!line_.unrecognized.empty()) return refuse(unrecognized(line_.unrecognized));
    auto variables = read_variables(around_, values_);
    if (!variables) return refuse(variables.error());
    for (auto& given : *variables) values_.offer(std::move(given));
    for (auto& warning : unknown_variables(around_)) warn(std::move(warning));
    if (!text("config"_opt).empty()) read_config();
  }

  void read_config() {
    const std::string& path = text("config"_opt);
    const auto content = around_.read_file(path);
    if (!content) {
      return refuse("cannot read the job file " + content.error().text,
                    "it is named by " + values_["config"_opt].source);
    }
    auto file = parse_toml(*content, path);
    if (!file) return refuse(file.error());
    for (auto& given : file->given) values_.offer(std::move(given));
    file_ = std::move(*file);
    job_.worker_env = file_.worker_env;
  }

  /// Variables that an operator has set, and nothing that a person has typed or written.
  bool is_placed_by_variables() {
    return std::ranges::all_of(std::array{"node-rank"_opt, "master-addr"_opt, "master-port"_opt},
                               [this](Opt id) { return values_[id].origin == Origin::Variable; });
  }

  // They ask for the static backend, with which a pod that is created again could not join.
  void ask_kubeflow() {
    const auto range = parse_nnodes(text("nnodes"_opt));
    if (!range || range->max < 2 || !is_placed_by_variables() || is_on("standalone"_opt) ||
        values_.is_given("rdzv-backend"_opt) || values_.is_given("rdzv-endpoint"_opt)) {
      return;
    }
    place_ = find_kubeflow_placement(around_);
    if (!place_) return;
    for (auto& given : place_->given) {
      // The operator's variables are replaced, which would win otherwise; an id that the user has
      // given stays.
      given.id == "rdzv-id"_opt ? values_.offer(given) : values_.replace(given);
    }
  }

  // Only where nothing says how the nodes meet. A plain run on one node stays one.
  void ask_scheduler() {
    // Before any return: a job whose nodes were given by hand can be requeued, too.
    job_.requeue_command = requeue_command(around_);
    ask_kubeflow();
    if (place_) return;
    for (const Opt id : {"standalone"_opt, "rdzv-backend"_opt, "rdzv-endpoint"_opt, "node-rank"_opt,
                         "master-addr"_opt, "master-port"_opt}) {
      if (values_.is_given(id)) return;
    }
    const bool has_count = values_.is_given("nnodes"_opt);
    const auto range = parse_nnodes(text("nnodes"_opt));
    if (!range || (has_count && range->max == 1)) return;
    place_ = find_placement(around_, has_count ? range->max : 0, out_.warnings);
    if (!place_) return;
    for (auto& given : place_->given) values_.offer(std::move(given));
  }

  // A script brings its own arguments; those of the other source are not meant for it.
  void take_script() {
    if (line_.script) {
      job_.script = *line_.script;
      job_.script_args = line_.script_args;
      out_.script_source = "on the command line";
      if (const auto word = misplaced_option(job_.script_args); !word.empty()) {
        warn(fmt::format("{} goes to {}, which it follows: options of elastrun precede the script",
                         word, job_.script));
      }
    } else if (file_.script) {
      job_.script = *file_.script;
      job_.script_args = file_.script_args;
      out_.script_source = file_.script_source;
    } else {
      auto refusal = missing_script();
      refusal.hint = "neither the command line nor script in [job] of the job file names one";
      return refuse(refusal);
    }
  }

  void count_nodes() {
    const auto range = parse_nnodes(text("nnodes"_opt));
    if (!range) return refuse(placed(range.error(), values_["nnodes"_opt]));
    job_.min_nodes = range->min;
    job_.max_nodes = range->max;
  }

  /// Takes each option whose row in the table names the field that it fills.
  void take_plain_fields() { refused_ = fill_fields(job_, values_); }

  void limit_hang() {
    const std::string& given = text("hang-timeout"_opt);
    const auto seconds = parse_float(given);
    job_.hang_auto = given == "auto";
    // Bounded and finite: it becomes a time in nanoseconds.
    if (seconds && *seconds > 0 && std::isfinite(*seconds)) {
      job_.hang_limit = from_seconds(std::min(*seconds, kLongestSeconds));
    } else if (given != "auto" && given != "off") {
      return refuse("hang-timeout"_opt,
                    fmt::format("hang_timeout must be a number of seconds above 0, auto or "
                                "off, got {}",
                                given),
                    "see --hang-timeout");
    }
  }

  void take_signals() {
    auto handled = parse_signals(values_["signals-to-handle"_opt], out_.warnings);
    auto forwarded = parse_signals(values_["forward-signals"_opt], out_.warnings);
    const bool chosen = values_.is_given("signals-to-handle"_opt);
    for (const auto& name : std::vector(forwarded)) {
      if (std::ranges::count(handled, name) == 0) continue;
      if (chosen && values_.is_given("forward-signals"_opt)) {
        return refuse(launcher_refusal(
            fmt::format("{} cannot both end the job and be passed on without ending it", name),
            "it is in --signals-to-handle and in --forward-signals"));
      }
      std::erase(chosen ? forwarded : handled, name);  // the list that was given wins
    }
    job_.signals_text = chosen ? values_["signals-to-handle"_opt].text : join(handled, ",");
    job_.signals_to_handle = std::move(handled);
    job_.forward_signals = std::move(forwarded);
  }

  void count_workers() {
    const std::string& given = text("nproc-per-node"_opt);
    if (const auto count = parse_int(given)) {
      // A slip of the finger would keep the agent busy with folders, deaf to signals.
      if (*count <= 0 || *count > kMostWorkers) {
        const auto bound = *count <= 0 ? "> 0" : fmt::format("<= {}", kMostWorkers);
        return refuse("nproc-per-node"_opt,
                      fmt::format("nproc_per_node must be {}, got {}", bound, *count),
                      "see --nproc-per-node");
      }
      job_.nproc_per_node = static_cast<int>(*count);
    } else if (auto refusal = count_devices(given)) {
      return refuse(placed(std::move(*refusal), values_["nproc-per-node"_opt]));
    }
    // torchrun's rule, which scripts rely on: one thread each, unless something has said otherwise.
    job_.limit_omp_threads = job_.nproc_per_node > 1 && !around_.variable("OMP_NUM_THREADS") &&
                             !job_.worker_env.contains("OMP_NUM_THREADS");
  }

  Refused count_devices(const std::string& given) {
    const char* type = "cpu";
    int count = 0;
    if (given == "gpu" || given == "auto") {
      type = "gpu";
      count = around_.count_gpus();
      if (count == 0 && given == "gpu") return no_device("Cuda is not available.", "GPU");
    }
    if (given == "xpu" || (given == "auto" && count == 0)) {
      type = "xpu";
      count = around_.count_xpus();
      if (count == 0 && given == "xpu") return no_device("Xpu is not available.", "XPU");
    }
    // Before CPUs are counted, but only where a device file tells of one: the question starts an
    // interpreter and imports torch.
    if (given == "auto" && count == 0 && around_.has_other_accelerators()) {
      if (!count_by_torch(given)) return std::nullopt;
    }
    if (given == "cpu" || (given == "auto" && count == 0)) {
      type = "cpu";
      count = around_.count_cpus();
    }
    if (count == 0) return count_by_torch(given);
    take_devices(given, type, count);
    return std::nullopt;
  }

  void take_devices(const std::string& given, std::string_view type, int count) {
    job_.nproc_per_node = count;
    out_.notes.push_back(fmt::format(
        "Using nproc_per_node={}, setting nproc_per_node to {} since the instance has {} {}", given,
        count, count, type));
  }

  /// Which accelerators there are beyond ours, torch alone knows, by its extensions. Only a word
  /// that may be a name of one is worth the seconds of its import.
  Refused count_by_torch(const std::string& given) {
    const auto unknown = [&](const std::string& why) {
      return launcher_refusal(
          fmt::format("Unsupported nproc_per_node value: {}", given),
          "expected a number, auto, gpu, cpu, xpu, or what torch calls an accelerator" + why);
    };
    const bool is_name = !given.empty() && std::ranges::all_of(given, [](char one) {
      return (one >= 'a' && one <= 'z') || (one >= '0' && one <= '9') || one == '_';
    }) && (given[0] < '0' || given[0] > '9');
    if (!is_name) return unknown({});
    // That of the workers: another one may have another torch.
    if (auto refusal = find_interpreter()) return unknown("\n" + refusal->text);
    const auto there = around_.ask_torch(job_.interpreter, given);
    if (!there) return unknown(there.error().text.empty() ? "" : "\n" + there.error().text);
    if (there->count == 0) {
      return launcher_refusal(fmt::format("{} is not available.", given),
                              fmt::format("torch of {} sees none", job_.interpreter));
    }
    take_devices(given, there->type, there->count);
    return std::nullopt;
  }

  static Refused no_device(std::string text, std::string_view name) {
    return launcher_refusal(std::move(text),
                            fmt::format("no {} is visible here; --nproc-per-node also takes a "
                                        "number, cpu or auto",
                                        name));
  }

  void take_fork_server() {
    if (values_["warm-spares"_opt].origin != Origin::Default) {
      // Whole by now: check_text() has looked at each source.
      const auto spares = *parse_int(text("warm-spares"_opt));
      if (spares < 0) {
        return refuse("warm-spares"_opt, "warm_spares must be >= 0");
      }
      job_.warm_spares = static_cast<int>(std::min<std::int64_t>(spares, kMostSpares));
    }
    if (job_.start_method == "forkserver" || job_.start_method == "auto" ||
        job_.warm_spares.value_or(0) > 0 || around_.variable("ELASTRUN_TEST_FORKSERVER")) {
      // In the same package.
      std::string tried;
      const auto package = find_package(tried);
      if (!package.empty()) job_.fork_server = package + "/elastrun/forkserver.py";
    }
  }

  void apply_single_node_rules() {
    std::string why;
    if (is_on("standalone"_opt)) {
      why = "implied by --standalone";
      if (job_.min_nodes > 1) {
        return refuse(launcher_refusal(
            fmt::format("--standalone is for one node, but --nnodes {} asks for at least {}",
                        text("nnodes"_opt), job_.min_nodes),
            "leave one of the two out"));
      }
    } else if (text("rdzv-backend"_opt) == backend::kStatic && text("rdzv-endpoint"_opt).empty() &&
               !values_.is_given("master-port"_opt) && job_.max_nodes == 1) {
      why = "implied: one node, no rendezvous";
    } else {
      return;
    }
    job_.standalone = true;
    warn_of_replaced();
    values_.imply("rdzv-backend"_opt, std::string(backend::kC10d), why);
    // Port 0: the kernel chooses, so that jobs of one machine do not meet.
    values_.imply("rdzv-endpoint"_opt, "localhost:0", why);
    // A UUID, as torchrun has it; under Slurm an id that a requeue gets again, so that what both
    // have left behind belongs together.
    auto id = single_node_run_id(around_, command());
    if (!id.empty()) why += "; SLURM_JOB_ID, SLURM_STEP_ID";
    values_.imply("rdzv-id"_opt, id.empty() ? around_.make_uuid() : id, why);
  }

  std::string command() const {
    std::string all = job_.script;
    // With a byte between that no argument can hold: "a b" and "a" "b" are two commands.
    for (const auto& one : job_.script_args) all.append(1, '\0').append(one);
    return all;
  }

  void warn_of_replaced() {
    const bool is_name = values_.is_given("rdzv-id"_opt) && job_.name == text("rdzv-id"_opt);
    std::vector<std::string> names;
    for (const Opt id : {"rdzv-backend"_opt, "rdzv-endpoint"_opt, "rdzv-id"_opt, "master-addr"_opt,
                         "master-port"_opt}) {
      if (!values_.is_given(id) || values_[id].text == row(id).fallback) continue;
      names.push_back(fmt::format("{}={}", spelling(row(id)), values_[id].text));
    }
    if (names.empty()) return;
    const bool asked = is_on("standalone"_opt);
    warn(fmt::format(
        "{} is not used{}: {}{}", join(names, ", "), is_name ? ", except as the job's name" : "",
        asked ? "--standalone overrides it" : "one node without an endpoint gets a random run id",
        asked ? ""
              : " and localhost (as torchrun); to keep it, give --rdzv-backend c10d "
                "--rdzv-endpoint localhost:0"));
  }

  /// Each role that restarts alone needs a store, for which others give out neither a place nor a
  /// port.
  void check_role_restarts() {
    if (job_.role_restart.empty() || job_.standalone) return;
    const bool fits =
        job_.rdzv_backend != backend::kStatic && contains(backend::kBuiltIn, job_.rdzv_backend);
    if (fits) return;
    refuse(fmt::format("a role that restarts alone ({}) needs another rendezvous than {}",
                       values_["role-restart"_opt].source, job_.rdzv_backend),
           "use --rdzv-backend c10d, etcd or file");
  }

  void take_backend() {
    job_.rdzv_backend = text("rdzv-backend"_opt);
    job_.rdzv_endpoint = text("rdzv-endpoint"_opt);
    job_.run_id = text("rdzv-id"_opt);
    job_.node_rank_given = values_.is_given("node-rank"_opt);
    const auto& name = job_.rdzv_backend;
    if (name.empty()) {
      return refuse(launcher_refusal("A rendezvous backend needs a name, and this one is empty.",
                                     "see --rdzv-backend"));
    }
    if (contains(backend::kBuiltIn, name) || contains(around_.rdzv_backends, name)) return;
    std::vector<std::string> names(backend::kBuiltIn.begin(), backend::kBuiltIn.end());
    names.insert(names.end(), around_.rdzv_backends.begin(), around_.rdzv_backends.end());
    const auto near = nearest(name, names);
    refuse("rdzv-backend"_opt, fmt::format("The rendezvous backend '{}' is not registered.", name),
           fmt::format("the backends are {}{}", join(names, ", "),
                       near ? fmt::format("; did you mean {}?", *near) : ""));
  }

  void read_conf() {
    auto given = values_["rdzv-conf"_opt];
    auto parts = given.listed ? given.items : rdzv_conf_parts(given.text);
    auto conf = parse_rdzv_conf(parts);
    if (!conf) return refuse(placed(conf.error(), given));
    job_.rdzv_conf = std::move(*conf);
    // What stays of the text is for people to see.
    given.text = masked(std::move(parts));
    given.items.clear();
    values_.replace(given);
    // /proc/PID/cmdline is open to all users, unless proc(5) is mounted with hidepid.
    if (given.source.ends_with(" on the command line") && job_.rdzv_conf.contains("password")) {
      warn(
          "--rdzv-conf: everybody on this machine can read password= on a command line (ps); put "
          "it into a file that only you can read, and give password_file=PATH instead");
    }
    if (auto refusal = check_rdzv_conf(job_.rdzv_conf, job_.rdzv_backend, out_.warnings)) {
      return refuse(placed(*refusal, given));
    }
    if (place_ && place_->is_host && job_.rdzv_backend == backend::kC10d) {
      // emplace() keeps what the user has said. By the rank and not by the address: in a container
      // a node may not know that the endpoint's name is its own.
      job_.rdzv_conf.emplace("is_host", *place_->is_host ? "1" : "0");
    }
    if (place_ && !place_->start.empty()) job_.job_start = place_->start;
    // torchrun hands it to every backend; the static one reads it.
    job_.rdzv_conf.emplace("timeout", "900");
    job_.rendezvous = read_rendezvous_config(job_.rdzv_conf);
  }

  /// An unset shell variable, as a rule.
  void check_empty_place() {
    const bool by_master = job_.rdzv_backend == backend::kStatic && job_.rdzv_endpoint.empty() &&
                           values_.is_given("master-addr"_opt);
    const Opt id = by_master ? "master-addr"_opt : "rdzv-endpoint"_opt;
    const bool matters =
        by_master || (job_.max_nodes > 1 && contains(backend::kBuiltIn, job_.rdzv_backend));
    if (!matters || !values_.is_given(id) || !trim(text(id)).empty()) return;
    refuse(fmt::format("{} is empty: the nodes need an address to meet at", spelling(row(id))),
           fmt::format("it comes from {}; is a shell variable not set?", values_[id].source));
  }

  void decide_endpoint() {
    if (job_.rdzv_backend == backend::kStatic) return decide_static();
    if (values_.is_given("master-addr"_opt) && text("rdzv-endpoint"_opt).empty()) {
      warn(
          "--master-addr has no effect: only the static backend reads it, when it is given no "
          "--rdzv-endpoint.");
    }
    if (job_.rdzv_backend == backend::kC10d && !job_.rendezvous.meets_in_file)
      check_endpoints({job_.rdzv_endpoint});
    if (job_.rdzv_backend.starts_with(backend::kEtcd))
      check_endpoints(split(job_.rdzv_endpoint, ','));
    if (job_.rdzv_backend == backend::kFile && trim(job_.rdzv_endpoint).empty()) {
      return refuse(
          launcher_refusal("the file backend needs --rdzv-endpoint DIR",
                           "a directory that all nodes can write, on a shared file system"));
    }
  }

  /// Names the option, variable or key that the endpoint came from.
  void refuse_endpoint(Refusal refusal) {
    const bool of_master = values_["rdzv-endpoint"_opt].origin == Origin::Implied;
    const auto port = parse_int(text("master-port"_opt));
    const bool is_port = text("master-port"_opt).empty() || (port && *port >= 0 && *port <= 65535);
    const auto& given = values_[!of_master ? "rdzv-endpoint"_opt
                                : is_port  ? "master-addr"_opt
                                           : "master-port"_opt];
    refusal.hint += (refusal.hint.empty() ? "it comes from " : "; it comes from ") + given.source;
    refuse(std::move(refusal));
  }

  void check_endpoints(const std::vector<std::string>& endpoints) {
    for (std::string_view endpoint : endpoints) {
      // People write the endpoints of etcd so.
      for (const std::string_view scheme : {"http://", "https://"}) {
        if (endpoint.starts_with(scheme)) endpoint.remove_prefix(scheme.size());
      }
      const auto answer = parse_endpoint(endpoint);
      if (!answer) return refuse_endpoint(answer.error());
    }
  }

  void decide_static() {
    if (job_.min_nodes != job_.max_nodes) {
      warn(fmt::format("--nnodes {}: the static backend always waits for all {} nodes",
                       text("nnodes"_opt), job_.max_nodes));
    }
    const bool master_given =
        values_.is_given("master-addr"_opt) || values_.is_given("master-port"_opt);
    if (job_.rdzv_endpoint.empty()) {
      const std::string port = text("master-port"_opt);
      // Without brackets its last group would be read as the port.
      const bool bare_six = job_.master_addr.contains(':') && !job_.master_addr.starts_with('[');
      job_.rdzv_endpoint =
          fmt::format("{}:{}", bare_six ? "[" + job_.master_addr + "]" : job_.master_addr,
                      port.empty() ? kStaticPort : *parse_int(port));
      values_.imply("rdzv-endpoint"_opt, job_.rdzv_endpoint,
                    "implied by --master-addr, --master-port");
    } else if (master_given) {
      warn("--master-addr and --master-port are not used: --rdzv-endpoint is given");
    }
    const auto endpoint = parse_endpoint(job_.rdzv_endpoint);
    if (!endpoint) return refuse_endpoint(endpoint.error());
    if (!endpoint->port) {
      return refuse(
          launcher_refusal(fmt::format("port is missing in endpoint: {}. Try to specify "
                                       "--master-port",
                                       job_.rdzv_endpoint)));
    }
    job_.master_addr = endpoint->host;
    job_.master_port = *endpoint->port;
  }

  void check_node_rank() {
    const auto rank = *parse_int(text("node-rank"_opt));
    // What a scheduler says orders the nodes with every backend; a user's word is for static alone.
    if (values_["node-rank"_opt].origin == Origin::Scheduler) {
      if (place_ && place_->scheduler == "PyTorchJob" && rank >= job_.max_nodes) {
        return refuse(fmt::format("RANK {} is not a rank of {} nodes", rank, job_.max_nodes),
                      "their number comes from " + values_["nnodes"_opt].source);
      }
      job_.node_rank = static_cast<int>(rank);
      return;
    }
    if (job_.rdzv_backend != backend::kStatic) {
      if (rank != 0) {
        warn(fmt::format("--node-rank has no effect with the backend {}: only static reads it.",
                         job_.rdzv_backend));
      }
      return;
    }
    if (rank < 0 || rank >= job_.max_nodes) {
      return refuse(
          "node-rank"_opt,
          fmt::format("--node-rank {} is not a rank of {} node{}", rank, job_.max_nodes,
                      job_.max_nodes == 1 ? "" : "s"),
          fmt::format("expected a number from 0 to {}; --nnodes says how many nodes there are",
                      job_.max_nodes - 1));
    }
    job_.node_rank = static_cast<int>(rank);
    // torchrun hands it to its static handler.
    job_.rdzv_conf["rank"] = fmt::to_string(rank);
  }

  /// Nodes that may be on several machines need a place that all of them reach.
  void check_meeting_place() {
    const bool fixed_ranks = job_.rdzv_backend == backend::kStatic;
    const auto& config = job_.rendezvous;
    const bool in_c10d = job_.rdzv_backend == backend::kC10d && !config.meets_in_file;
    if (!fixed_ranks && !in_c10d) return;
    const bool hosts = fixed_ranks ? job_.node_rank == 0 : config.is_host.value_or(true);
    const auto endpoint = parse_endpoint(job_.rdzv_endpoint);
    if (job_.min_nodes > 1 && endpoint->port == 0) {
      return refuse_endpoint(
          {fmt::format("'{}' has port 0, which no other node knows", job_.rdzv_endpoint),
           "give the same port on all nodes"});
    }
    const auto& host = endpoint->host;
    // "0.0.0.0", "::"
    if (!hosts && host.find_first_not_of("0.:") == host.npos) {
      return refuse_endpoint(
          {fmt::format("'{}' means this node, but {}", job_.rdzv_endpoint,
                       fixed_ranks ? fmt::format("--node-rank {} is not the one that hosts "
                                                 "the rendezvous",
                                                 job_.node_rank)
                                   : "is_host=0 says that it does not host the rendezvous"),
           "give the address of the node that does"});
    }
    if (job_.max_nodes == 1 || values_.is_given("rdzv-endpoint"_opt)) return;
    if (fixed_ranks && values_.is_given("master-addr"_opt)) return;
    const auto where = fixed_ranks ? job_.rdzv_endpoint : fmt::format("localhost:{}", kC10dPort);
    const std::string what = fixed_ranks ? "--master-addr" : "--rdzv-endpoint";
    warn(hosts
             ? fmt::format("{} is not given: this node waits for the others at {}, which other "
                           "machines cannot reach; nodes there need {} with the address of {}",
                           what, where, what,
                           fixed_ranks ? "this one" : "one node, the same on all")
             : fmt::format("{} is not given: node 0 is looked for at {}, on this machine; if it is "
                           "another one, give its address",
                           what, where));
  }

  /// Workers of other machines would look for the store at their own loopback.
  void warn_of_local_addr() {
    const auto place = parse_endpoint(job_.rdzv_endpoint);
    const bool on_one_machine = place && is_loopback(place->host);
    if (job_.max_nodes == 1 || on_one_machine || !is_loopback(job_.local_addr)) return;
    warn(fmt::format(
        "--local-addr {}: other machines cannot reach this node there; leave it out, or give an "
        "address of this machine that they reach",
        job_.local_addr));
  }

  void replace_empty_id() {
    if (!job_.run_id.empty()) return;
    if (job_.min_nodes > 1 && contains(backend::kBuiltIn, job_.rdzv_backend)) {
      return refuse("--rdzv-id is empty: the nodes need the same id to meet",
                    "it comes from " + values_["rdzv-id"_opt].source);
    }
    job_.run_id = random_integer();
    values_.imply("rdzv-id"_opt, job_.run_id, "random, because it was empty");
    warn(fmt::format("--rdzv-id is empty: the job gets the random run id {}", job_.run_id));
  }

  // The integer of a UUID, as torchrun: 128 bits in decimal.
  std::string random_integer() const {
    __extension__ unsigned __int128 number = 0;
    for (const char c : around_.make_uuid()) {
      if (c == '-') continue;
      number = number * 16 + static_cast<unsigned>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return fmt::format("{}", number);
  }

  /// Slurm ends the address with the node ("s0.s2.node7", and "node7" alone where it knows no
  /// network). Without it: two nodes of one switch are to have the same address, and may have each
  /// other's rank. The pattern ("switch.switch.node", "block.node") tells how many levels there
  /// are: names of nodes may have points, too.
  std::string slurm_switches() const {
    const auto levels = split(around_.variable("SLURM_TOPOLOGY_ADDR").value_or(""), '.');
    const auto kinds = split(around_.variable("SLURM_TOPOLOGY_ADDR_PATTERN").value_or(""), '.');
    if (kinds.back() != "node" || levels.size() < kinds.size()) return {};
    return join({levels.begin(), levels.begin() + static_cast<std::ptrdiff_t>(kinds.size()) - 1},
                ".");
  }

  Found find_address() {
    Found found;
    const auto switches = slurm_switches();
    if (const auto problem = topology_problem(switches); switches.empty() || problem.empty()) {
      found.add(switches, "SLURM_TOPOLOGY_ADDR");
    } else {
      warn(fmt::format("SLURM_TOPOLOGY_ADDR {}: {}; it is ignored", in_quotes(switches), problem));
    }
    // Behind the switches: racks that share NVLink lie within a block or below a switch.
    found.add(around_.nvlink_domain(), "NVLink");
    return found;
  }

  /// True if the coordinator gives out the ranks.
  bool orders_nodes() {
    const auto& name = job_.rdzv_backend;
    const bool fixed = name == backend::kStatic;
    if (!fixed && contains(backend::kBuiltIn, name)) return true;
    warn(fmt::format("--rank-order topology has no effect with the backend {}: {} gives the ranks",
                     name, fixed ? "--node-rank" : "its handler"));
    return false;
  }

  /// Fills `topology`: what --topology says, or what Slurm and the GPUs' driver tell, which is
  /// asked for nothing but --rank-order topology. What these tell may be wrong or missing, and
  /// refuses no job.
  void take_topology() {
    const auto given = values_["topology"_opt];
    if (const auto problem = topology_problem(given.text);
        !given.text.empty() && !problem.empty()) {
      return refuse(fmt::format("{}: {}: {}", given.source, in_quotes(given.text), problem),
                    "expected levels with points between them, as zone1.rack7");
    }
    job_.topology = given.text;
    if (!job_.rank_order_topology) {
      // In the environment of all nodes of a cluster it is right all the same.
      if (given.origin == Origin::CommandLine)
        warn("--topology has no effect without --rank-order topology");
      return;
    }
    if (job_.standalone || !orders_nodes()) return;
    Found found{given.text, given.source};
    if (found.address.empty()) {
      found = find_address();
      job_.topology = found.address;
      values_.imply("topology"_opt, found.address,
                    found.address.empty() ? "by host name: neither Slurm nor the driver tells"
                                          : found.source);
    }
    out_.notes.push_back(
        job_.topology.empty()
            ? "Ranks by topology: this node has no address, its host name orders it"
            : fmt::format("Ranks by topology: the address of this node is {} ({})", job_.topology,
                          found.source));
  }

  void take_logs() {
    for (const int rank : job_.local_ranks_filter) {
      if (rank >= 0 && rank < job_.nproc_per_node) continue;
      warn(fmt::format("{}: local rank {} does not exist: this node runs {}",
                       values_["local-ranks-filter"_opt].source, rank,
                       job_.nproc_per_node == 1
                           ? "one worker, local rank 0"
                           : fmt::format("local ranks 0 to {}", job_.nproc_per_node - 1)));
    }
    const bool has_template = values_["log-line-prefix-template"_opt].origin != Origin::Default;
    job_.prefix_template = has_template ? text("log-line-prefix-template"_opt) : "";
    const auto& name = job_.logs_specs;
    if (name.empty() || name == "default" || contains(around_.logs_specs, name)) return;
    refuse(launcher_refusal(
        fmt::format("Could not find entrypoint under 'torchrun.logs_specs[{}]' key", name),
        "see --logs-specs"));
  }

  void check_event_handler() {
    std::vector<std::string> known = {"null", "console"};
    known.insert(known.end(), around_.event_handlers.begin(), around_.event_handlers.end());
    if (contains(known, job_.event_log_handler)) return;
    refuse("event-log-handler"_opt,
           fmt::format("the event handler {} is not registered", in_quotes(job_.event_log_handler)),
           fmt::format("--event-log-handler takes {}", join(known, ", ")));
  }

  /// A source that is stronger than the job file replaces its routes as well.
  void take_metrics() {
    const auto& given = values_["metrics"_opt];
    const bool by_file = given.origin != Origin::CommandLine && given.origin != Origin::Variable;
    auto sinks =
        metrics_sinks(given, by_file ? file_.metrics_routes : std::vector<MetricsRouteRow>());
    if (!sinks) return refuse(sinks.error());
    job_.metrics = std::move(*sinks);
    const double interval = *parse_float(text("metrics-interval"_opt));
    // Written so that a NaN is refused, too.
    if (!(interval >= 0.1 && interval <= kLongestSeconds)) {
      return refuse(fmt::format("{}: {} is not an interval", values_["metrics-interval"_opt].source,
                                text("metrics-interval"_opt)),
                    "expected a number of seconds, at least 0.1");
    }
    job_.metrics_interval = from_seconds(interval);
    auto all = stat_aggregations(values_["aggregations"_opt]);
    if (!all) return refuse(all.error());
    job_.aggregations = std::move(*all);
  }

  void choose_mode() {
    const bool module = is_on("module"_opt), no_python = is_on("no-python"_opt);
    if (is_on("run-path"_opt)) {
      job_.mode = Mode::RunPath;
      if (module || no_python) warn("--run-path wins over --module and --no-python");
      const auto methods = choices(row("start-method"_opt));
      if (!contains(methods, job_.start_method)) {
        return refuse(launcher_refusal(
            fmt::format("cannot find context for {}", in_quotes(job_.start_method)),
            fmt::format("{} takes {}", values_["start-method"_opt].source, join(methods, ", "))));
      }
    } else if (no_python && module) {
      return refuse(launcher_refusal(
          "Don't use both the '--no-python' flag and the '--module' flag at the same time.",
          fmt::format("they come from {} and {}", values_["no-python"_opt].source,
                      values_["module"_opt].source)));
    } else {
      job_.mode = no_python ? Mode::Program : module ? Mode::Module : Mode::Script;
    }
    out_.refusal = find_programs();
    const bool is_awaited =
        job_.max_nodes > 1 && !job_.standalone && contains(backend::kBuiltIn, job_.rdzv_backend);
    if (!out_.refusal || !is_awaited || is_on("dry-run"_opt)) {
      refused_ = out_.refusal;
      return;
    }
    // Not an error here: the agent meets the others and says why it cannot take part, or they would
    // wait for it until their time is up.
    job_.cannot_start = out_.refusal->text;
  }

  const CommandLine& line_;
  const HostEnvironment& around_;
  TomlJob file_;
  std::optional<Placement> place_;  // as the scheduler knows
  Refused refused_;
  Resolved out_;
  JobSpec& job_ = out_.spec;
  Values& values_ = out_.values;
};

}  // namespace

Answer<Resolved> resolve(const CommandLine& line, const HostEnvironment& around) {
  return Resolver(line, around).run();
}

}  // namespace elastrun::spec
