// SPDX-License-Identifier: Apache-2.0

#include "launcher/status/run_status.hpp"

#include "agent/round/round_store.hpp"
#include "core/file_io.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "files/blocking_calls.hpp"
#include "net/endpoint.hpp"
#include "process/process_table.hpp"
#include "runs/run_registry.hpp"
#include "workers/environment.hpp"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <utility>
#include <vector>

namespace elastrun::agent {
namespace {

namespace fs = std::filesystem;

// Area and sentences are those of torchrun, in whose output tools look for them.
constexpr std::string_view kApiArea = "api";

std::string numbers(int from, int count) {
  std::vector<std::string> all;
  for (int i = 0; i < count; ++i) all.push_back(std::to_string(from + i));
  return "[" + join(all, ", ") + "]";
}

std::string repeated(int number, int count) {
  return "[" +
         join(std::vector<std::string>(static_cast<std::size_t>(count), std::to_string(number)),
              ", ") +
         "]";
}

// Long enough that the launch is over, short enough that a user who types a command does not
// notice.
constexpr auto kMoment = std::chrono::milliseconds(50);
// A start waits for it.
constexpr auto kToEnd = std::chrono::milliseconds(900);
constexpr auto kNoAnswer = std::chrono::seconds(2);  // of the directory at the start
constexpr auto kToRemove = std::chrono::seconds(1);

// Nodes that are started together come within a few seconds of each other.
constexpr Duration kFirstWarning = std::chrono::seconds(10);
// A job may wait for days: its log must not fill up meanwhile.
constexpr Duration kLongestPause = std::chrono::minutes(10);

/// What to do about an endpoint that not all nodes can reach, or node 0 cannot have. Empty:
/// nothing.
std::string unreachable_text(const spec::JobSpec& job) {
  const bool fixed_ranks = job.rdzv_backend == spec::backend::kStatic;
  const auto& config = job.rendezvous;
  const bool in_c10d = job.rdzv_backend == spec::backend::kC10d && !config.meets_in_file;
  const auto endpoint = net::parse_endpoint(job.rdzv_endpoint, spec::kC10dPort);
  if ((!fixed_ranks && !in_c10d) || !endpoint) return {};
  if (!net::is_loopback_host(endpoint->host) && !net::is_wildcard(endpoint->host)) {
    const auto address = net::parse_address(endpoint->host);
    const bool elsewhere = !address.is_unspecified() && !net::is_own_address(address);
    if (!fixed_ranks || job.node_rank != 0 || !elsewhere) return {};
    return ", which is not an address of this machine: if this is not node 0, give --node-rank";
  }
  if (fixed_ranks ? job.node_rank != 0 : config.is_host == false) {
    return fmt::format(", on this machine: if node 0 is another one, give {} with its address",
                       fixed_ranks ? "--master-addr" : "--rdzv-endpoint");
  }
  std::vector<std::string> own;
  for (const auto& one : net::reachable_addresses()) {
    const auto address = one.address.to_string();
    own.push_back(fixed_ranks
                      ? fmt::format("--master-addr {} --master-port {}", address, endpoint->port)
                      : "--rdzv-endpoint " + net::format_endpoint(address, endpoint->port));
  }
  if (own.empty()) own.emplace_back(fixed_ranks ? "--master-addr" : "--rdzv-endpoint");
  return fmt::format(
      ", which other machines cannot reach: nodes there need this one's address ({})",
      join(own, " or "));
}

}  // namespace

void say_launch(const spec::JobSpec& spec) {
  // Asked before, because the text is made before the log can decline it.
  if (!log::is_on(log::Level::Info)) return;
  const auto row = [](std::string_view name, const auto& value) {
    return fmt::format("  {:<24} : {}\n", name, value);
  };
  const auto text =
      "Starting elastic_operator with launch configs:\n" + row("entrypoint", spec.script) +
      row("min_nodes", spec.min_nodes) + row("max_nodes", spec.max_nodes) +
      row("nproc_per_node", spec.nproc_per_node) + row("run_id", spec.run_id) +
      row("rdzv_backend", spec.rdzv_backend) + row("rdzv_endpoint", spec.rdzv_endpoint) +
      row("max_restarts", spec.max_restarts) + row("monitor_interval", spec.monitor_interval) +
      row("log_dir", spec.log_dir) + row("event_log_handler", spec.event_log_handler) +
      row("signals_to_handle", spec.signals_text);
  log::info(kApiArea, "{}", text);
}

/// Writes what torchrun's agent writes into its log at these moments (torchrun-parity 4.4, 4.5), in
/// its words: people and tools look for them.
class TorchrunLog final : public Observes<TorchrunLog> {
 public:
  explicit TorchrunLog(const spec::JobSpec& spec) : spec_(spec) {}

