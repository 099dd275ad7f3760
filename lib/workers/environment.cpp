// SPDX-License-Identifier: Apache-2.0
#include "workers/environment.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace elastrun::workers {
namespace {

constexpr std::string_view kOmp = "OMP_NUM_THREADS";
constexpr std::string_view kCuda = "CUDA_VISIBLE_DEVICES";
constexpr std::string_view kNccl = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
constexpr std::string_view kServer = "TORCH_WORKER_SERVER_SOCKET";
constexpr std::string_view kCalledBy = "ELASTRUN_CALLED_BY";

constexpr int kSamplesOfSecond = 1000;  // that a process of a worker tells one by one

std::string_view name_of(std::string_view entry) {
  return entry.substr(0, entry.find('='));
}

/// What the worker would have without the contract.
std::optional<std::string_view> given(std::span<const std::string> agent, const WorkerFacts& facts,
                                      std::string_view name) {
  const auto extra = facts.job.worker_env.find(std::string(name));
  if (extra != facts.job.worker_env.end()) return extra->second;
  return find_variable(agent, name);
}

/// The device of a worker that is to see only one: an element of the agent's list, or its number.
Result<std::string> visible_device(std::span<const std::string> agent, const WorkerFacts& facts) {
  const auto list = given(agent, facts, kCuda);
  const int local_rank = facts.local_rank;
  if (!list) return std::to_string(local_rank);
  const auto devices = split(*list, ',');
  if (static_cast<std::size_t>(local_rank) >= devices.size()) {
    return fail(Code::Usage,
                fmt::format("local_rank {} exceeds available GPUs in CUDA_VISIBLE_DEVICES={}: "
                            "--virtual-local-rank needs one device for each worker",
                            local_rank, *list));
  }
  return std::string(trim(devices[static_cast<std::size_t>(local_rank)]));
}

/// Collects "NAME=VALUE" entries.
struct Entries {
  std::vector<std::string> list;
  void add(std::string_view name, const auto& value) {
    list.push_back(fmt::format("{}={}", name, value));
  }
};

void add_ranks(Entries& out, const WorkerFacts& facts) {
  const auto& round = facts.round;
  const int local_rank = facts.local_rank;
  out.add("RANK", round.rank_base + local_rank);
  // With one visible device for each worker, that is device 0.
  out.add("LOCAL_RANK", facts.job.virtual_local_rank ? 0 : local_rank);
  out.add("GROUP_RANK", round.group_rank);
  out.add("ROLE_RANK", round.role_rank_base + local_rank);
  out.add("ROLE_NAME", facts.node.role);
  out.add("LOCAL_WORLD_SIZE", facts.node.local_world_size);
  out.add("WORLD_SIZE", round.world_size);
  out.add("GROUP_WORLD_SIZE", facts.nodes);
  out.add("ROLE_WORLD_SIZE", round.role_world_size);
  out.add("MASTER_ADDR", facts.meeting.host);
  out.add("MASTER_PORT", facts.meeting.port);
}

void add_elastic(Entries& out, const WorkerFacts& facts) {
  out.add("TORCHELASTIC_RESTART_COUNT", facts.round.attempt);
  out.add("TORCHELASTIC_MAX_RESTARTS", facts.job.max_restarts);
  out.add("TORCHELASTIC_RUN_ID", facts.job.run_id);
  out.add("TORCHELASTIC_USE_AGENT_STORE", facts.use_agent_store ? "True" : "False");
  out.add("TORCHELASTIC_SIGNALS_TO_HANDLE", facts.job.signals_text);
  out.add("TORCHELASTIC_ERROR_FILE", facts.error_file);
  if (!facts.timer_file.empty()) out.add("TORCHELASTIC_TIMER_FILE", facts.timer_file);
}

std::string aggregations_text(const spec::JobSpec& job) {
  std::vector<std::string> all;
  for (const auto& [pattern, names] : job.aggregations) {
    all.push_back(pattern + '=' + join(names, "+"));
  }
  return join(all, ",");
}

/// Not SIGTERM, by which workers are asked to end as well.
std::string announcements_text(const spec::JobSpec& job) {
  auto names = job.preempt_signals;
  std::erase(names, "SIGTERM");
  return join(names, ",");
}

void add_own(Entries& out, const WorkerFacts& facts) {
  out.add("ELASTRUN_JOB", facts.job.run_id);
  if (!facts.agent_id.empty()) out.add("ELASTRUN_AGENT_ID", facts.agent_id);
  if (!facts.run_dir.empty()) out.add("ELASTRUN_RUN_DIR", facts.run_dir);
  if (!facts.channel.empty()) out.add("ELASTRUN_CHANNEL", facts.channel);
  if (!facts.page.empty()) out.add("ELASTRUN_PAGE", facts.page);
  if (facts.job.goodput == spec::Goodput::Auto) out.add("ELASTRUN_GOODPUT", "auto");
  if (const auto text = aggregations_text(facts.job); !text.empty()) {
    out.add("ELASTRUN_AGGREGATIONS", text);
  }
  if (const auto text = announcements_text(facts.job); !text.empty()) {
    out.add("ELASTRUN_PREEMPT_SIGNALS", text);
  }
  // Without a sink that shows them, single samples would be told for nothing.
  const bool each = std::ranges::any_of(facts.job.metrics, &spec::SinkChoice::each);
  if (each && !facts.channel.empty()) out.add("ELASTRUN_SAMPLES", kSamplesOfSecond);
}

/// Never inherited, whether or not this worker gets its own: an agent may be a worker of
/// another elastrun.
bool is_agent_variable(std::string_view name) {
  constexpr std::array<std::string_view, 10> kOwn = {
      "ELASTRUN_JOB",     "ELASTRUN_AGENT_ID",     "ELASTRUN_RUN_DIR",
      "ELASTRUN_CHANNEL", "ELASTRUN_PAGE",         "ELASTRUN_GOODPUT",
      "ELASTRUN_SAMPLES", "ELASTRUN_AGGREGATIONS", "ELASTRUN_PREEMPT_SIGNALS",
      kCalledBy};
  return std::ranges::find(kOwn, name) != kOwn.end();
}

/// The interpreter that became this agent (python -m elastrun) has named itself. A worker that
/// launches with another one must not get this one.
bool is_callers_interpreter(std::string_view entry, std::span<const std::string> agent) {
  constexpr std::string_view kInterpreter = "PYTHON_EXEC=";
  return entry.starts_with(kInterpreter) &&
         find_variable(agent, kCalledBy) == entry.substr(kInterpreter.size());
}

}  // namespace

