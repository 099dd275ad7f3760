// SPDX-License-Identifier: Apache-2.0
#include "query.hpp"

#include "core/system_clock.hpp"
#include "core/text.hpp"
#include "net/dialer.hpp"
#include "net/link.hpp"
#include "rendezvous/session/munge.hpp"

#include <boost/asio/io_context.hpp>
#include <fmt/format.h>
#include <memory>
#include <utility>

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
  return net::make_exchanging_sealer(rendezvous::make_munge_exchange(loop, *munge, false));
}

/// One question and its answer. Ends the loop.
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
    link_ = net::Link::make(std::move(socket), sealer_, net::Link::Side::Connector);
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

}  // namespace

Result<FromCoordinator> ask_coordinator(const net::Endpoint& endpoint, const std::string& secret,
                                        rendezvous::Hello question, Duration limit) {
  return Query(endpoint, secret, std::move(question)).ask(limit);
}

}  // namespace elastrun::ctl
