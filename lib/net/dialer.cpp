// SPDX-License-Identifier: Apache-2.0
#include "net/dialer.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <fcntl.h>
#include <fmt/format.h>
#include <utility>

namespace elastrun::net {

using boost::asio::ip::tcp;

Dialer::Dialer(boost::asio::io_context& loop, Clock& clock)
    : loop_(loop), clock_(clock), resolver_(loop, clock), alarm_(clock.make_alarm()) {}

void Dialer::cancel() {
  ++*attempt_;
  alarm_->disarm();
  resolver_.cancel();
  socket_.reset();
  answer_ = nullptr;
}

void Dialer::dial(const Endpoint& endpoint, Duration limit, Answer answer) {
  cancel();
  endpoint_ = endpoint;
  deadline_ = clock_.now() + limit;
  answer_ = std::move(answer);
  tried_.clear();
  last_ = Code::Io;
  resolver_.resolve(endpoint.host, limit, [this](Result<Addresses> found) {
    if (!found) {
      tried_.push_back(found.error().text);
      return give_up(found.error().code);
    }
    left_ = std::move(*found);
    try_next();
  });
}

void Dialer::try_next() {
  if (left_.empty()) return give_up(last_);
  const auto address = left_.front();
  left_.erase(left_.begin());
  // A completion that is already queued cannot be cancelled any more; by this number it finds out
  // that it is about an attempt that is over.
  const unsigned mine = ++*attempt_;
  socket_ = std::make_unique<tcp::socket>(loop_);
  boost::system::error_code unopened;  // async_connect says it again
  socket_->open(address.is_v4() ? tcp::v4() : tcp::v6(), unopened);
  // The end of this process is the end of the connection, whatever it has started.
  if (!unopened) ::fcntl(socket_->native_handle(), F_SETFD, FD_CLOEXEC);
  const TimePoint time_limit =
      // An address that does not answer must not use up the time of the others.
      left_.empty() ? deadline_ : std::min(deadline_, clock_.now() + std::chrono::seconds(1));
  alarm_->arm(time_limit, [this, address] { ended(address, boost::asio::error::timed_out); });
  socket_->async_connect(tcp::endpoint(address, endpoint_.port),
                         [this, address, mine, current = attempt_](const auto& error) {
                           if (*current == mine) ended(address, error);
                         });
}

void Dialer::ended(const boost::asio::ip::address& address,
                   const boost::system::error_code& error) {
  ++*attempt_;
  alarm_->disarm();
  if (!error) {
    boost::system::error_code ignored;
    // As for accepted(): small messages that wait for an answer.
    socket_->set_option(tcp::no_delay(true), ignored);
    const Answer answer = std::exchange(answer_, {});
    // Out of the members before the answer is given: it may dial again, or destroy the dialer.
    tcp::socket socket = std::move(*socket_);
    socket_.reset();
    return answer(std::move(socket));
  }
  socket_.reset();
  const bool late = error == boost::asio::error::timed_out;
  // Closed: the host answers, but nothing listens there.
  last_ = error == boost::asio::error::connection_refused ? Code::Closed
          : late                                          ? Code::Timeout
                                                          : Code::Io;
  tried_.push_back(
      fmt::format("{}: {}", address.to_string(), late ? "no answer" : error.message()));
  // An address that was refused at once costs nothing, so the next is tried; one that has used up
  // the time ends the list.
  if (clock_.now() >= deadline_) left_.clear();
  try_next();
}

void Dialer::give_up(Code code) {
  alarm_->disarm();
  const Answer answer = std::exchange(answer_, {});
  answer(
      fail(code, fmt::format("cannot reach {} ({})",
                             format_endpoint(endpoint_.host, endpoint_.port), join(tried_, "; "))));
}

}  // namespace elastrun::net