  void on(const moment::RoundReady& seen) {
    if (!log::is_on(log::Level::Info)) return;
    const int count = seen.round.self().local_world_size;
    const auto meeting = meeting_place(spec_, seen.round);
    log::info(kApiArea, "[{}] starting workers for entrypoint: {}", spec_.role,
              workers::program_base_name(spec_));
    log::info(kApiArea,
              "[{}] Rendezvous complete for workers. Result:\n"
              "  restart_count={}\n  master_addr={}\n  master_port={}\n  group_rank={}\n"
              "  group_world_size={}\n  local_ranks={}\n  role_ranks={}\n  global_ranks={}\n"
              "  role_world_sizes={}\n  global_world_sizes={}\n  event_log_handler={}\n",
              spec_.role, seen.round.attempt, meeting.host, meeting.port, seen.round.group_rank,
              seen.round.group_world_size(), numbers(0, count),
              numbers(seen.round.role_rank_base, count), numbers(seen.round.rank_base, count),
              repeated(seen.round.role_world_size, count), repeated(seen.round.world_size, count),
              spec_.event_log_handler);
    log::info(kApiArea, "[{}] Starting worker group", spec_.role);
  }

  void on(const moment::Failed& seen) {
    const auto& root = seen.judgement.failures[seen.judgement.root];
    const bool run_path = spec_.mode == spec::Mode::RunPath;
    const auto what = run_path ? fmt::format("fn: {} (start_method: {})",
                                             workers::program_name(spec_), spec_.start_method)
                               : "binary: " + workers::program_name(spec_);
    log::error(kApiArea, "failed (exitcode: {}) local_rank: {} (pid: {}) of {}",
               root.status.as_python(), root.local_rank, root.pid, what);
  }
  void on(const moment::Restarting& seen) {
    if (seen.order.attempt_spent) {
      // torchrun prints the number from before this restart is counted, so ours is one too low for
      // it.
      log::info(kApiArea,
                "[{}] Worker group FAILED. {}/{} attempts left; will restart worker group",
                spec_.role, seen.order.restarts_left + 1, spec_.max_restarts);
    } else {
      log::info(kApiArea, "[{}] {}; will restart worker group", spec_.role, seen.order.cause.text);
    }
  }
  void on(const moment::Ended& seen) {
    if (!seen.result.ending.why.empty() && seen.result.succeeded()) {
      log::warning(kApiArea, "{}", seen.result.ending.why);
    }
    log::info(kApiArea, "[{}] The job is over: it {}", spec_.role,
              seen.result.succeeded() ? "succeeded" : "failed");
  }
  void on(const moment::PhaseChanged& seen) {
    if (seen.phase == Phase::Joining) {
      log::info(kApiArea, "[{}] Rendezvous'ing worker group", spec_.role);
    } else if (seen.phase == Phase::Barrier) {
      log::info(kApiArea,
                "[{}] worker group successfully finished. Waiting {} for other agents to finish.",
                spec_.role, format_duration(spec_.exit_barrier_timeout));
    }
  }

