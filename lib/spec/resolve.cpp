// SPDX-License-Identifier: Apache-2.0

#include "spec/resolve.hpp"

#include "core/text.hpp"
#include "spec/argument_words.hpp"
#include "spec/host_environment.hpp"
#include "spec/job_spec.hpp"
#include "spec/merge.hpp"
#include "spec/option_fields.hpp"
#include "spec/option_values.hpp"
#include "spec/override.hpp"
#include "spec/program.hpp"
#include "spec/rendezvous_choice.hpp"
#include "spec/restart_rules.hpp"
#include "spec/schedulers.hpp"
#include "spec/toml.hpp"
#include "spec/topology_address.hpp"
#include "spec/worker_count.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::spec {

namespace {

constexpr double kLongestSave = 366.0 * 86400;  // seconds
constexpr std::size_t kLongestNames = 2000;     // of what travels with each join

std::optional<Refusal> take_restart_rules(JobSpec& job, const Override& given) {
  job.restart_rule = given.listed ? join(given.items, ",") : given.text;
  const auto rules = parse_restart_rules(job.restart_rule);
  if (rules) return std::nullopt;
  return Refusal{fmt::format("{}: {}", given.source, rules.error().text), 2, false,
                 "elastrun-restarts(7) has the rules"};
}

/// "generator=own". The names in one order, since all agents have to say the same.
std::optional<Refusal> take_role_restarts(JobSpec& job, const Override& given) {
  std::map<std::string, bool> own;
  for (const auto& item : given.listed ? given.items : split(given.text, ',')) {
    const auto text = trim(item);
    if (text.empty()) continue;
    const auto at = std::min(text.rfind('='), text.size());
    const std::string name(trim(text.substr(0, at)));
    const auto whom = text.substr(std::min(at + 1, text.size()));
    if (name.empty() || name.contains(',') || (whom != "own" && whom != "all")) {
      return Refusal{fmt::format("{}: '{}' does not say whom a role restarts", given.source, text),
                     2, false,
                     "expected ROLE=own (the agents with that --role alone) or ROLE=all (every "
                     "agent, as without it)"};
    }
    own[name] = whom == "own";
  }
  std::erase_if(own, [](const auto& one) { return !one.second; });
  std::vector<std::string> names;
  for (const auto& [name, alone] : own) names.push_back(name);
  job.role_restart = join(names, ",");
  if (job.role_restart.size() <= kLongestNames) return std::nullopt;
  return Refusal{fmt::format("{}: the names of the roles are longer than {} bytes together",
                             given.source, kLongestNames),
                 2, false, "use shorter names"};
}

std::optional<Refusal> take_preempt_timeout(JobSpec& job, const Override& given) {
  if (given.text.empty()) return std::nullopt;
  const auto seconds = parse_float(given.text);
  if (!seconds || !(*seconds > 0) || *seconds > kLongestSave) {
    return Refusal{fmt::format("{}: {} is not a time to save in", given.source, given.text), 2,
                   false, "expected a number of seconds above 0"};
  }
  job.preempt_timeout = from_seconds(*seconds);
  return std::nullopt;
}

}  // namespace

/// Fills what the options of the restart policy and of preemption say, once signals_to_handle and
/// forward_signals are known: a signal that preempts is handled, and passed on to no worker.
std::optional<Refusal> take_restart_options(JobSpec& job, const Values& values,
                                            std::vector<std::string>& warnings) {
  if (auto refusal = take_restart_rules(job, values[Opt::RestartRule])) return refusal;
  if (auto refusal = take_role_restarts(job, values[Opt::RoleRestart])) return refusal;
  if (auto refusal = take_preempt_timeout(job, values[Opt::PreemptTimeout])) return refusal;
  if (values.is_given(Opt::PreemptSignals)) {
    job.preempt_signals = parse_signals(values[Opt::PreemptSignals], warnings);
  }
  for (const auto& name : job.preempt_signals) {
    std::erase(job.forward_signals, name);
    if (std::ranges::count(job.signals_to_handle, name) == 0) job.signals_to_handle.push_back(name);
  }
  return std::nullopt;
}

namespace {

constexpr std::string_view kVariable = "PYTHONPATH";
// Below the folder of the program. Never site-packages itself: a folder of PYTHONPATH comes before
// those of the worker's own Python, and would bring other packages along.
constexpr std::array<std::string_view, 2> kPlaces = {"../share/elastrun/python",
                                                     "../../../lib/python"};

/// Empty if it is in none of the places, which are in `tried` then.
std::string find_package(const HostEnvironment& around, std::string& tried) {
  const std::filesystem::path folder = std::filesystem::path(around.own_program()).parent_path();
  for (const auto place : kPlaces) {
    const std::string path = (folder / place).lexically_normal().string();
    if (around.exists(path + "/elastrun/channel.py")) return path;
    tried += (tried.empty() ? "" : " and ") + path;
  }
  return {};
}

}  // namespace

