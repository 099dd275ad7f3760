// SPDX-License-Identifier: Apache-2.0
#include "store/client.hpp"

#include "core/text.hpp"
#include "net/bytes.hpp"
#include "store/client_connection.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <unistd.h>

namespace elastrun::store {
namespace {

using Endpoint = boost::asio::ip::tcp::endpoint;

std::string shown(const Endpoint& endpoint) {
  return fmt::format("{} port {}", endpoint.address().to_string(), endpoint.port());
}

/// A request with the slash that clients put in front of keys.
struct Message {
  explicit Message(Query query) { request.query = query; }
  Message& key(const std::string& name) {
    // As TCPStore of torch, whose clients share the keys.
    slashed = "/" + name;
    request.key = slashed;
    return *this;
  }
  std::string bytes() {
    std::string out;
    append_request(out, request);
    return out;
  }
  Request request;
  std::string slashed;
};

std::string list_request(Query query, const std::vector<std::string>& keys) {
  std::vector<std::string> slashed;
  for (const auto& key : keys) slashed.push_back("/" + key);
  const std::vector<std::string_view> texts(slashed.begin(), slashed.end());
  Message message(query);
  message.request.texts = texts;
  return message.bytes();
}

std::string ping() {
  Message message(Query::Ping);
  message.request.number = ::getpid();
  return message.bytes();
}

/// Makes the connection, again and again until the deadline.
struct Connecting : std::enable_shared_from_this<Connecting> {
  Connecting(boost::asio::io_context& loop_, Clock& clock_) : loop(loop_), clock(clock_) {}

  void again(const std::string& why);
  void end(Result<std::unique_ptr<TcpClient>> result);

