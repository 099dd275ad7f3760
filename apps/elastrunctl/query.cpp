// SPDX-License-Identifier: Apache-2.0
#include "query.hpp"

#include "core/text.hpp"
#include "rendezvous/session/munge.hpp"

#include <fmt/format.h>
#include <utility>

namespace elastrun::ctl {
namespace {

using boost::asio::ip::tcp;
using rendezvous::FromCoordinator;

constexpr std::size_t kLongest = 256u << 20;  // an answer about tens of thousands of nodes

}  // namespace

Query::Query(boost::asio::io_context& loop, Clock& clock, net::Endpoint endpoint,
             std::shared_ptr<const net::Sealer> sealer)
    : loop_(loop),
      clock_(clock),
      endpoint_(std::move(endpoint)),
      sealer_(std::move(sealer)),
      dialer_(loop, clock),
      alarm_(clock.make_alarm()) {}

Result<FromCoordinator> Query::ask(rendezvous::Hello question, Duration limit) {
  question_ = std::move(question);
  // One limit for looking up, connecting and the answer together: people have said how long they
  // wait.
  alarm_->arm(clock_.now() + limit, [this] { finish(fail(Code::Timeout, silence())); });
  limit_ = limit;
  dialer_.dial(endpoint_, limit, [this](Result<tcp::socket> socket) {
    if (!socket) return finish(fail(socket.error().code, no_answer(socket.error())));
    talk(std::move(*socket));
  });
  loop_.run();
  return std::move(answer_);
}

void Query::talk(tcp::socket socket) {
  connected_ = true;
  link_ = net::Link::make(std::move(socket), sealer_, net::Link::Side::Connector);
  link_->frame_limit(kLongest);
  net::Link::Handlers handlers;
  handlers.on_frame = [this](const std::string& payload) { hear(payload); };
  handlers.on_end = [this](const Error& error) { finish(fail(error.code, ended(error))); };
  link_->start(std::move(handlers));
  link_->send(rendezvous::encode(rendezvous::FromAgent(question_)));
}

void Query::hear(const std::string& payload) {
  auto message = rendezvous::decode_from_coordinator(payload);
  if (!message) return finish(std::unexpected(message.error()));
  if (const auto* refusal = std::get_if<rendezvous::Refusal>(&*message)) {
    return finish(fail(Code::Rendezvous, fmt::format("{} refuses: {}", where(), refusal->text)));
  }
  const auto* push = std::get_if<rendezvous::Push>(&*message);
  const bool stacks = push != nullptr && std::holds_alternative<rendezvous::StacksReport>(*push);
  if (stacks || std::holds_alternative<rendezvous::StatusText>(*message)) {
    return finish(std::move(message));
  }
  if (std::holds_alternative<rendezvous::Welcome>(*message)) {
    // A coordinator of an older version takes the question for that of an agent that joins.
    finish(fail(Code::Protocol,
                fmt::format("the agents at {} are of a version that cannot answer this", where())));
  }
}

void Query::finish(Result<FromCoordinator> answer) {
  answer_ = std::move(answer);
  alarm_->disarm();
  dialer_.cancel();
  if (link_) link_->close();
  loop_.stop();
}

std::string Query::no_answer(const Error& error) const {
  return fmt::format(
      "no answer from {}: {}; give the --rdzv-endpoint of the job (a job of one node, or one that "
      "has ended, has none)",
      where(), error.text);
}

std::string Query::stranger() const {
  return fmt::format("what listens at {} is not a coordinator of elastrun", where());
}

std::string Query::silence() const {
  if (!connected_) return no_answer({Code::Timeout, "no connection"});
  return fmt::format("{}, or it is stuck: it took the connection and said nothing for {}",
                     stranger(), format_duration(limit_));
}

std::string Query::ended(const Error& error) const {
  if (error.code == Code::Rendezvous) return fmt::format("{} refuses: {}", where(), error.text);
  return fmt::format("{}: {}", stranger(), error.text);
}

std::shared_ptr<const net::Sealer> sealer_for(boost::asio::io_context& loop,
                                              const std::string& secret) {
  Result<std::shared_ptr<const rendezvous::Munge>> munge = fail(Code::Usage, "a secret is given");
  if (secret.empty()) munge = rendezvous::load_munge();
  if (!munge) return net::make_sealer(secret);
  // Not required: a coordinator may run where MUNGE does not.
  return net::make_exchanging_sealer(rendezvous::make_munge_exchange(loop, *munge, false));
}

}  // namespace elastrun::ctl