/// Where forkserver.py is, for --start-method forkserver and auto: in the same package.
void find_fork_server(JobSpec& job, const HostEnvironment& around) {
  std::string tried;
  const auto package = find_package(around, tried);
  if (!package.empty()) job.fork_server = package + "/elastrun/forkserver.py";
}

/// --worker-lib and --goodput auto: appends the folder of the Python package that came with this
/// program to PYTHONPATH of the workers. Refused if there is none beside the program: below
/// PREFIX/share/elastrun/python (cmake --install, wheel), or in the source tree of a build. With
/// --goodput auto a folder comes before all others from which Python starts the hooks into torch.
std::optional<Refusal> add_worker_library(JobSpec& job, const HostEnvironment& around) {
  const bool hooks = job.goodput == Goodput::Auto;
  std::string tried;
  const auto found = find_package(around, tried);
  if (found.empty()) {
    return Refusal{fmt::format("{}: the Python package elastrun is not beside this program",
                               hooks ? "--goodput auto" : "--worker-lib"),
                   2, false,
                   fmt::format("looked in {}; install it with cmake --install or pip, or leave the "
                               "option away and set PYTHONPATH",
                               tried)};
  }
  // Last: what the user has there is found first.
  auto& variable = job.worker_env[std::string(kVariable)];
  if (variable.empty()) variable = around.variable(std::string(kVariable)).value_or("");
  variable += (variable.empty() ? "" : ":") + found;
  // First: the sitecustomize there, which calls the one that it hides.
  if (hooks) variable = found + "/elastrun/start:" + variable;
  job.worker_lib = true;
  return std::nullopt;
}

namespace {

constexpr std::size_t kLongestName = 100;

std::string_view name_of_script(std::string_view script) {
  while (script.ends_with('/')) script.remove_suffix(1);
  script.remove_prefix(script.rfind('/') + 1);
  if (script.ends_with(".py")) script.remove_suffix(3);
  return script;
}

}  // namespace

std::optional<Refusal> name_job(JobSpec& job, Values& values) {
  const auto& given = values[Opt::Name];
  job.name = given.text;
  // It becomes a part of file names, and stands in tables and on terminals, where control
  // characters do harm.
  if (job.name.size() > kLongestName || job.name.contains('/') || printable(job.name) != job.name) {
    return Refusal{
        fmt::format("{}: {} cannot be the name of a job", given.source,
                    in_quotes(printable(job.name))),
        2, false,
        fmt::format("at most {} bytes of UTF-8, without / and control characters", kLongestName)};
  }
  job.named = !job.name.empty();
  if (job.named) return std::nullopt;
  const auto& id = values[Opt::RdzvId];
  // Its default, given in full, names no job.
  const bool has_id = values.is_given(id.id) && !id.text.empty() && id.text != row(id.id).fallback;
  if (has_id) {
    job.name = id.text;
  } else {
    job.name = values.is_on(Opt::Module) ? job.script : name_of_script(job.script);
    if (job.name.empty()) job.name = "job";
  }
  values.imply(Opt::Name, job.name, has_id ? "implied by --rdzv-id" : "implied by the script");
  return std::nullopt;
}

namespace {

using Refused = std::optional<Refusal>;

constexpr std::int64_t kMostSpares = 4096;
constexpr double kLongest = 3e9;  // seconds; more does not fit the clock's nanoseconds

Refusal missing_script() {
  return {
      "the following arguments are required: training_script, training_script_args", 2, true, {}};
}

class Resolver {
 public:
  Resolver(const CommandLine& line, const HostEnvironment& around) : line_(line), around_(around) {}

  Answer<Resolved> run() {
    // The order counts: the name comes before the scheduler, whose id would become it; nodes and
    // workers are counted before ranks and backends are compared with them.
    for (const auto step :
         {&Resolver::collect, &Resolver::take_script, &Resolver::name, &Resolver::ask_scheduler,
          &Resolver::count_nodes, &Resolver::take_plain_fields, &Resolver::limit_hang,
          &Resolver::take_signals, &Resolver::count_workers, &Resolver::meet,
          &Resolver::find_topology, &Resolver::take_logs, &Resolver::take_reports,
          &Resolver::choose_mode, &Resolver::take_fork_server, &Resolver::take_worker_library}) {
      if (auto refusal = (this->*step)()) return std::unexpected(*refusal);
    }
    out_.notes.insert(out_.notes.begin(),
                      fmt::format("Using nproc_per_node={}.", text(Opt::NprocPerNode)));
    return std::move(out_);
  }