  boost::asio::io_context& loop;
  Clock& clock;
  Endpoint endpoint;
  Duration timeout{};
  TimePoint deadline;
  Duration pause = std::chrono::milliseconds(50);
  std::string last_error = "it does not answer";
  TcpClient::OnConnected done;
  // With itself as an argument: captured, it would hold the object that holds this function.
  std::function<void(std::shared_ptr<Connecting>)> try_once;
  std::function<void()> drop;  // the connection of the present attempt
  std::unique_ptr<Alarm> limit, next;
};

void Connecting::end(Result<std::unique_ptr<TcpClient>> result) {
  // Their functions hold this object: it would never go while they are armed.
  limit.reset();
  next.reset();
  if (!result && drop) drop();
  drop = nullptr;
  // Once: an answer may come in the turn in which the limit rings.
  if (const auto call = std::exchange(done, nullptr)) call(std::move(result));
}

void Connecting::again(const std::string& why) {
  if (!done) return;
  last_error = why;
  if (const auto old = std::exchange(drop, nullptr)) old();
  // The server may not be up yet. Pauses grow, so that thousands of clients do not drown it.
  next->arm(clock.now() + pause, [self = shared_from_this()] { self->try_once(self); });
  pause = std::min<Duration>(pause * 3 / 2, std::chrono::seconds(5));
}

Result<std::int64_t> as_number(const Result<std::string>& bytes) {
  if (!bytes) return std::unexpected(bytes.error());
  return net::load<std::int64_t>(bytes->data());
}

}  // namespace

// Without delay: requests are small and wait for their answers, and Nagle's algorithm (RFC 896)
// would hold each second one back until the peer's delayed acknowledgement, for 40 ms.
void TcpClient::connect(boost::asio::io_context& loop, Clock& clock, Endpoint endpoint,
                        Duration timeout, OnConnected done) {
  auto connecting = std::make_shared<Connecting>(loop, clock);
  connecting->endpoint = endpoint;
  connecting->timeout = timeout;
  connecting->done = std::move(done);
  connecting->limit = clock.make_alarm();
  connecting->next = clock.make_alarm();
  connecting->limit->arm(clock.now() + timeout, [connecting] {
    connecting->end(fail(
        Code::Timeout, fmt::format("no store at {} within {}: {}", shown(connecting->endpoint),
                                   format_duration(connecting->timeout), connecting->last_error)));
  });
  connecting->try_once = [](std::shared_ptr<Connecting> self) {
    auto connection = std::make_shared<Connection>(self->loop, self->clock);
    self->drop = [connection] { connection->abandon(); };
    connection->socket.async_connect(self->endpoint, [self, connection](auto error) {
      if (!self->done) return;
      if (error) return self->again(error.message());
      connection->socket.set_option(boost::asio::ip::tcp::no_delay(true), error);
      connection->start();
      std::string opening(1, '\0');
      net::append<std::uint32_t>(opening, kMagic);
      const std::string greeting = ping();
      connection->call({opening + greeting,
                        Connection::Answer::Nonce,
                        [self, connection, greeting](Result<std::string> nonce) {
                          if (!nonce) return self->again(nonce.error().text);
                          // Any server may answer something; only a store sends the number back.
                          if (*nonce != greeting.substr(1)) {
                            return self->again("it answers, but not as a store");
                          }
                          self->end(std::unique_ptr<TcpClient>(new TcpClient(connection)));
                        },
                        {},
                        {}});
    });
  };
  connecting->try_once(connecting);
}

TcpClient::~TcpClient() {
  connection_->abandon();
}

void TcpClient::set(std::string key, std::string value, OnDone done) {
  Message message(Query::Set);
  message.key(key).request.value = value;
  // SET has no answer; the one of a PING behind it says that it was run.
  connection_->call({message.bytes() + ping(),
                     Connection::Answer::Nonce,
                     [done = std::move(done)](Result<std::string> nonce) {
                       done(nonce ? Status{} : std::unexpected(nonce.error()));
                     },
                     {},
                     {}});
}

void TcpClient::get(std::string key, Duration timeout, OnValue done) {
  // Weak: the connection holds this call, and the two would keep each other.
  wait({key}, timeout, [connection = std::weak_ptr(connection_), key, done](Status there) {
    if (!there) return done(std::unexpected(there.error()));
    const auto alive = connection.lock();
    if (!alive) return done(fail(Code::Closed, "the client of the store has gone"));
    // Before whatever was asked after this get.
    alive->call_next(
        {Message(Query::Get).key(key).bytes(), Connection::Answer::Bytes, done, {}, {}});
  });
}

void TcpClient::add(std::string key, std::int64_t delta, OnNumber done) {
  Message message(Query::Add);
  message.key(key).request.number = delta;
  connection_->call({message.bytes(),
                     Connection::Answer::Number,
                     [done = std::move(done)](auto bytes) { done(as_number(bytes)); },
                     {},
                     {}});
}

void TcpClient::compare_set(std::string key, std::string expected, std::string desired,
                            OnValue done) {
  Message message(Query::CompareSet);
  message.key(key).request.value = expected;
  message.request.desired = desired;
  connection_->call({message.bytes(), Connection::Answer::Bytes, std::move(done), {}, {}});
}

void TcpClient::check(std::vector<std::string> keys, OnFlag done) {
  connection_->call({list_request(Query::Check, keys),
                     Connection::Answer::Flag,
                     [done = std::move(done)](Result<std::string> flag) {
                       if (!flag) return done(std::unexpected(flag.error()));
                       // CHECK answers 0 for ready and 1 for missing.
                       done(flag->front() == 0);
                     },
                     {},
                     {}});
}

void TcpClient::wait(std::vector<std::string> keys, Duration timeout, OnDone done) {
  auto request = list_request(Query::Wait, keys);
  connection_->call({std::move(request), Connection::Answer::Wait,
                     [done = std::move(done)](Result<std::string> ready) {
                       done(ready ? Status{} : std::unexpected(ready.error()));
                     },
                     std::move(keys), timeout});
}

void TcpClient::erase(std::string key, OnFlag done) {
  connection_->call({Message(Query::Delete).key(key).bytes(),
                     Connection::Answer::Number,
                     [done = std::move(done)](auto bytes) {
                       const auto count = as_number(bytes);
                       if (!count) return done(std::unexpected(count.error()));
                       done(*count > 0);
                     },
                     {},
                     {}});
}

void TcpClient::count_keys(OnNumber done) {
  connection_->call({Message(Query::CountKeys).bytes(),
                     Connection::Answer::Number,
                     [done = std::move(done)](auto bytes) { done(as_number(bytes)); },
                     {},
                     {}});
}

void TcpClient::list_keys(OnKeys done) {
  connection_->call({Message(Query::ListKeys).bytes(),
                     Connection::Answer::Texts,
                     [done = std::move(done)](Result<std::string> bytes) {
                       if (!bytes) return done(std::unexpected(bytes.error()));
                       net::ByteReader reader(*bytes);
                       std::vector<std::string> keys;
                       for (auto left = reader.number<std::uint64_t>().value_or(0); left > 0;
                            --left) {
                         const auto size = reader.number<std::uint64_t>().value_or(0);
                         const auto key = reader.bytes(size).value_or("");
                         // As torch: the bare keys of its start-up are not the user's.
                         if (key.starts_with('/')) keys.emplace_back(key.substr(1));
                       }
                       done(std::move(keys));
                     },
                     {},
                     {}});
}

}  // namespace elastrun::store
