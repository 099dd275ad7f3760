// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wire/admission.hpp"

#include "core/host.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "process/process_table.hpp"

#include <algorithm>
#include <boost/describe/members.hpp>
#include <boost/mp11/algorithm.hpp>
#include <cerrno>
#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <signal.h>
#include <string_view>
#include <unistd.h>

namespace elastrun::rendezvous {
namespace {

ProcessMark mark_of(pid_t pid) {
  if (pid <= 0) return {};
  const auto entry = process::read_process(pid);
  return entry ? ProcessMark{pid, entry->start_time} : ProcessMark{};
}

bool is_gone(const ProcessMark& mark) {
  if (mark.pid <= 0) return true;
  const auto entry = process::read_process(mark.pid);
  // The start time tells a process from a later one with its number; a zombie runs nothing more.
  if (entry) return entry->zombie() || entry->start_time != mark.start_time;
  // /proc may hide processes of others (hidepid in proc(5)), so only kill(2) can say that one has
  // gone.
  return ::kill(mark.pid, 0) != 0 && errno == ESRCH;
}

const AgentProcesses& this_machine() {
  static const AgentProcesses own = [] {
    AgentProcesses read;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), read.boot);
    read.namespace_ = process::own_pid_namespace();
    return read;
  }();
  return own;
}

std::string nodes_text(const Rules& rules) {
  return rules.min_nodes == rules.max_nodes
             ? fmt::format("--nnodes {}", rules.max_nodes)
             : fmt::format("--nnodes {}:{}", rules.min_nodes, rules.max_nodes);
}

std::string alone_text(const Rules& rules) {
  return rules.role_restart.empty()
             ? "no role restarts alone"
             : fmt::format("these roles restart alone: {}", rules.role_restart);
}

/// As it is given: "--max-restarts 3". A flag is called after its option and the choice that it
/// stands for: "restart_policy_auto".
template <class Value>
std::string given_text(std::string rule, const Value& value) {
  std::ranges::replace(rule, '_', '-');
  if constexpr (std::is_same_v<Value, bool>) {
    rule[rule.rfind('-')] = ' ';
    return (value ? "--" : "not --") + rule;
  } else {
    return fmt::format("--{} {}", rule, value);
  }
}

/// "1700000000/1": its time, which Slurm does not tell everywhere, and the number of requeues.
bool may_be_same_start(std::string_view one, std::string_view other) {
  const auto time_of = [](std::string_view start) { return start.substr(0, start.find('/')); };
  const auto time = time_of(one), other_time = time_of(other);
  const bool known = !time.empty() && !other_time.empty();
  // Without a time on one side the number of requeues decides alone.
  return known ? one == other : one.substr(time.size()) == other.substr(other_time.size());
}

}  // namespace

AgentProcesses own_processes(pid_t guardian) {
  static const ProcessMark own = mark_of(::getpid());
  AgentProcesses processes = this_machine();
  processes.agent = own;
  processes.guardian = mark_of(guardian);
  return processes;
}

bool are_ours(const AgentProcesses& processes) {
  const AgentProcesses& own = this_machine();
  // Numbers of processes mean something within one boot and one pid namespace only.
  return !own.boot.empty() && own.namespace_ != 0 && processes.boot == own.boot &&
         processes.namespace_ == own.namespace_ && processes.agent.pid > 0;
}

bool are_gone(const AgentProcesses& processes) {
  return is_gone(processes.agent) && is_gone(processes.guardian);
}

Hello own_hello(const std::string& run_id, const std::string& start, std::int64_t epoch,
                pid_t guardian) {
  Hello hello{run_id, Hello::Who::Agent, epoch, start, host_name(), fmt::to_string(::geteuid())};
  for (const char* name : {"LOGNAME", "USER"}) {
    const char* user = std::getenv(name);
    if (user != nullptr && *user != '\0') hello.user = user;
  }
  hello.processes = own_processes(guardian);
  return hello;
}

std::string refusal_of(const Hello& hello, const std::string& run_id, const std::string& start) {
  if (!run_id.empty() && !hello.run_id.empty() && hello.run_id != run_id) {
    return fmt::format(
        "the job that meets here is \"{}\", not \"{}\" (--rdzv-id); give each job its "
        "own port",
        run_id, hello.run_id);
  }
  if (!start.empty() && !hello.start.empty() && !may_be_same_start(hello.start, start)) {
    return fmt::format(
        "this is start {} of the job \"{}\", not {} (time and number of requeues, "
        "as the scheduler tells them): end what an earlier start has left behind",
        start, run_id, hello.start);
  }
  return {};
}

std::optional<Refusal> refusal_of(const Rules& its, const Rules& rules) {
  // Who stops whom has to be told alike everywhere, as a group that goes on alone would hang.
  if (its.role_restart != rules.role_restart) {
    const auto text = fmt::format(
        "in the job that meets here {}, for this node {} (--role-restart): start all of its agents "
        "with the same",
        alone_text(rules), alone_text(its));
    return Refusal{text, true, true};
  }
  if (its.min_nodes == rules.min_nodes && its.max_nodes == rules.max_nodes) return std::nullopt;
  const auto text = fmt::format(
      "the job that meets here was started with {}, this node with {}: use the same "
      "number of nodes on all of them, and another --rdzv-id for another job",
      nodes_text(rules), nodes_text(its));
  return Refusal{text, true};
}

std::string secret_refusal_of(const std::string& run_id) {
  return run_id.empty()
             ? "your secret (ELASTRUN_SECRET, or secret_file in --rdzv-conf) is not the one of "
               "this coordinator"
             : fmt::format(
                   "your secret (ELASTRUN_SECRET, or secret_file in --rdzv-conf) is not "
                   "the one of the job \"{}\" that meets here; if yours is another job, "
                   "give it another port",
                   run_id);
}

void warn_of_other_rules(const Join& join, const Rules& rules) {
  using namespace boost::describe;
  boost::mp11::mp_for_each<describe_members<spec::AgreedRules, mod_public>>([&](auto rule) {
    const auto &its = join.rules.*rule.pointer, &counts = rules.*rule.pointer;
    if (its == counts) return;
    log::warning("rendezvous", "{} was started with {}, the coordinator's {} counts", join.node.id,
                 given_text(rule.name, its), given_text(rule.name, counts));
  });
}

}  // namespace elastrun::rendezvous