 private:
  Values& values() { return out_.values; }
  const std::string& text(Opt id) { return out_.values[id].text; }
  bool is_on(Opt id) { return out_.values.is_on(id); }
  void warn(std::string warning) { out_.warnings.push_back(std::move(warning)); }

  Refused collect() {
    for (const auto& given : line_.given) values().offer(given);
    const bool has_file =
        // The variable is asked for here, because all of them are read only after these refusals.
        values().is_given(Opt::Config) || around_.variable("PET_CONFIG").has_value();
    // Before unknown words are told, as argparse does: it looks for required arguments first.
    if (!line_.script && !has_file) return missing_script();
    if (!line_.unrecognized.empty()) return unrecognized(line_.unrecognized);
    auto variables = read_variables(around_, values());
    if (!variables) return variables.error();
    for (auto& given : *variables) values().offer(std::move(given));
    for (auto& warning : unknown_variables(around_)) warn(std::move(warning));
    return text(Opt::Config).empty() ? std::nullopt : read_config();
  }

  Refused read_config() {
    const std::string& path = text(Opt::Config);
    const auto content = around_.read_file(path);
    if (!content) {
      return Refusal{"cannot read the job file " + content.error().text, 2, false,
                     "it is named by " + values()[Opt::Config].source};
    }
    auto file = parse_toml(*content, path);
    if (!file) return file.error();
    for (auto& given : file->given) values().offer(std::move(given));
    file_ = std::move(*file);
    job_.worker_env = file_.worker_env;
    return std::nullopt;
  }

  /// Variables that an operator has set, and nothing that a person has typed or written.
  bool is_placed_by_variables() {
    return std::ranges::all_of(std::array{Opt::NodeRank, Opt::MasterAddr, Opt::MasterPort},
                               [this](Opt id) { return values()[id].origin == Origin::Variable; });
  }

  // They ask for the static backend, with which a pod that is created again could not join.
  void ask_kubeflow() {
    const auto range = parse_nnodes(text(Opt::Nnodes));
    if (!range || range->max < 2 || !is_placed_by_variables() || is_on(Opt::Standalone) ||
        values().is_given(Opt::RdzvBackend) || values().is_given(Opt::RdzvEndpoint)) {
      return;
    }
    place_ = find_kubeflow_placement(around_);
    if (!place_) return;
    for (auto& given : place_->given) {
      // The operator's variables are replaced, which would win otherwise; an id that the user has
      // given stays.
      given.id == Opt::RdzvId ? values().offer(given) : values().replace(given);
    }
  }

  // Only where nothing says how the nodes meet. A plain run on one node stays one.
  Refused ask_scheduler() {
    // Before any return: a job whose nodes were given by hand can be requeued, too.
    job_.requeue_command = requeue_command(around_);
    ask_kubeflow();
    if (place_) return std::nullopt;
    for (const Opt id : {Opt::Standalone, Opt::RdzvBackend, Opt::RdzvEndpoint, Opt::NodeRank,
                         Opt::MasterAddr, Opt::MasterPort}) {
      if (values().is_given(id)) return std::nullopt;
    }
    const bool has_count = values().is_given(Opt::Nnodes);
    const auto range = parse_nnodes(text(Opt::Nnodes));
    if (!range || (has_count && range->max == 1)) return std::nullopt;
    place_ = find_placement(around_, has_count ? range->max : 0, out_.warnings);
    if (!place_) return std::nullopt;
    for (auto& given : place_->given) values().offer(std::move(given));
    return std::nullopt;
  }

  // A script brings its own arguments; those of the other source are not meant for it.
  Refused take_script() {
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
      return refusal;
    }
    return std::nullopt;
  }

  Refused name() { return name_job(job_, values()); }

  Refused count_nodes() {
    const auto range = parse_nnodes(text(Opt::Nnodes));
    if (!range) return placed(range.error(), values()[Opt::Nnodes]);
    job_.min_nodes = range->min;
    job_.max_nodes = range->max;
    return std::nullopt;
  }

  /// Of each option whose row in the table names the field that it fills.
  Refused take_plain_fields() { return fill_fields(job_, values()); }

