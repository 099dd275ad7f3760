// SPDX-License-Identifier: Apache-2.0

#include "store/client.hpp"

#include "core/text.hpp"
#include "net/frame.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>
#include <functional>
#include <optional>
#include <unistd.h>

namespace elastrun::store {

/// The connection behind a TcpClient: requests out in order, answers matched to them. Kept alive by
/// the operations it has running.
struct TcpClient::Connection : std::enable_shared_from_this<Connection> {
  enum class Answer { Flag, Nonce, Number, Bytes, Texts, Wait };
  /// The payload: without its length for Bytes, whole for the others.
  using OnAnswer = std::function<void(Result<std::string>)>;

  struct Call {
    std::string request;
    Answer answer = Answer::Number;
    OnAnswer done;
    std::vector<std::string> keys{};  // of a Wait, for the words of its timeout
    Duration timeout{};               // of a Wait; negative: none
  };

  Connection(boost::asio::io_context& loop_of_all, Clock& clock_of_all);
  /// Once the socket is connected: reads until the end.
  void start() { read(); }
  void call(Call call);
  /// Sends a call ahead of what is queued.
  void call_next(Call call);
  /// Drops all calls without a word.
  void abandon();

  boost::asio::io_context& loop;
  Clock& clock;
  boost::asio::ip::tcp::socket socket;

 private:
  void pump();
  void write();
  void read();
  void take_answers();
  bool take_answer();
  bool take_wait_byte();
  std::optional<std::string> payload(Answer answer);
  void cancel_wait();
  void finish(Result<std::string> result);
  void lose(Error error);

  std::deque<Call> queued_;     // not sent: behind a wait
  std::deque<Call> in_flight_;  // sent, in the order of their answers
  std::unique_ptr<Alarm> deadline_;
  bool cancelling_ = false;  // the wait at the front was asked to end
  bool swallow_ = false;     // that wait ended well before, so one more byte comes
  std::optional<Error> lost_;
  std::string output_, sending_, input_;
  std::array<char, 16384> buffer_;
};

// A longer answer does not come from a store: torch's values have 8 MiB, and grow by
// APPEND.
constexpr std::uint64_t kMaxAnswer = 1u << 30;

TcpClient::Connection::Connection(boost::asio::io_context& loop_of_all, Clock& clock_of_all)
    : loop(loop_of_all), clock(clock_of_all), socket(loop_of_all), deadline_(clock.make_alarm()) {}

void TcpClient::Connection::call(Call call) {
  if (lost_) {
    boost::asio::post(loop, [self = shared_from_this(), done = std::move(call.done)] {
      // A closed socket was abandoned, and its callers may be gone.
      if (done && self->socket.is_open()) done(std::unexpected(*self->lost_));
    });
    return;
  }
  queued_.push_back(std::move(call));
  pump();
}

void TcpClient::Connection::call_next(Call call) {
  if (lost_) return this->call(std::move(call));
  queued_.push_front(std::move(call));
  pump();
}

/// Sends what may be sent: everything up to the first wait.
void TcpClient::Connection::pump() {
  while (!queued_.empty()) {
    // Behind a wait only its cancellation may go, which the server must read next.
    if (!in_flight_.empty() && in_flight_.back().answer == Answer::Wait) break;
    Call& call = in_flight_.emplace_back(std::move(queued_.front()));
    queued_.pop_front();
    output_ += call.request;
    call.request = {};
    if (call.answer == Answer::Wait && call.timeout >= Duration::zero()) {
      deadline_->arm(clock.now() + call.timeout, [this] { cancel_wait(); });
    }
  }
  write();
}

void TcpClient::Connection::write() {
  if (!sending_.empty() || output_.empty()) return;
  // What is being sent must stay where it is; requests that come meanwhile gather in the other.
  sending_.swap(output_);
  boost::asio::async_write(socket, boost::asio::buffer(sending_),
                           [self = shared_from_this()](auto error, std::size_t) {
                             self->sending_.clear();
                             // If the connection is lost, the reading side learns of it as well.
                             if (!error) self->write();
                           });
}

void TcpClient::Connection::read() {
  socket.async_read_some(
      boost::asio::buffer(buffer_), [self = shared_from_this()](auto error, std::size_t size) {
        if (error) {
          return self->lose(
              {Code::Closed, "the store's server has closed the connection: " + error.message()});
        }
        self->input_.append(self->buffer_.data(), size);
        self->take_answers();
        if (!self->lost_) self->read();
      });
}

void TcpClient::Connection::take_answers() {
  const auto self = shared_from_this();  // a callback may destroy the client
  while (!lost_ && take_answer()) {
  }
  if (!lost_) pump();
}

/// Ends the oldest call if its answer is complete.
bool TcpClient::Connection::take_answer() {
  if (input_.empty()) return false;
  // The byte that answers a cancellation which came too late (take_wait_byte).
  if (std::exchange(swallow_, false)) {
    input_.erase(0, 1);
    return true;
  }
  if (in_flight_.empty()) {
    lose({Code::Protocol, "the store's server answers what was not asked"});
    return false;
  }
  if (in_flight_.front().answer == Answer::Wait) return take_wait_byte();
  auto found = payload(in_flight_.front().answer);
  if (found) finish(std::move(*found));
  return found.has_value();
}

bool TcpClient::Connection::take_wait_byte() {
  const bool ready = input_.front() == 0;
  input_.erase(0, 1);
  deadline_->disarm();
  // The key came while the cancellation was on its way, whose answer belongs to no call.
  swallow_ = std::exchange(cancelling_, false) && ready;
  const Call& wait = in_flight_.front();
  finish(ready ? Result<std::string>("") : std::unexpected(wait_timeout(wait.timeout, wait.keys)));
  return true;
}

/// Takes a complete answer of this kind off the input.
std::optional<std::string> TcpClient::Connection::payload(Answer answer) {
  net::ByteReader reader(input_);
  std::optional<std::string_view> bytes;
  if (answer == Answer::Flag) bytes = reader.bytes(1);
  if (answer == Answer::Nonce) bytes = reader.bytes(4);
  if (answer == Answer::Number) bytes = reader.bytes(8);
  if (answer == Answer::Bytes || answer == Answer::Texts) {
    const auto length = reader.number<std::uint64_t>();
    if (length > kMaxAnswer) {
      lose({Code::Protocol, fmt::format("the store's server announces {} bytes", *length)});
      return std::nullopt;
    }
    if (answer == Answer::Bytes && length) bytes = reader.bytes(*length);
    for (std::uint64_t i = 0; answer == Answer::Texts && length && i < *length; ++i) {
      const auto size = reader.number<std::uint64_t>();
      if (!size || !reader.bytes(*size)) return std::nullopt;
    }
    if (answer == Answer::Texts && length) {
      bytes = std::string_view(input_).substr(0, input_.size() - reader.rest().size());
    }
  }
  if (!bytes) return std::nullopt;
  std::string taken(*bytes);
  input_.erase(0, input_.size() - reader.rest().size());
  return taken;
}

void TcpClient::Connection::cancel_wait() {
  // The wait ends with its answer, not here: the server may have sent the key's just now.
  cancelling_ = true;
  output_ += static_cast<char>(query_number(Protocol::Current, Query::CancelWait));
  write();
}

void TcpClient::Connection::finish(Result<std::string> result) {
  // Taken out first: what it calls may ask again, or destroy the client.
  const Call call = std::move(in_flight_.front());
  in_flight_.pop_front();
  if (call.done) call.done(std::move(result));
}

void TcpClient::Connection::lose(Error error) {
  if (lost_) return;
  lost_ = std::move(error);
  deadline_->disarm();
  const auto self = shared_from_this();
  // Both do run empty: what a callback asks from now on is answered later, by call().
  for (auto* calls : {&in_flight_, &queued_}) {
    while (!calls->empty()) {
      const Call call = std::move(calls->front());
      calls->pop_front();
      if (call.done) call.done(std::unexpected(*lost_));
    }
  }
}

void TcpClient::Connection::abandon() {
  lost_ = Error{Code::Closed, "the client was closed"};
  // Without their callbacks: what those use may be going together with the client.
  in_flight_.clear();
  queued_.clear();
  deadline_.reset();
  boost::system::error_code ignored;
  socket.close(ignored);
}

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
      connection->call({opening + greeting, Connection::Answer::Nonce,
                        [self, connection, greeting](Result<std::string> nonce) {
                          if (!nonce) return self->again(nonce.error().text);
                          // Any server may answer something; only a store sends the number back.
                          if (*nonce != greeting.substr(1)) {
                            return self->again("it answers, but not as a store");
                          }
                          self->end(std::unique_ptr<TcpClient>(new TcpClient(connection)));
                        }});
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
  connection_->call({message.bytes() + ping(), Connection::Answer::Nonce,
                     [done = std::move(done)](Result<std::string> nonce) {
                       done(nonce ? Status{} : std::unexpected(nonce.error()));
                     }});
}

