// SPDX-License-Identifier: Apache-2.0

#include "core/json.hpp"
#include "core/text.hpp"
#include "local_runs.hpp"
#include "net/endpoint.hpp"
#include "query.hpp"
#include "rendezvous/membership/wording.hpp"
#include "subcommands.hpp"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <fmt/format.h>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::ctl {

namespace {

std::string text_of(const json::value& value, std::string_view name) {
  return shown(member_text_or(value, name, ""));
}

std::string duration_of(const json::value& value) {
  const json::value* seconds = find_member(value, "seconds");
  if (seconds == nullptr || !seconds->is_number()) return "";
  return format_duration(from_seconds(std::max(seconds->to_number<double>(), 0.0)));
}

const json::array& elements(const json::value& value, std::string_view name) {
  // Returned by reference, so it outlives the call.
  static const json::array kNone;
  const json::value* found = find_member(value, name);
  return found != nullptr && found->is_array() ? found->get_array() : kNone;
}

std::string nodes_wanted(const json::value& job) {
  const auto least = member_int_or(job, "min_nodes", 0), most = member_int_or(job, "max_nodes", 0);
  return least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
}

std::string headline(const json::value& job, const std::string& endpoint) {
  const std::string phase = text_of(job, "phase"), since = duration_of(job);
  std::string line = fmt::format("job \"{}\" at {}: {}", text_of(job, "run_id"), endpoint, phase);
  if (!since.empty()) line += " for " + since;
  const auto round = member_int_or(job, "round", 0);
  line += round == 0 ? ", no round yet" : fmt::format(", round {}", round);
  const auto number = [&job](std::string_view name) {
    return static_cast<int>(std::clamp<std::int64_t>(member_int_or(job, name, 0), 0, INT_MAX));
  };
  const auto restarts =
      rendezvous::restarts_text(number("attempt"), number("restarts_left"), number("max_restarts"));
  return line + fmt::format(", {}, {} of {} nodes here\n", restarts, elements(job, "nodes").size(),
                            nodes_wanted(job));
}

std::string nodes_table(const json::value& job) {
  std::vector<std::vector<std::string>> rows{
      {"NODE", "ADDRESS", "ROLE", "WORKERS", "DOING", "FOR"}};
  const bool by_topology = text_of(job, "rank_order") == "topology";
  if (by_topology) rows[0].insert(rows[0].end(), {"RANK", "TOPOLOGY"});
  for (const json::value& node : elements(job, "nodes")) {
    std::string name = text_of(node, "id");
    if (find_member(node, "node_rank") != nullptr) {
      name += fmt::format(" (node rank {})", member_int_or(node, "node_rank", -1));
    }
    rows.push_back({name, text_of(node, "address"), text_of(node, "role"),
                    fmt::format("{}", member_int_or(node, "workers", 0)), text_of(node, "doing"),
                    duration_of(node)});
    if (!by_topology) continue;
    const auto rank = member_int_or(node, "group_rank", -1);
    rows.back().push_back(rank < 0 ? "-" : fmt::to_string(rank));
    rows.back().push_back(text_of(node, "topology"));
  }
  return rows.size() > 1 ? table(rows) : "";
}

/// Of workers that are stopped or in a debugger: the job waits for them.
std::string held_text(const json::value& job) {
  std::string text;
  for (const json::value& worker : elements(job, "held")) {
    text +=
        fmt::format("  rank {} is {}\n", member_int_or(worker, "rank", -1), text_of(worker, "by"));
  }
  return text;
}

std::string missing_text(const json::value& job) {
  std::string text;
  for (const json::value& node : elements(job, "gone")) {
    text += fmt::format("  gone {} ago: {}\n", duration_of(node), text_of(node, "why"));
  }
  std::vector<std::string> ranks;
  for (const json::value& rank : elements(job, "missing_node_ranks")) {
    if (rank.is_number()) ranks.push_back(fmt::format("{}", rank.to_number<std::int64_t>()));
  }
  if (!ranks.empty()) return text + fmt::format("  missing: node rank {}\n", join(ranks, ", "));
  const auto missing = member_int_or(job, "missing", 0);
  // The coordinator counts who is missing in an ended job as well.
  if (missing > 0 && text_of(job, "phase") != "ended") {
    text +=
        fmt::format("  missing: {} more node{} for a round\n", missing, missing == 1 ? "" : "s");
  }
  return text;
}

/// What the restart policy decided last, and what it holds against nodes.
std::string ledger_text(const json::value& job) {
  const json::value* memory = find_member(job, "restarts");
  if (memory == nullptr || !memory->is_object()) return "";
  std::string text;
  for (const json::value& entry : elements(*memory, "ledger")) {
    const auto age = find_member(entry, "age");
    const bool known = age != nullptr && age->is_number();
    text +=
        fmt::format("  {} ago: {} {} {}: {}\n",
                    known ? format_duration(from_seconds(age->to_number<double>())) : "some time",
                    text_of(entry, "class"), text_of(entry, "fingerprint"), text_of(entry, "place"),
                    text_of(entry, "decision"));
  }
  for (const json::value& mark : elements(*memory, "marks")) {
    text += fmt::format("  held against {}: {}\n", text_of(mark, "place"), text_of(mark, "why"));
  }
  return text;
}

}  // namespace

