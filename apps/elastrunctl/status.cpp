// SPDX-License-Identifier: Apache-2.0
#include "core/json.hpp"
#include "core/system_clock.hpp"
#include "core/text.hpp"
#include "local_runs.hpp"
#include "net/endpoint.hpp"
#include "query.hpp"
#include "status_text.hpp"
#include "subcommands.hpp"

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
  boost::asio::io_context loop;
  const auto clock = make_system_clock(loop.get_executor());
  Query query(loop, *clock, endpoint, sealer_for(loop, secret));
  const rendezvous::Hello question{options.job.run_id, true, 0};
  const auto said = query.ask(question, from_seconds(options.timeout));
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