void TcpClient::get(std::string key, Duration timeout, OnValue done) {
  // Weak: the connection holds this call, and the two would keep each other.
  wait({key}, timeout, [connection = std::weak_ptr(connection_), key, done](Status there) {
    if (!there) return done(std::unexpected(there.error()));
    const auto alive = connection.lock();
    if (!alive) return done(fail(Code::Closed, "the client of the store has gone"));
    // Before whatever was asked after this get.
    alive->call_next({Message(Query::Get).key(key).bytes(), Connection::Answer::Bytes, done});
  });
}

void TcpClient::add(std::string key, std::int64_t delta, OnNumber done) {
  Message message(Query::Add);
  message.key(key).request.number = delta;
  connection_->call({message.bytes(), Connection::Answer::Number,
                     [done = std::move(done)](auto bytes) { done(as_number(bytes)); }});
}

void TcpClient::compare_set(std::string key, std::string expected, std::string desired,
                            OnValue done) {
  Message message(Query::CompareSet);
  message.key(key).request.value = expected;
  message.request.desired = desired;
  connection_->call({message.bytes(), Connection::Answer::Bytes, std::move(done)});
}

void TcpClient::check(std::vector<std::string> keys, OnFlag done) {
  connection_->call({list_request(Query::Check, keys), Connection::Answer::Flag,
                     [done = std::move(done)](Result<std::string> flag) {
                       if (!flag) return done(std::unexpected(flag.error()));
                       // CHECK answers 0 for ready and 1 for missing.
                       done(flag->front() == 0);
                     }});
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
  connection_->call({Message(Query::Delete).key(key).bytes(), Connection::Answer::Number,
                     [done = std::move(done)](auto bytes) {
                       const auto count = as_number(bytes);
                       if (!count) return done(std::unexpected(count.error()));
                       done(*count > 0);
                     }});
}

void TcpClient::count_keys(OnNumber done) {
  connection_->call({Message(Query::CountKeys).bytes(), Connection::Answer::Number,
                     [done = std::move(done)](auto bytes) { done(as_number(bytes)); }});
}

void TcpClient::list_keys(OnKeys done) {
  connection_->call({Message(Query::ListKeys).bytes(), Connection::Answer::Texts,
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
                     }});
}

}  // namespace elastrun::store
