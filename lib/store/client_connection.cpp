// SPDX-License-Identifier: Apache-2.0
#include "store/client_connection.hpp"

#include "net/bytes.hpp"

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

namespace elastrun::store {

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

}  // namespace elastrun::store