Result<std::vector<std::string>> contract_variables(std::span<const std::string> agent,
                                                    const WorkerFacts& facts) {
  Entries out;
  out.list.reserve(32);
  add_ranks(out, facts);
  add_elastic(out, facts);
  // As torchrun's agent: a rank of NCCL that fails then ends its process instead of hanging in the
  // next collective.
  if (!given(agent, facts, kNccl)) out.add(kNccl, "1");
  // As torchrun: each worker would start a thread for every core otherwise.
  if (facts.node.local_world_size > 1 && !given(agent, facts, kOmp)) out.add(kOmp, "1");
  if (facts.job.virtual_local_rank) {
    const auto device = visible_device(agent, facts);
    if (!device) return std::unexpected(device.error());
    out.add(kCuda, *device);
  }
  // One file for all of them would be that of the worker which comes first, or last.
  if (const auto server = given(agent, facts, kServer)) {
    out.add(kServer, fill_local_rank(*server, facts.local_rank));
  }
  add_own(out, facts);
  return std::move(out.list);
}

Result<std::vector<std::string>> worker_environment(std::span<const std::string> agent,
                                                    const WorkerFacts& facts) {
  auto contract = contract_variables(agent, facts);
  if (!contract) return contract;
  // Each name once in the result: of two entries getenv(3) takes the first, and a shell the last.
  std::vector<std::string_view> replaced;
  replaced.reserve(contract->size());
  for (const auto& entry : *contract) replaced.push_back(name_of(entry));
  std::ranges::sort(replaced);
  const auto in_contract = [&](std::string_view name) {
    return std::ranges::binary_search(replaced, name);
  };
  Entries out;
  out.list.reserve(agent.size() + facts.job.worker_env.size() + contract->size());
  for (const auto& entry : agent) {
    const auto name = name_of(entry);
    if (in_contract(name) || is_agent_variable(name) ||
        facts.job.worker_env.contains(std::string(name)))
      continue;
    if (is_secret(name, std::string_view(entry).substr(name.size()))) continue;
    if (is_callers_interpreter(entry, agent)) continue;
    out.list.push_back(entry);
  }
  for (const auto& [name, value] : facts.job.worker_env) {
    if (!in_contract(name) && !is_agent_variable(name) && !is_secret(name, value))
      out.add(name, value);
  }
  for (auto& entry : *contract) out.list.push_back(std::move(entry));
  return std::move(out.list);
}

