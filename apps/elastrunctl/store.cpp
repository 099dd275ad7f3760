// SPDX-License-Identifier: Apache-2.0
#include "core/log.hpp"
#include "core/system_clock.hpp"
#include "elastrunctl/command_line.hpp"
#include "net/endpoint.hpp"
#include "rendezvous/coordinator/coordinator.hpp"
#include "rendezvous/coordinator/store_state_file.hpp"
#include "store/server.hpp"

#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdio>
#include <fmt/format.h>
#include <memory>
#include <sys/resource.h>
#include <utility>

namespace elastrun::ctl {
namespace {

// Agents whose job is over go by themselves; the others are cut off then.
constexpr auto kLastWords = std::chrono::seconds(5);

/// A descriptor for each agent and each store client: as many as the hard limit allows.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  // The soft limit is 1024 on most systems, for the sake of programs that use select(2).
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// Reads where to listen. Only numbers: a name may mean several addresses, or another machine's.
Result<net::Endpoint> listening_point(const std::string& text) {
  auto endpoint =
      net::parse_endpoint(text.starts_with('*') ? "[::]" + text.substr(1) : text, spec::kC10dPort);
  if (!endpoint) return endpoint;
  // Loopback by RFC 6761, without asking a resolver.
  if (endpoint->host == "localhost") endpoint->host = "127.0.0.1";
  boost::system::error_code error;
  boost::asio::ip::make_address(endpoint->host, error);
  if (error) {
    return fail(Code::Usage, fmt::format("--listen {}: \"{}\" is not a numeric address, localhost "
                                         "or *",
                                         text, endpoint->host));
  }
  return endpoint;
}

rendezvous::CoordinatorSettings coordinator_settings(const JobChoice& job) {
  rendezvous::CoordinatorSettings settings;
  settings.run_id = job.run_id;
  settings.stand_alone = true;
  settings.heartbeat = job.config.keep_alive_interval;
  settings.heartbeats_missed = job.config.keep_alive_max_attempt;
  return settings;
}

/// Reads the state from before the restart, and names the file for the next one.
Status read_state(const std::string& file, boost::asio::io_context& loop, Clock& clock,
                  rendezvous::CoordinatorSettings& settings,
                  std::unique_ptr<rendezvous::StoreStateFile>& known) {
  if (file.empty()) return {};
  auto opened = rendezvous::StoreStateFile::open(loop, clock, file);
  if (!opened) return std::unexpected(opened.error());
  known = std::move(*opened);
  known->attach(settings);
  return {};
}

int exit_code_of(const Error& error) {
  return error.code == Code::Usage ? kExitUsage : kExitFailed;
}

void warn_of_openness(const net::Endpoint& endpoint, const std::string& secret) {
  if (!secret.empty() || net::parse_address(endpoint.host).is_loopback()) return;
  log::warning(
      "store",
      "no secret is set: anybody who reaches {} can join or stop a job. Set ELASTRUN_SECRET, "
      "or --secret-file, to the same text here and on all nodes",
      net::format_endpoint(endpoint.host, endpoint.port));
}

/// Ends the loop once a signal says so and agents whose job is over have heard it.
void end_on(boost::asio::signal_set& signals, boost::asio::io_context& loop,
            rendezvous::Coordinator& host) {
  signals.async_wait([&loop, &host](const boost::system::error_code& error, int) {
    if (error) return;
    // Agents of unfinished jobs wait a while for this coordinator to be started again.
    host.retire("the stand-alone coordinator was stopped", true, kLastWords,
                [&loop] { loop.stop(); });
  });
}

}  // namespace

int run_store(const StoreOptions& options) {
  const auto endpoint = listening_point(options.listen);
  if (!endpoint) return report_error(endpoint.error().text, kExitUsage);
  const auto secret = secret_of(options.job);
  if (!secret) return report_error(secret.error().text, kExitUsage);
  raise_descriptor_limit();
  boost::asio::io_context loop;
  const auto clock = make_system_clock(loop.get_executor());
  auto settings = coordinator_settings(options.job);
  std::unique_ptr<rendezvous::StoreStateFile> known;
  if (const auto read = read_state(options.state, loop, *clock, settings, known); !read)
    return report_error(read.error().text, exit_code_of(read.error()));
  auto host =
      rendezvous::Coordinator::open(loop, *clock, net::make_sealer(*secret),
                                    {.address = endpoint->host, .port = endpoint->port}, settings);
  if (!host) return report_error(host.error().text, kExitFailed);
  // Its clients come through the host's port only; its own port is not announced.
  auto server = store::Server::listen(loop, "127.0.0.1", 0, {});
  if (!server) return report_error(server.error().text, kExitFailed);
  if (!options.coordinator_only) (*host)->share_store({.current = server->get()});
  warn_of_openness(*endpoint, *secret);
  boost::asio::signal_set signals(loop, SIGTERM, SIGINT);
  end_on(signals, loop, **host);
  fmt::print("elastrunctl: listening at {}\n",
             net::format_endpoint(endpoint->host, (*host)->port()));
  // stdout is buffered unless it is a terminal, and this program ends only by a signal: a script
  // that waits for the line would wait for ever.
  std::fflush(stdout);
  loop.run();
  return kExitDone;
}

}  // namespace elastrun::ctl
