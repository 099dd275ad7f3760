// SPDX-License-Identifier: Apache-2.0
#include "net/resolver.hpp"

#include "core/text.hpp"
#include "core/thread.hpp"
#include "net/endpoint.hpp"

#include <algorithm>
#include <boost/asio/ip/basic_endpoint.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <fmt/format.h>
#include <mutex>
#include <netdb.h>

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
    boost::asio::ip::tcp::endpoint endpoint;
    if (at->ai_addrlen > endpoint.capacity()) continue;
    std::memcpy(endpoint.data(), at->ai_addr, at->ai_addrlen);
    endpoint.resize(at->ai_addrlen);
    // One machine can be in the list as IPv4 and as a mapped IPv6 address: it is tried once.
    const auto address = plain(endpoint.address());
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

// Shared with the thread, which may come back when the resolver, and even the loop, has gone: the
// second of the two finds `loop` cleared, or the answer taken.
struct Resolver::Question {
  std::mutex mutex;
  boost::asio::io_context* loop = nullptr;
  Answer answer;

  static void give(const std::shared_ptr<Question>& question, Result<Addresses> result) {
    // Under the mutex: cancel() may come from the loop at the same moment, after which neither the
    // loop nor the answer may be touched.
    const std::lock_guard lock(question->mutex);
    if (question->loop == nullptr) return;
    boost::asio::post(*question->loop, [question, result = std::move(result)]() mutable {
      Answer taken;
      {
        const std::lock_guard again(question->mutex);
        question->loop = nullptr;
        taken = std::exchange(question->answer, {});
      }
      if (taken) taken(std::move(result));
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
  const std::lock_guard lock(question_->mutex);
  question_->loop = nullptr;
  question_->answer = nullptr;
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

}  // namespace elastrun::net