  Refused limit_hang() {
    const std::string& given = text(Opt::HangTimeout);
    const auto seconds = parse_float(given);
    job_.hang_auto = given == "auto";
    // Bounded and finite: it becomes a time in nanoseconds.
    if (seconds && *seconds > 0 && std::isfinite(*seconds)) {
      job_.hang_limit = from_seconds(std::min(*seconds, kLongest));
    } else if (given != "auto" && given != "off") {
      return placed(
          launcher_refusal(fmt::format("hang_timeout must be a number of seconds above 0, auto or "
                                       "off, got {}",
                                       given),
                           "see --hang-timeout"),
          values()[Opt::HangTimeout]);
    }
    return std::nullopt;
  }

  Refused take_signals() {
    auto handled = parse_signals(values()[Opt::SignalsToHandle], out_.warnings);
    auto forwarded = parse_signals(values()[Opt::ForwardSignals], out_.warnings);
    const bool chosen = values().is_given(Opt::SignalsToHandle);
    for (const auto& name : std::vector(forwarded)) {
      if (std::ranges::count(handled, name) == 0) continue;
      if (chosen && values().is_given(Opt::ForwardSignals)) {
        return launcher_refusal(
            fmt::format("{} cannot both end the job and be passed on without ending it", name),
            "it is in --signals-to-handle and in --forward-signals");
      }
      std::erase(chosen ? forwarded : handled, name);  // the list that was given wins
    }
    job_.signals_text = chosen ? values()[Opt::SignalsToHandle].text : join(handled, ",");
    job_.signals_to_handle = std::move(handled);
    job_.forward_signals = std::move(forwarded);
    return take_restart_options(job_, values(), out_.warnings);
  }

