// SPDX-License-Identifier: Apache-2.0
#include "called_run.hpp"

#include "agent/verdict/verdict.hpp"
#include "caller.hpp"
#include "caller_handler.hpp"
#include "caller_request.hpp"
#include "command_line.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "exit_code.hpp"
#include "launcher/elastic_agent.hpp"
#include "process/descriptor_limit.hpp"
#include "report_json.hpp"
#include "spec/resolve.hpp"
#include "telemetry/events.hpp"
#include "telemetry/metrics.hpp"

#include <charconv>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace elastrun {
namespace {

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
  void record_rdzv(const telemetry::events::RdzvEvent& event) override {
    caller_.tell(json::object{{"rdzv_event", event.to_json()}});
  }

 private:
  Caller& caller_;
};

/// By which exception of torchelastic a caller tells it.
std::string_view name_of(Code code) {
  switch (code) {
    case Code::Usage:
      return "usage";
    case Code::Spawn:
      return "spawn";
    case Code::Io:
      return "io";
    case Code::Closed:
      return "closed";
    case Code::Timeout:
      return "timeout";
    case Code::Cancelled:
      return "signal";
    case Code::Rendezvous:
      return "rendezvous";
    case Code::Store:
      return "store";
    default:
      return "internal";
  }
}

json::object refusal_of(const Error& error) {
  return {{"kind", name_of(error.code)}, {"text", error.text}};
}

int tell_refusal(Caller& caller, const Error& error) {
  const auto told = caller.tell_last(json::object{{"ended", {{"error", refusal_of(error)}}}});
  if (!told) log::error("caller", "{}", error.text);
  return error.code == Code::Usage ? kExitUsage : kExitFailed;
}

/// What the words of a command line say beyond the request's fields.
Result<spec::JobSpec> read_options(std::vector<std::string> words) {
  if (words.empty()) return spec::JobSpec();
  // A line of options needs something to start; true(1) is never run, since the request has its
  // entry point.
  words.insert(words.end(), {"--no-python", "true"});
  const auto line = parse_command_line(words);
  if (!line) return fail(Code::Usage, line.error().text);
  if (line->action != spec::Action::Run) return fail(Code::Usage, "options have to be of a run");
  // No device is counted: the request has its number of workers.
  auto around = spec::system_host_environment([] { return 0; }, [] { return 0; });
  // The caller has decided; what a scheduler or PET_* say is for those who type a command.
  around.variable = [](const std::string&) { return std::nullopt; };
  around.pet_variables = [] { return std::vector<std::string>(); };
  auto job = spec::resolve(*line, around);
  if (!job) return fail(Code::Usage, job.error().text);
  if (job->spec.dry_run || job->spec.explain) {
    return fail(Code::Usage, "options have to be of a run, which dry_run and explain are not");
  }
  for (const auto& warning : job->warnings) log::warning("run", "{}", warning);
  return std::move(job->spec);
}

/// Of the process at the other end of the socket; empty where the kernel does not tell.
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

Result<CallerRequest> request_of(Caller& caller) {
  const auto text = caller.hear();
  if (!text) return std::unexpected(text.error());
  auto request = read_caller_request(*text);
  if (!request) return request;
  auto options = read_options(request->options);
  if (!options) return std::unexpected(options.error());
  request->spec.options = std::move(*options);
  request->spec.options.fork_socket = request->fork_socket.value_or(-1);
  if (!request->asked_at) return request;
  auto asked = Caller::take(*request->asked_at);
  if (!asked) return std::unexpected(asked.error());
  request->spec.rdzv_handler =
      make_caller_handler(std::move(*asked), request->backend, request->run_id);
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
  request.spec.event_log_handler = kHandler;
}

json::object end_of(const agent::LocalElasticAgent& agent, const Result<agent::RunResult>& ended,
                    const Caller& caller, int& code) {
  json::object out;
  out["state"] = agent::state_name(ended ? ended->state : agent::WorkerState::Unknown);
  out["error"] = ended ? json::value(nullptr) : json::value(refusal_of(ended.error()));
  out["lost_records"] = caller.lost();
  const auto& result = agent.job_result();
  const auto job = agent::job_of(agent.spec());
  if (!result || !job) return out;
  code = exit_code(*result, false);
  out["signal"] = result->ending.signal;
  json::array returned;
  if (ended) {
    for (const auto& [rank, worker_code] : ended->return_values) returned.emplace_back(rank);
  }
  out["returned"] = std::move(returned);
  if (auto report = parse_json(report_json(*result, *job, code, {}))) out["report"] = *report;
  return out;
}

}  // namespace

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

int run_for_caller(guardian::Agent& guardian, int descriptor) {
  auto caller = Caller::take(descriptor);
  if (!caller) {
    fmt::print(stderr, "elastrun: error: {}\n", caller.error().text);
    return kExitUsage;
  }
  auto request = request_of(*caller);
  if (!request) return tell_refusal(*caller, request.error());
  if (const auto enough = process::enough_descriptors(); !enough) {
    return tell_refusal(*caller, enough.error());
  }
  // Before the agent is made, which resolves the name of the event handler.
  listen_for(*caller, *request);
  const auto death = death_of_caller(caller->descriptor());
  agent::LocalElasticAgent agent(request->spec, &guardian);
  agent.end_with({caller->descriptor(), death.get()});
  const auto ended = agent.run();
  int code = kExitFailed;
  const auto told = caller->tell_last(json::object{{"ended", end_of(agent, ended, *caller, code)}});
  if (!told) log::warning("caller", "{}", told.error().text);
  return code;
}

}  // namespace elastrun
