// SPDX-License-Identifier: Apache-2.0

#include "net/dialer.hpp"

#include "core/text.hpp"
#include "core/thread.hpp"
#include "net/endpoint.hpp"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <mutex>
#include <netdb.h>
#include <utility>

namespace elastrun::net {
namespace {

Result<Addresses> look_up(const std::string& host) {
  addrinfo hints{};
  // Without it getaddrinfo(3) returns each address once for every type of socket.
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &first);
  if (code != 0) {
    return fail(Code::Io,
                fmt::format("the host name \"{}\" is not known: {}", host, ::gai_strerror(code)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(first, &::freeaddrinfo);
  Addresses found;
  for (const addrinfo* at = first; at != nullptr; at = at->ai_next) {
    // One machine can be in the list as IPv4 and as a mapped IPv6 address: it is tried once.
    const auto address = plain(from_sockaddr(at->ai_addr));
    if (std::ranges::find(found, address) == found.end()) found.push_back(address);
  }
  return found;
}

// "localhost" is loopback by RFC 6761, whatever a name server says.
Addresses without_look_up(const std::string& host) {
  if (host == "localhost") {
    return {boost::asio::ip::address_v4::loopback(), boost::asio::ip::address_v6::loopback()};
  }
  const auto address = parse_address(host);
  if (address.is_unspecified() && host != "0.0.0.0" && host != "::") return {};
  return {address};
}

}  // namespace

// Shared with the thread, which may come back when the resolver, and even the loop, has gone, and
// then finds `loop` cleared. Only the loop's thread touches the answer: the second one finds it
// taken.
struct Resolver::Question {
  std::mutex mutex;
  boost::asio::io_context* loop = nullptr;
  Answer answer;

  static void give(const std::shared_ptr<Question>& question, Result<Addresses> result) {
    // Under the mutex: cancel() may come from the loop at the same moment, after which the loop may
    // not be touched.
    const std::lock_guard lock(question->mutex);
    if (question->loop == nullptr) return;
    boost::asio::post(*question->loop, [question, result = std::move(result)]() mutable {
      if (const auto taken = std::exchange(question->answer, {})) taken(std::move(result));
    });
  }
};

Resolver::Resolver(boost::asio::io_context& loop, Clock& clock) : loop_(loop), clock_(clock) {}
Resolver::~Resolver() {
  cancel();
}

void Resolver::cancel() {
  if (alarm_) alarm_->disarm();
  if (!question_) return;
  question_->answer = nullptr;
  const std::lock_guard lock(question_->mutex);
  question_->loop = nullptr;
}

void Resolver::resolve(const std::string& host, Duration limit, Answer answer) {
  cancel();
  question_ = std::make_shared<Question>();
  question_->loop = &loop_;
  question_->answer = std::move(answer);
  if (Addresses known = without_look_up(host); !known.empty()) {
    return Question::give(question_, std::move(known));
  }
  if (!alarm_) alarm_ = clock_.make_alarm();
  const std::weak_ptr<Question> waiting = question_;
  alarm_->arm(clock_.now() + limit, [waiting, host, limit] {
    const auto question = waiting.lock();
    if (!question) return;
    Question::give(question,
                   fail(Code::Timeout, fmt::format("no name server answered for \"{}\" within {}",
                                                   host, format_duration(limit))));
  });
  // A thread, because getaddrinfo(3) has no time limit that could be given: with name servers that
  // are silent it waits for the sum of resolv.conf(5)'s timeouts. It cannot be ended either, so it
  // is detached.
  const auto made =
      detach_thread([question = question_, host] { Question::give(question, look_up(host)); });
  if (!made) {
    Question::give(
        question_,
        std::unexpected(made.error().context(fmt::format("cannot look up \"{}\"", host))));
  }
}

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
    // As those of Listener: small messages that wait for an answer.
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