  Refused count_workers() {
    const std::string& given = text(Opt::NprocPerNode);
    if (const auto count = parse_int(given)) {
      // A slip of the finger would keep the agent busy with folders, deaf to signals.
      if (*count <= 0 || *count > kMostWorkers) {
        const auto bound = *count <= 0 ? "> 0" : fmt::format("<= {}", kMostWorkers);
        return placed(
            launcher_refusal(fmt::format("nproc_per_node must be {}, got {}", bound, *count),
                             "see --nproc-per-node"),
            values()[Opt::NprocPerNode]);
      }
      job_.nproc_per_node = static_cast<int>(*count);
    } else if (auto refusal = count_devices(given)) {
      return placed(std::move(*refusal), values()[Opt::NprocPerNode]);
    }
    // torchrun's rule, which scripts rely on: one thread each, unless something has said otherwise.
    job_.limit_omp_threads = job_.nproc_per_node > 1 && !around_.variable("OMP_NUM_THREADS") &&
                             !job_.worker_env.contains("OMP_NUM_THREADS");
    return std::nullopt;
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
    if (auto refusal = find_interpreter(job_, around_)) return unknown("\n" + refusal->text);
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

  Refused take_fork_server() {
    if (values()[Opt::WarmSpares].origin != Origin::Default) {
      // Whole by now: check_text() has looked at each source.
      const auto spares = *parse_int(text(Opt::WarmSpares));
      if (spares < 0) {
        return placed(launcher_refusal("warm_spares must be >= 0"), values()[Opt::WarmSpares]);
      }
      job_.warm_spares = static_cast<int>(std::min<std::int64_t>(spares, kMostSpares));
    }
    if (job_.start_method == "forkserver" || job_.start_method == "auto" ||
        job_.warm_spares.value_or(0) > 0 || around_.variable("ELASTRUN_TEST_FORKSERVER")) {
      find_fork_server(job_, around_);
    }
    return std::nullopt;
  }

  Refused take_worker_library() {
    const bool hooks = job_.goodput == Goodput::Auto;
    return is_on(Opt::WorkerLib) || hooks ? add_worker_library(job_, around_) : std::nullopt;
  }

  Refused meet() { return choose_rendezvous(job_, values(), around_, place_, out_.warnings); }

  Refused find_topology() {
    return take_topology(job_, values(), around_, out_.warnings, out_.notes);
  }

  Refused take_logs() {
    check_ranks_filter();
    const bool has_template = values()[Opt::PrefixTemplate].origin != Origin::Default;
    job_.prefix_template = has_template ? text(Opt::PrefixTemplate) : "";
    return check_logs_specs();
  }

  void check_ranks_filter() {
    for (const int rank : job_.local_ranks_filter) {
      if (rank >= 0 && rank < job_.nproc_per_node) continue;
      warn(fmt::format("{}: local rank {} does not exist: this node runs {}",
                       values()[Opt::LocalRanksFilter].source, rank,
                       job_.nproc_per_node == 1
                           ? "one worker, local rank 0"
                           : fmt::format("local ranks 0 to {}", job_.nproc_per_node - 1)));
    }
  }

  Refused check_logs_specs() {
    const auto& name = job_.logs_specs;
    const auto& known = around_.logs_specs;
    if (name.empty() || name == "default" ||
        std::find(known.begin(), known.end(), name) != known.end()) {
      return std::nullopt;
    }
    return launcher_refusal(
        fmt::format("Could not find entrypoint under 'torchrun.logs_specs[{}]' key", name),
        "see --logs-specs");
  }

  Refused take_reports() {
    if (auto refusal = take_metrics()) return refusal;
    std::vector<std::string> known = {"null", "console"};
    known.insert(known.end(), around_.event_handlers.begin(), around_.event_handlers.end());
    if (std::find(known.begin(), known.end(), job_.event_log_handler) != known.end())
      return std::nullopt;
    return placed(launcher_refusal(fmt::format("the event handler {} is not registered",
                                               in_quotes(job_.event_log_handler)),
                                   fmt::format("--event-log-handler takes {}", join(known, ", "))),
                  values()[Opt::EventLogHandler]);
  }

  /// A source that is stronger than the job file replaces its routes as well.
  Refused take_metrics() {
    const auto& given = values()[Opt::Metrics];
    const bool by_file = given.origin != Origin::CommandLine && given.origin != Origin::Variable;
    auto sinks =
        metrics_sinks(given, by_file ? file_.metrics_routes : std::vector<MetricsRouteRow>());
    if (!sinks) return sinks.error();
    job_.metrics = std::move(*sinks);
    const double interval = *parse_float(text(Opt::MetricsInterval));
    // Written so that a NaN is refused, too.
    if (!(interval >= 0.1 && interval <= kLongest)) {
      return Refusal{fmt::format("{}: {} is not an interval", values()[Opt::MetricsInterval].source,
                                 text(Opt::MetricsInterval)),
                     2, false, "expected a number of seconds, at least 0.1"};
    }
    job_.metrics_interval = from_seconds(interval);
    return take_aggregations();
  }

  Refused take_aggregations() {
    const auto& given = values()[Opt::Aggregations];
    auto all = stat_aggregations(given);
    if (!all) return all.error();
    job_.aggregations = std::move(*all);
    return std::nullopt;
  }

  Refused choose_mode() {
    const bool module = is_on(Opt::Module), no_python = is_on(Opt::NoPython);
    if (is_on(Opt::RunPath)) {
      job_.mode = Mode::RunPath;
      if (module || no_python) warn("--run-path wins over --module and --no-python");
      const auto methods = choices(row(Opt::StartMethod));
      if (std::find(methods.begin(), methods.end(), job_.start_method) == methods.end()) {
        return launcher_refusal(
            fmt::format("cannot find context for {}", in_quotes(job_.start_method)),
            fmt::format("{} takes {}", values()[Opt::StartMethod].source, join(methods, ", ")));
      }
    } else if (no_python && module) {
      return launcher_refusal(
          "Don't use both the '--no-python' flag and the '--module' flag at the same time.",
          fmt::format("they come from {} and {}", values()[Opt::NoPython].source,
                      values()[Opt::Module].source));
    } else {
      job_.mode = no_python ? Mode::Program : module ? Mode::Module : Mode::Script;
    }
    out_.refusal = find_programs(job_, around_, out_.warnings);
    if (!out_.refusal || !is_awaited() || is_on(Opt::DryRun)) return out_.refusal;
    // Not an error here: the agent meets the others and says why it cannot take part, or they would
    // wait for it until their time is up.
    job_.cannot_start = out_.refusal->text;
    return std::nullopt;
  }

  // Other nodes wait for this one, and can be told that it does not come.
  bool is_awaited() const {
    constexpr std::array<std::string_view, 5> kOurs = {"static", "c10d", "etcd", "etcd-v2", "file"};
    return job_.max_nodes > 1 && !job_.standalone &&
           std::ranges::find(kOurs, job_.rdzv_backend) != kOurs.end();
  }

  const CommandLine& line_;
  const HostEnvironment& around_;
  TomlJob file_;
  std::optional<Placement> place_;  // as the scheduler knows
  Resolved out_;
  JobSpec& job_ = out_.spec;
};

}  // namespace

Answer<Resolved> resolve(const CommandLine& line, const HostEnvironment& around) {
  return Resolver(line, around).run();
}

}  // namespace elastrun::spec
