// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/wire/messages.hpp"

#include <optional>
#include <string>
#include <sys/types.h>

/// Whom a coordinator takes in, and what its log says of them.
namespace elastrun::rendezvous {

/// Those of this process. Its start and its machine are read once.
AgentProcesses own_processes(pid_t guardian);

/// Whether both are of this machine and pid namespace: then they can be looked at from here.
bool are_ours(const AgentProcesses& processes);

/// Whether both have ended, and with the last of them all that the kernel or they had to end. Not,
/// where that cannot be seen (hidepid in proc(5)).
bool are_gone(const AgentProcesses& processes);

/// The first word of an agent in this process. It claims host and user for people who read the log:
/// gethostname(2), and USER, LOGNAME or the number of the user. Asks no name service, which may be
/// far away. `guardian`: its pid; 0: there is none.
Hello own_hello(const std::string& run_id, const std::string& start, std::int64_t epoch,
                pid_t guardian);

/// Why the coordinator of the job `run_id` (empty: of any), in its start `start`, rejects this
/// Hello; empty if it does not. A side that does not know its start, or only how often the job was
/// requeued ("/0"), is not refused for what it does not know.
std::string refusal_of(const Hello& hello, const std::string& run_id, const std::string& start);
/// Why an agent with these rules cannot be of the job with those, whichever its coordinator; none:
/// it can.
std::optional<Refusal> refusal_of(const Rules& its, const Rules& rules);

/// The refusal for a secret that differs from that of the job `run_id` (empty: any).
std::string secret_refusal_of(const std::string& run_id);

/// Warns in the log of each rule (--max-restarts) of that node that is not the one that counts.
void warn_of_other_rules(const Join& join, const Rules& rules);

}  // namespace elastrun::rendezvous