 private:
  const spec::JobSpec& spec_;
};

/// Registers this run where `elastrunctl status` and `logs` find it, and keeps the entry current.
/// The file is written once things have stood for a moment: a launch waits for nothing, a short job
/// never registers, and a storm of restarts costs a file now and then. That it cannot be written
/// costs a debug line, never the job. ELASTRUN_RUNTIME_DIR may lie on a network file system, so a
/// separate thread writes and removes the file.
class RunRegistration final : public Observes<RunRegistration> {
 public:
  /// Borrows run, layout and channel. `agent_id`: ELASTRUN_AGENT_ID of the workers. The guardian
  /// removes the entry of an agent that was killed.
  RunRegistration(RunContext& run, const logs::Layout& layout, const workers::Channel& channel,
                  std::string agent_id, bool keeps_output)
      : run_(run),
        layout_(layout),
        channel_(channel),
        several_nodes_(run.spec.max_nodes > 1),
        soon_(run.clock.make_alarm()),
        calls_(run.loop.get_executor()) {
    const auto& spec = run.spec;
    entry_.run_id = spec.run_id;
    entry_.name = spec.name;
    entry_.entry_point = workers::entry_name(spec);
    entry_.started = entry_.phase_since = run.clock.wall();
    entry_.min_nodes = spec.min_nodes;
    entry_.max_nodes = spec.max_nodes;
    entry_.rdzv_backend = spec.rdzv_backend;
    // Elsewhere the endpoint is a register, which does not answer questions about the status.
    const bool asked_at_endpoint =
        spec.rdzv_backend == spec::backend::kC10d || spec.rdzv_backend == spec::backend::kStatic;
    if (!spec.standalone && several_nodes_ && asked_at_endpoint)
      entry_.endpoint = spec.rdzv_endpoint;
    entry_.max_restarts = entry_.restarts_left = spec.max_restarts;
    entry_.keeps_output = keeps_output && !layout.is_null();
    entry_.agent_id = std::move(agent_id);
  }

  ~RunRegistration() override { end(); }

  void on(const moment::PhaseChanged& seen) {
    entry_.phase = phase_text(seen.phase);
    if (seen.phase == Phase::Joining && !several_nodes_) entry_.phase = "starting";
    entry_.phase_since = run_.clock.wall();
    changed();
  }
  void on(const moment::RoundReady& seen) {
    entry_.attempt = seen.round.restarts(), entry_.restarts_left = seen.round.restarts_left;
    changed();
  }
  void on(const moment::Started& seen) {
    entry_.workers.clear();
    for (const auto& worker : seen.group) {
      entry_.workers.push_back({worker.rank, worker.local_rank, worker.pid,
                                absolute_path(fs::path(worker.error_file).parent_path().string()),
                                0});
    }
    const bool first = entry_.group_started == WallTime{};
    entry_.group_started = run_.clock.wall();
    // Many workers take longer to start than that, and reading their start times takes a part of
    // it.
    if (first) awaited_ = false;
    changed();
  }
  void on(const moment::Stopped&) {
    entry_.workers.clear();
    changed();
  }
  void end() {
    if (std::exchange(ended_, true)) return;
    soon_->disarm();
    if (!registration_) return;
    calls_.enqueue(std::make_shared<const std::string>("the directory of runs"),
                   [registration = registration_] {
                     registration->remove();
                     return files::BlockingCalls::Outcome{};
                   });
    // If the directory does not answer, the guardian removes the entry after our end.
    if (calls_.finish(kToRemove)) remember({});
  }

 private:
  void changed() {
    if (writing_) changed_ = true;
    if (awaited_ || writing_ || ended_) return;
    awaited_ = true;
    soon_->arm(run_.clock.now() + kMoment, [this] {
      awaited_ = false;
      write();
    });
  }

  void write() {
    // elastrunctl reads the entry in another working directory.
    entry_.run_directory = absolute_path(layout_.run_directory());
    entry_.channel = absolute_path(channel_.path());
    if (entry_.pid == 0) {
      if (const auto identified = runs::identify(entry_); !identified) {
        return log::debug("runs", "not registered: {}", identified.error().text);
      }
    }
    for (auto& worker : entry_.workers) {
      // With its start time, since a pid alone may be another process's when one looks at it.
      if (worker.start_time > 0) continue;
      const auto process = process::read_process(worker.pid);
      worker.start_time = process ? process->start_time : 0;
    }
    // Shared with the calls: a thread that hangs in the file system may use it after this object
    // has gone.
    if (!registration_)
      registration_ = std::make_shared<runs::Registration>(runs::registry_places());
    // Before it is there, because the agent may be killed as soon as it is.
    if (remembered_.empty()) remember(registration_->preferred_path(entry_));
    writing_ = true;
    // What changes meanwhile is written by a call after it.
    calls_.enqueue(std::make_shared<const std::string>("the directory of runs"),
                   [this, registration = registration_, entry = entry_] {
                     const auto result = registration->write(entry);
                     return files::BlockingCalls::Outcome{
                         [this, result, path = registration->path()] { written(result, path); }};
                   });
  }

