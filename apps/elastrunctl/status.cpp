// SPDX-License-Identifier: Apache-2.0

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/file_io.hpp"
#include "core/json.hpp"
#include "core/system_clock.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "elastrunctl/command_line.hpp"
#include "hangs/stacks.hpp"
#include "local_runs.hpp"
#include "net/dialer.hpp"
#include "net/endpoint.hpp"
#include "net/link.hpp"
#include "rendezvous/membership/wording.hpp"
#include "rendezvous/session/munge.hpp"
#include "rendezvous/wire/messages.hpp"
#include "runs/run_registry.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fmt/format.h>
#include <memory>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/un.h>
#include <utility>
#include <vector>

namespace elastrun::ctl {
namespace {

using boost::asio::ip::tcp;
using rendezvous::FromCoordinator;

constexpr std::size_t kLongest = 256u << 20;  // an answer about tens of thousands of nodes

std::shared_ptr<const net::Sealer> sealer_for(boost::asio::io_context& loop,
                                              const std::string& secret) {
  Result<std::shared_ptr<const rendezvous::Munge>> munge = fail(Code::Usage, "a secret is given");
  if (secret.empty()) munge = rendezvous::load_munge();
  if (!munge) return net::make_sealer(secret);
  // Not required: a coordinator may run where MUNGE does not.
  return net::make_sealer("", rendezvous::make_munge_exchange(loop, *munge, false));
}

/// Asks a coordinator one question and gives its answer: a StatusText or StacksReport. Seals by the
/// secret, or as the coordinator asks: a cluster's login node has MUNGE, too. Fails with Timeout,
/// Io, Rendezvous or Protocol, and says what that means for the user. Ends its loop.
class Query {
 public:
  Query(const net::Endpoint& endpoint, const std::string& secret, rendezvous::Hello question)
      : endpoint_(endpoint), sealer_(sealer_for(loop_, secret)), question_(std::move(question)) {}

  Result<FromCoordinator> ask(Duration limit) {
    // One limit for looking up, connecting and the answer together: people have said how long they
    // wait.
    limit_ = limit;
    alarm_->arm(clock_->now() + limit, [this] { finish(fail(Code::Timeout, silence())); });
    dialer_.dial(endpoint_, limit, [this](Result<tcp::socket> socket) {
      if (!socket) return finish(fail(socket.error().code, no_answer(socket.error())));
      talk(std::move(*socket));
    });
    loop_.run();
    return std::move(answer_);
  }

 private:
  void talk(tcp::socket socket) {
    link_ = std::make_shared<net::Link>(std::move(socket), sealer_, net::Link::Side::Connector);
    link_->frame_limit(kLongest);
    net::Link::Handlers handlers;
    handlers.on_frame = [this](const std::string& payload) { hear(payload); };
    handlers.on_end = [this](const Error& error) { finish(fail(error.code, ended(error))); };
    link_->start(std::move(handlers));
    link_->send(rendezvous::encode(rendezvous::FromAgent(question_)));
  }

  void hear(const std::string& payload) {
    auto message = rendezvous::decode_from_coordinator(payload);
    if (!message) return finish(std::unexpected(message.error()));
    if (const auto* refusal = std::get_if<rendezvous::Refusal>(&*message)) {
      return finish(fail(Code::Rendezvous, fmt::format("{} refuses: {}", where(), refusal->text)));
    }
    const auto* push = std::get_if<rendezvous::Push>(&*message);
    const bool stacks = push != nullptr && std::holds_alternative<rendezvous::StacksReport>(*push);
    if (stacks || std::holds_alternative<rendezvous::StatusText>(*message))
      finish(std::move(message));
  }

  void finish(Result<FromCoordinator> answer) {
    answer_ = std::move(answer);
    alarm_->disarm();
    dialer_.cancel();
    if (link_) link_->close();
    loop_.stop();
  }

  std::string where() const { return net::format_endpoint(endpoint_.host, endpoint_.port); }
  std::string no_answer(const Error& error) const {
    return fmt::format(
        "no answer from {}: {}; give the --rdzv-endpoint of the job (a job of one node, or one "
        "that has ended, has none)",
        where(), error.text);
  }
  std::string stranger() const {
    return fmt::format("what listens at {} is not a coordinator of elastrun", where());
  }
  std::string silence() const {
    if (!link_) return no_answer({Code::Timeout, "no connection"});
    return fmt::format("{}, or it is stuck: it took the connection and said nothing for {}",
                       stranger(), format_duration(limit_));
  }
  std::string ended(const Error& error) const {
    if (error.code == Code::Rendezvous) return fmt::format("{} refuses: {}", where(), error.text);
    return fmt::format("{}: {}", stranger(), error.text);
  }

  boost::asio::io_context loop_;
  const std::unique_ptr<Clock> clock_ = make_system_clock(loop_.get_executor());
  const net::Endpoint endpoint_;
  const std::shared_ptr<const net::Sealer> sealer_;
  net::Dialer dialer_{loop_, *clock_};
  const std::unique_ptr<Alarm> alarm_ = clock_->make_alarm();
  const rendezvous::Hello question_;
  Duration limit_{};
  std::shared_ptr<net::Link> link_;
  Result<FromCoordinator> answer_ = fail(Code::Internal, "the question was never asked");
};

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
                            nodes_text(member_int_or(job, "min_nodes", 0),
                                       member_int_or(job, "max_nodes", 0)));
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
  const auto said = Query(endpoint, secret, {options.job.run_id, rendezvous::Hello::Who::Status})
                        .ask(from_seconds(options.timeout));
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

Result<UniqueFd> connect_to(const std::string& channel) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // 108 bytes with the final zero (unix(7)).
  if (channel.size() >= sizeof address.sun_path) {
    return fail(Code::Io, fmt::format("{} is too long for a socket", channel));
  }
  std::memcpy(address.sun_path, channel.c_str(), channel.size() + 1);
  const auto* raw = reinterpret_cast<const sockaddr*>(&address);
  if (!socket || ::connect(socket.get(), raw, sizeof address) != 0) {
    return std::unexpected(errno_error(Code::Io, "cannot reach the agent at " + channel, errno));
  }
  return socket;
}