/// What a coordinator says of its jobs (rendezvous/coordinator) as a person reads it: per job a
/// line on the whole, a table of its nodes, and who is missing. Control characters in names that
/// came from outside are left out. Pure.
std::string status_text(const json::value& status, const std::string& endpoint) {
  const json::array& jobs = elements(status, "jobs");
  if (jobs.empty()) return fmt::format("no job at {}: no agent has come yet\n", endpoint);
  std::string text;
  for (const json::value& job : jobs) {
    text += headline(job, endpoint);
    if (const std::string more = text_of(job, "text"); !more.empty()) text += "  " + more + "\n";
    text += nodes_table(job) + held_text(job) + missing_text(job) + ledger_text(job);
  }
  return text;
}

namespace {

// A coordinator of many jobs tells of all of them.
Result<json::value> only(json::value status, const std::string& run_id) {
  json::value* jobs = status.is_object() ? status.get_object().if_contains("jobs") : nullptr;
  if (jobs == nullptr || !jobs->is_array()) {
    return fail(Code::Protocol, "the coordinator's answer tells of no jobs");
  }
  if (run_id.empty()) return status;
  json::array kept;
  std::vector<std::string> others;
  for (json::value& job : jobs->get_array()) {
    const std::string name = member_text_or(job, "run_id", "");
    if (name == run_id) {
      kept.push_back(std::move(job));
    } else {
      others.push_back("\"" + name + "\"");
    }
  }
  if (kept.empty()) {
    return fail(Code::Rendezvous,
                fmt::format("no agent of the job \"{}\" is there; jobs: {}", run_id,
                            others.empty() ? "none" : join(others, ", ")));
  }
  *jobs = std::move(kept);
  return status;
}

/// The jobs of this machine that are asked for.
Result<std::vector<runs::ListedRun>> local_runs(const StatusOptions& options) {
  auto listed = runs_here();
  const auto& job = options.target.empty() ? options.job.run_id : options.target;
  return job.empty() ? listed : runs_of(std::move(listed), job);
}

int print_local_status(const StatusOptions& options, const std::vector<runs::ListedRun>& listed) {
  const auto dead = runs::list_dead_runs(runs::registry_places());
  const WallTime now = std::chrono::system_clock::now();
  fmt::print("{}", options.json ? local_status_json(listed) : local_status_text(listed, now));
  if (!options.json) fmt::print("{}", dead_runs_text(dead));
  return kExitDone;
}

/// `here`: why it is no job of this machine.
int print_answer(const StatusOptions& options, const net::Endpoint& endpoint,
                 const std::string& secret, const std::optional<Error>& here) {
  const auto said =
      ask_coordinator(endpoint, secret, {options.job.run_id, rendezvous::Hello::Who::Status},
                      from_seconds(options.timeout));
  // It may have answered with anything.
  const auto* status = said ? std::get_if<rendezvous::StatusText>(&*said) : nullptr;
  Result<json::value> answer =
      status ? parse_json(status->json)
      : said ? Result<json::value>(fail(Code::Protocol, "another answer than a status"))
             : Result<json::value>(std::unexpected(said.error()));
  if (answer) answer = only(std::move(*answer), options.job.run_id);
  if (!answer) {
    const auto& error = answer.error();
    return report_error(here ? neither_here(*here, error).text : error.text, kExitFailed);
  }
  const std::string where = net::format_endpoint(endpoint.host, endpoint.port);
  fmt::print("{}", options.json ? json::serialize(*answer) + "\n" : status_text(*answer, where));
  return kExitDone;
}

}  // namespace

int run_status(const StatusOptions& options) {
  const auto secret = secret_of(options.job);
  if (!secret) return report_error(secret.error().text, kExitUsage);
  std::optional<Error> here;
  // With a colon it is an endpoint; without one it may be a job or a host, and a job that runs here
  // is looked for first, since it needs no network.
  if (!options.target.contains(':')) {
    const auto listed = local_runs(options);
    if (listed) return print_local_status(options, *listed);
    here = listed.error();
    if (options.target.empty() || here->code == Code::Usage) {
      return report_error(here->text + "\n  give the endpoint of a job to ask its coordinator",
                          kExitFailed);
    }
  }
  const auto endpoint = net::parse_endpoint(options.target, spec::kC10dPort);
  if (!endpoint) return report_error(endpoint.error().text, kExitUsage);
  return print_answer(options, *endpoint, *secret, here);
}

}  // namespace elastrun::ctl