bool is_secret(std::string_view name, std::string_view value) {
  if (name == "ELASTRUN_SECRET") return true;
  return name == "PET_RDZV_CONF" && value.find("password") != std::string_view::npos;
}

void remove_placement(std::vector<std::string>& environment) {
  constexpr std::array<std::string_view, 11> kNames = {
      "RANK",       "LOCAL_RANK",       "GROUP_RANK",       "ROLE_RANK",       "ROLE_NAME",  //
      "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR",
      "MASTER_PORT"};
  std::erase_if(environment, [&](const std::string& entry) {
    const auto name = name_of(entry);
    return name.starts_with("TORCHELASTIC_") || name.starts_with("ELASTRUN_") ||
           std::ranges::find(kNames, name) != kNames.end();
  });
}

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    entries.emplace_back(*entry);
  }
  return entries;
}

const std::string_view kRunPathProgram = R"PY(
import sys

def elastrun_wait_for_the_others(channel):
    # As torch's: a worker that ends early takes down what others still use (a store, shared memory).
    import socket
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
            agent.connect(channel)
            agent.send(b'{"kind":"returned"}')
            agent.recv(1)  # the agent ends the connection when all have returned
    except OSError:
        pass

def elastrun_run_path():
    import faulthandler, os, runpy
    del sys.argv[0]
    channel = os.path.abspath(os.environ.get("ELASTRUN_CHANNEL") or os.devnull)
    worker = os.getpid()
    try:
        faulthandler.enable(all_threads=True)
    except Exception:
        pass
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception as error:
        import json, time, traceback
        path = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if path:
            info = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
            text = "%s: %s" % (type(error).__name__, error)
            with open(path, "w") as out:
                json.dump({"message": {"message": text, "extraInfo": info}}, out)
        raise
    if os.getpid() == worker:  # and not a child that it forked
        elastrun_wait_for_the_others(channel)

elastrun_run_path()
)PY";

std::string fill_local_rank(std::string_view text, int local_rank) {
  return fill_template(text, {{"local_rank", std::to_string(local_rank)}});
}

std::string why_not_again(const spec::JobSpec& spec) {
  struct stat info {};
  const bool is_input = spec.mode == spec::Mode::Script && spec.script == "-";
  const bool is_path = spec.mode == spec::Mode::Script || spec.mode == spec::Mode::RunPath;
  // Python opens a regular file that is /dev/stdin again, and reads it from its begin.
  const bool is_pipe = is_path && ::stat(spec.script.c_str(), &info) == 0 &&
                       (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode));
  if (!is_input && !is_pipe) return {};
  return fmt::format(
      "the script {} is {}, which can be read only once; give elastrun a file to have it restarted",
      spec.script, is_input ? "standard input" : "a pipe");
}

std::vector<std::string> worker_command(const spec::JobSpec& spec, int local_rank) {
  std::vector<std::string> argv;
  argv.reserve(spec.script_args.size() + 4);
  switch (spec.mode) {
    case spec::Mode::Script:
      // Unbuffered, as by torchrun: what a worker printed before it was killed is in its log.
      argv = {spec.interpreter, "-u", fill_local_rank(spec.script, local_rank)};
      break;
    case spec::Mode::Module:
      argv = {spec.interpreter, "-u", "-m", fill_local_rank(spec.script, local_rank)};
      break;
    case spec::Mode::Program:
      // As torch, which fills in arguments alone: the program is not one of them.
      argv = {spec.script};
      break;
    case spec::Mode::RunPath:
      argv = {spec.interpreter, "-c", std::string(kRunPathProgram),
              fill_local_rank(spec.script, local_rank)};
      break;
  }
  for (const auto& argument : spec.script_args) {
    argv.push_back(fill_local_rank(argument, local_rank));
  }
  return argv;
}

std::string program_name(const spec::JobSpec& spec) {
  // With --run-path torchrun runs its function of this name, and shows it in log and report.
  if (spec.mode == spec::Mode::RunPath) return "run_script_path";
  return spec.mode == spec::Mode::Program ? spec.script : spec.interpreter;
}

std::string program_base_name(const spec::JobSpec& spec) {
  const auto program = program_name(spec);
  return program.substr(program.rfind('/') + 1);
}

std::string entry_name(const spec::JobSpec& spec) {
  const bool is_script = spec.mode == spec::Mode::Script || spec.mode == spec::Mode::Module;
  return is_script && !spec.interpreter_given ? spec.script : program_name(spec);
}

}  // namespace elastrun::workers