/// Sends the question to the agent of a run on this machine; on the connection comes the answer, if
/// there is one. Fails with Rendezvous where no worker of it runs, else with Io.
Result<UniqueFd> ask_agent(const runs::RunEntry& run, std::string_view question) {
  if (run.channel.empty() || run.workers.empty()) {
    return fail(Code::Rendezvous, fmt::format("no worker of the job \"{}\" runs here: it is {}",
                                              shown(run.name), run.phase));
  }
  auto socket = connect_to(run.channel);
  if (socket && ::send(socket->get(), question.data(), question.size(), MSG_NOSIGNAL) < 0) {
    return std::unexpected(errno_error(Code::Io, "cannot ask the agent", errno));
  }
  return socket;
}

using rendezvous::StacksReport;

constexpr std::size_t kMostLines = 1000;  // of one stack

Result<StacksReport> stacks_in(Result<FromCoordinator> answer) {
  if (!answer) return std::unexpected(answer.error());
  const auto* push = std::get_if<rendezvous::Push>(&*answer);
  const auto* report = std::get_if<StacksReport>(push);
  if (report == nullptr) return fail(Code::Protocol, "the answer tells of no stacks");
  return *report;
}

/// The file whose descriptor comes over the socket.
Result<UniqueFd> receive_file(int socket) {
  // The agent sends a byte with the descriptor, see send_file().
  char nothing = 0;
  iovec data{&nothing, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const auto got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  const cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) {
    return fail(Code::Closed, "the agent has closed the connection without an answer");
  }
  int file = -1;
  std::memcpy(&file, CMSG_DATA(header), sizeof file);
  return UniqueFd(file);
}

/// Asks the agent of a run on this machine, which asks all nodes of its job.
Result<StacksReport> stacks_by_agent(const runs::RunEntry& run, Duration limit) {
  const auto socket = ask_agent(run, R"({"kind":"ask_stacks"})");
  if (!socket) return std::unexpected(socket.error());
  pollfd readable{socket->get(), POLLIN, 0};
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  if (::poll(&readable, 1, static_cast<int>(wait)) <= 0) {
    return fail(Code::Timeout, fmt::format("the agent (process {}) has said nothing for {}",
                                           run.pid, format_duration(limit)));
  }
  // A file and not a message: stacks of thousands of workers are larger than a SEQPACKET may be
  // (socket(7), wmem_max).
  const auto file = receive_file(socket->get());
  if (!file) return std::unexpected(file.error());
  const auto text = read_file(fmt::format("/proc/self/fd/{}", file->get()));
  if (!text) return std::unexpected(text.error());
  return stacks_in(rendezvous::decode_from_coordinator(*text));
}

Result<StacksReport> stacks_by_coordinator(const StacksOptions& options,
                                           const std::string& secret) {
  const auto endpoint = net::parse_endpoint(options.target, spec::kC10dPort);
  if (!endpoint) return std::unexpected(endpoint.error());
  return stacks_in(Query(*endpoint, secret, {options.job.run_id, rendezvous::Hello::Who::Stacks})
                       .ask(from_seconds(options.timeout)));
}

/// A job of this machine wins over an endpoint of that name.
Result<StacksReport> ask(const StacksOptions& options, const std::string& secret) {
  const auto runs =
      runs_of(runs_here(), options.target.empty() ? options.job.run_id : options.target);
  // Any agent of the job will do: each of them asks all nodes.
  if (runs) return stacks_by_agent(runs->front().entry, from_seconds(options.timeout));
  const bool is_here = runs.error().code == Code::Usage;
  if (options.target.empty() || is_here) return std::unexpected(runs.error());
  auto answer = stacks_by_coordinator(options, secret);
  if (!answer && !options.target.contains(':')) {
    return std::unexpected(neither_here(runs.error(), answer.error()));
  }
  return answer;
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

int run_stacks(const StacksOptions& options) {
  const auto secret = secret_of(options.job);
  if (!secret) return report_error(secret.error().text, kExitUsage);
  auto report = ask(options, *secret);
  if (!report) return report_error(report.error().text, kExitFailed);
  auto& stacks = report->stacks;
  if (options.json) {
    fmt::print("{}\n", json::serialize(hangs::stacks_json(stacks)));
    return kExitDone;
  }
  for (auto& group : stacks.groups) {
    if (!options.kernel) group.lines = hangs::without_kernel(group.lines);
  }
  const auto text = hangs::stacks_lines(stacks, "\n", kMostLines);
  fmt::print("{}\n", text.empty() ? "no worker of the job runs" : text.substr(1));
  return kExitDone;
}

int run_preempt(const PreemptOptions& options) {
  const auto runs = runs_of(runs_here(), options.job);
  if (!runs) return report_error(runs.error().text, kExitFailed);
  const auto& run = runs->front().entry;
  const auto& deadline = options.deadline;
  const auto question = deadline ? fmt::format(R"({{"kind":"preempt","deadline":{}}})", *deadline)
                                 : std::string(R"({"kind":"preempt"})");
  // Any agent of the job will do: it tells the coordinator, which tells all nodes.
  if (const auto asked = ask_agent(run, question); !asked) {
    return report_error(asked.error().text, kExitFailed);
  }
  fmt::print("asked the job \"{}\" to save and end\n", shown(run.name));
  return kExitDone;
}

}  // namespace elastrun::ctl