  void written(const Status& written, const std::string& path) {
    writing_ = false;
    if (!written && !std::exchange(said_, true)) {
      // Where a user has named the place, or another one has taken it, this has to be told;
      // elsewhere a container without a writable /tmp is normal.
      const bool told =
          runs::is_place_named() || !runs::trouble_of_places(runs::registry_places()).empty();
      const auto level = told ? log::Level::Warning : log::Level::Info;
      log::write(level, "runs", "elastrunctl cannot find this run: " + written.error().text);
    }
    remember(path);
    if (std::exchange(changed_, false)) changed();
  }
  void remember(const std::string& path) {
    if (path == remembered_) return;
    // First, because the guardian's board has few places. Killed in between, the agent leaves a
    // file that the next start removes.
    if (!remembered_.empty()) run_.guardian.forget(remembered_);
    remembered_ = path;
    if (!path.empty()) run_.guardian.remember(path);
  }

  RunContext& run_;
  const logs::Layout& layout_;
  const workers::Channel& channel_;
  const bool several_nodes_;
  const std::unique_ptr<Alarm> soon_;
  bool awaited_ = false, writing_ = false, changed_ = false, ended_ = false, said_ = false;
  std::string remembered_;  // by the guardian
  runs::RunEntry entry_;
  std::shared_ptr<runs::Registration> registration_;  // made with the first call; its thread's
  files::BlockingCalls calls_;
};

void end_dead_runs() {
  const auto places = runs::registry_places();
  // A look takes less than a thread that would bound it, and nearly every start ends here.
  if (runs::are_places_near() && runs::list_runs(places, runs::Agents::Gone).empty()) return;
  const auto ended =
      files::result_within("the directory of runs, " + join(places, " or "), kNoAnswer,
                           [places] { return runs::end_dead_runs(places, kToEnd); });
  if (!ended) {
    return log::warning("runs", "what earlier runs may have left was not looked for: {}",
                        ended.error().text);
  }
  for (const auto& run : *ended) {
    const auto& name = run.entry.name;
    log::warning("runs",
                 "killed what the job \"{}\" had left, of which agent and guardian were "
                 "killed: {}",
                 name, process::names_of(run.left));
    if (run.alive.empty()) continue;
    log::warning("runs", "cannot end these processes of the job \"{}\": {}", name,
                 process::names_of(run.alive));
  }
}

RunStatus::RunStatus(RunContext& run, bool shows_line, const logs::Layout& layout,
                     const workers::Channel& channel, std::string agent_id, bool keeps_output)
    : line_(run.clock, run.console, shows_line),
      view_(line_, run.spec),
      log_(std::make_unique<TorchrunLog>(run.spec)),
      waiting_(run.clock, run.spec, line_.is_enabled()),
      registration_(std::make_unique<RunRegistration>(run, layout, channel, std::move(agent_id),
                                                      keeps_output)) {}

RunStatus::~RunStatus() = default;

Observer& RunStatus::log() {
  return *log_;
}

std::vector<Observer*> RunStatus::observers() {
  return {&view_, &waiting_, registration_.get()};
}

void RunStatus::end() {
  registration_->end();
}

StatusView::StatusView(logs::StatusLine& line, const spec::JobSpec& job)
    : line_(line),
      several_nodes_(job.max_nodes > 1),
      place_(fmt::format("at {}: ", job.rdzv_endpoint)),
      workers_(job.nproc_per_node) {
  if (job.max_restarts > 0) status_.max_restarts = job.max_restarts;
}

WaitingWarning::WaitingWarning(Clock& clock, const spec::JobSpec& job, bool is_seen)
    : clock_(clock),
      unreachable_(job.max_nodes > 1 ? unreachable_text(job) : ""),
      wanted_(job.max_nodes > 1 && (!is_seen || !unreachable_.empty())),
      endpoint_(job.rdzv_endpoint) {}

void WaitingWarning::on(const moment::PhaseChanged& seen) {
  alarm_.reset();
  if (!wanted_ || seen.phase != Phase::Joining) return;
  text_.clear();
  pause_ = kFirstWarning;
  alarm_ = clock_.make_alarm();
  alarm_->arm(seen.now + pause_, [this] { warn(); });
}

void WaitingWarning::warn() {
  log::warning("rendezvous", "{}; nodes meet at {}{}",
               text_.empty() ? "waiting for other nodes" : text_, endpoint_, unreachable_);
  pause_ = std::min(pause_ * 2, kLongestPause);
  alarm_->arm(clock_.now() + pause_, [this] { warn(); });
}

}  // namespace elastrun::agent
