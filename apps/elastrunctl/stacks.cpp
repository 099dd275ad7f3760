// SPDX-License-Identifier: Apache-2.0

#include "core/error.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "hangs/stack_sections.hpp"
#include "hangs/stacks_report.hpp"
#include "local_runs.hpp"
#include "query.hpp"
#include "runs/run_registry.hpp"
#include "subcommands.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <poll.h>
#include <string_view>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace elastrun::ctl {
namespace {

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

using rendezvous::FromCoordinator;
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

std::string whole(const UniqueFd& file) {
  std::string text;
  std::array<char, 65536> buffer;
  ssize_t got = 0;
  while ((got = ::read(file.get(), buffer.data(), buffer.size())) > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
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
  return stacks_in(rendezvous::decode_from_coordinator(whole(*file)));
}

Result<StacksReport> stacks_by_coordinator(const StacksOptions& options,
                                           const std::string& secret) {
  const auto endpoint = net::parse_endpoint(options.target, spec::kC10dPort);
  if (!endpoint) return std::unexpected(endpoint.error());
  return stacks_in(ask_coordinator(*endpoint, secret,
                                   {options.job.run_id, rendezvous::Hello::Who::Stacks},
                                   from_seconds(options.timeout)));
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
