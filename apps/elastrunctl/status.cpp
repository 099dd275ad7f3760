// SPDX-License-Identifier: Apache-2.0
#include "command.hpp"
#include "core/json.hpp"
#include "core/system_clock.hpp"
#include "core/text.hpp"
#include "local_runs.hpp"
#include "net/dialer.hpp"
#include "net/endpoint.hpp"
#include "net/link.hpp"
#include "rendezvous/session/munge.hpp"
#include "rendezvous/wire/messages.hpp"
#include "status_text.hpp"

#include <cstdio>
#include <fmt/format.h>
#include <utility>

namespace elastrun::ctl {
namespace {

using boost::asio::ip::tcp;

constexpr std::size_t kLongest = 256u << 20;  // an answer about tens of thousands of nodes

/// One question and its answer. Ends the loop.
class Query {
 public:
  Query(boost::asio::io_context& loop, Clock& clock, net::Endpoint endpoint,
        std::shared_ptr<const net::Sealer> sealer, std::string run_id)
      : loop_(loop),
        clock_(clock),
        endpoint_(std::move(endpoint)),
        sealer_(std::move(sealer)),
        run_id_(std::move(run_id)),
        dialer_(loop, clock),
        alarm_(clock.make_alarm()) {}

  Result<json::value> ask(Duration limit) {
    alarm_->arm(clock_.now() + limit, [this] { finish(fail(Code::Timeout, silence())); });
    limit_ = limit;
    dialer_.dial(endpoint_, limit, [this](Result<tcp::socket> socket) {
      if (!socket) return finish(fail(socket.error().code, nobody(socket.error())));
      talk(std::move(*socket));
    });
    loop_.run();
    return std::move(answer_);
  }

 private:
  void talk(tcp::socket socket) {
    connected_ = true;
    link_ = net::Link::make(std::move(socket), sealer_, net::Link::Side::Connector);
    link_->frame_limit(kLongest);
    net::Link::Handlers handlers;
    handlers.on_frame = [this](const std::string& payload) { hear(payload); };
    handlers.on_end = [this](const Error& error) { finish(fail(error.code, ended(error))); };
    link_->start(std::move(handlers));
    link_->send(rendezvous::encode(rendezvous::FromAgent(rendezvous::Hello{run_id_, true, 0})));
  }

  void hear(const std::string& payload) {
    const auto message = rendezvous::decode_from_coordinator(payload);
    if (!message) return finish(std::unexpected(message.error()));
    if (const auto* refusal = std::get_if<rendezvous::Refusal>(&*message)) {
      return finish(fail(Code::Rendezvous, fmt::format("{} refuses: {}", where(), refusal->text)));
    }
    if (const auto* status = std::get_if<rendezvous::StatusText>(&*message)) {
      finish(parse_json(status->json));
    }
  }

  void finish(Result<json::value> answer) {
    answer_ = std::move(answer);
    alarm_->disarm();
    dialer_.cancel();
    if (link_) link_->close();
    loop_.stop();
  }

  std::string where() const { return net::format_endpoint(endpoint_.host, endpoint_.port); }

  std::string nobody(const Error& error) const {
    return fmt::format(
        "no answer from {}: {}. Give the rendezvous endpoint of the job "
        "(--rdzv-endpoint); jobs of one node have none (elastrunctl status shows those of this "
        "machine), and a job that has ended has no coordinator any more",
        where(), error.text);
  }
  std::string stranger() const {
    return fmt::format("what listens at {} is not a coordinator of elastrun", where());
  }
  std::string silence() const {
    if (!connected_) return nobody({Code::Timeout, "no connection"});
    return fmt::format("{}, or it is stuck: it took the connection and said nothing for {}",
                       stranger(), format_duration(limit_));
  }
  std::string ended(const Error& error) const {
    if (error.code == Code::Rendezvous) return fmt::format("{} refuses: {}", where(), error.text);
    return fmt::format("{}: {}", stranger(), error.text);
  }

  boost::asio::io_context& loop_;
  Clock& clock_;
  const net::Endpoint endpoint_;
  const std::shared_ptr<const net::Sealer> sealer_;
  const std::string run_id_;
  net::Dialer dialer_;
  const std::unique_ptr<Alarm> alarm_;
  Duration limit_{};
  std::shared_ptr<net::Link> link_;
  bool connected_ = false;
  Result<json::value> answer_ = fail(Code::Internal, "the question was never asked");
};

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

/// By the secret, else as the coordinator asks for it: the login node of a cluster has MUNGE, too.
std::shared_ptr<const net::Sealer> sealer_for(boost::asio::io_context& loop,
                                              const std::string& secret) {
  Result<std::shared_ptr<const rendezvous::Munge>> munge = fail(Code::Usage, "a secret is given");
  if (secret.empty()) munge = rendezvous::load_munge();
  if (!munge) return net::make_sealer(secret);
  return net::make_exchanging_sealer(rendezvous::make_munge_exchange(loop, *munge, false));
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
  Query query(loop, *clock, *endpoint, sealer_for(loop, *secret), options.job.run_id);
  auto answer = query.ask(from_seconds(options.timeout));
  if (answer) answer = only(std::move(*answer), options.job.run_id);
  if (!answer) return report_error(answer.error().text, kExitFailed);
  const std::string where = net::format_endpoint(endpoint->host, endpoint->port);
  fmt::print("{}", options.json ? json::serialize(*answer) + "\n" : status_text(*answer, where));
  return kExitDone;
}

}  // namespace elastrun::ctl
