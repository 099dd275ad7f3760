// SPDX-License-Identifier: Apache-2.0
#include "command.hpp"
#include "core/json.hpp"
#include "core/system_clock.hpp"
#include "core/text.hpp"
#include "local_runs.hpp"
#include "net/endpoint.hpp"
#include "query.hpp"
#include "status_text.hpp"

#include <cstdio>
#include <fmt/format.h>
#include <utility>

namespace elastrun::ctl {
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

int run_local_status(const StatusOptions& options) {
  auto listed = runs::list_runs(runs::registry_places());
  const auto dead = runs::list_dead_runs(runs::registry_places());
  if (!options.job.run_id.empty()) {
    auto chosen = runs_of(std::move(listed), options.job.run_id);
    if (!chosen) {
      return report_error(
          chosen.error().text + "; give the endpoint of a job to ask its coordinator", kExitFailed);
    }
    listed = std::move(*chosen);
  }
  const WallTime now = std::chrono::system_clock::now();
  fmt::print("{}", options.json ? local_status_json(listed) : local_status_text(listed, now));
  if (!options.json) fmt::print("{}", dead_runs_text(dead));
  return kExitDone;
}

}  // namespace

int run_status(const StatusOptions& options) {
  const auto secret = secret_of(options.job);
  if (!secret) return report_error(secret.error().text, kExitUsage);
  if (options.endpoint.empty()) return run_local_status(options);
  const auto endpoint = net::parse_endpoint(options.endpoint, spec::kC10dPort);
  if (!endpoint) return report_error(endpoint.error().text, kExitUsage);
  boost::asio::io_context loop;
  const auto clock = make_system_clock(loop.get_executor());
  Query query(loop, *clock, *endpoint, sealer_for(loop, *secret));
  const rendezvous::Hello question{options.job.run_id, true, 0};
  const auto said = query.ask(question, from_seconds(options.timeout));
  auto answer = said ? parse_json(std::get<rendezvous::StatusText>(*said).json)
                     : Result<json::value>(std::unexpected(said.error()));
  if (answer) answer = only(std::move(*answer), options.job.run_id);
  if (!answer) return report_error(answer.error().text, kExitFailed);
  const std::string where = net::format_endpoint(endpoint->host, endpoint->port);
  fmt::print("{}", options.json ? json::serialize(*answer) + "\n" : status_text(*answer, where));
  return kExitDone;
}

}  // namespace elastrun::ctl
