// SPDX-License-Identifier: Apache-2.0
#include "http/connection.hpp"

#include <boost/asio/write.hpp>
#include <boost/beast/http/status.hpp>
#include <fmt/format.h>
#include <iterator>
#include <utility>

namespace elastrun::http {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

std::string_view reason(int status) {
  const auto text =
      boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(status));
  return {text.data(), text.size()};
}

Answer refusal(int status, std::string_view text) {
  Answer answer{.status = status};
  answer.body.append(text).append("\n");
  if (status == 405) answer.headers.emplace_back("Allow", "GET, HEAD");
  return answer;
}

/// `length`: of the body; without one its end is told otherwise.
std::string head_of(const Answer& answer, const Request& request, bool keep_alive, bool chunked) {
  std::string head;
  const auto out = std::back_inserter(head);
  fmt::format_to(out, "HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", answer.status,
                 reason(answer.status), answer.type);
  for (const auto& [name, value] : answer.headers) {
    fmt::format_to(out, "{}: {}\r\n", name, value);
  }
  // A stream has no length that could be told. HTTP/1.1 has chunks for that; to an older client,
  // which does not know them, the end of the connection is the end (RFC 9112, 6.1 and 6.3).
  if (chunked) head += "Transfer-Encoding: chunked\r\n";
  // To a HEAD, too: it is the length that a GET would have had (RFC 9110, 8.6).
  if (!answer.feed) fmt::format_to(out, "Content-Length: {}\r\n", answer.body.size());
  // The pages hold names that workers have chosen. A browser that guesses the type from the bytes
  // could take a text with a tag in it for HTML, and run what is there.
  head += "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n";
  if (!keep_alive) head += "Connection: close\r\n";
  // An HTTP/1.0 client that asked for it closes unless this says yes (RFC 9112, 9.3).
  if (keep_alive && request.old) head += "Connection: keep-alive\r\n";
  return head + "\r\n";
}

std::string chunk_of(std::string_view bytes) {
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

}  // namespace

Connection::Connection(tcp::socket socket, Clock& clock, const Rules& rules)
    : socket_(std::move(socket)), clock_(clock), rules_(&rules), alarm_(clock.make_alarm()) {}

void Connection::start() {
  limit(rules_->settings.head_limit);  // who connects has something to ask
  read();
}

void Connection::refuse() {
  end_with(refusal(503, "too many connections"));
}

bool Connection::idle() const {
  return stage_ == Stage::Reading && !reader_.has_part();
}

bool Connection::unfinished() const {
  return stage_ == Stage::Reading && reader_.has_part();
}

void Connection::limit(Duration time) {
  // Weak, because the alarm is ours: held by it, a connection would never end.
  alarm_->arm(clock_.now() + time, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->close();
  });
}

void Connection::close() {
  error_code ignored;
  socket_.close(ignored);
  alarm_->disarm();
  // What has completed already is queued with success and cannot be cancelled: each completion
  // looks here first. The rules are the server's, which may go after this.
  rules_ = nullptr;
}

void Connection::read() {
  stage_ = Stage::Reading;
  socket_.async_read_some(boost::asio::buffer(input_),
                          [self = shared_from_this()](error_code error, std::size_t size) {
                            if (self->rules_ == nullptr) return;
                            if (error) return self->close();
                            // The limit is for the whole request: a byte now and then wins no time.
                            if (self->idle()) self->limit(self->rules_->settings.head_limit);
                            self->reader_.add({self->input_.data(), size});
                            self->digest();
                          });
}

void Connection::digest() {
  auto next = reader_.next();
  if (!next) return read();
  stage_ = Stage::Answering;
  if (!*next) return end_with(refusal(next->error().status, next->error().text));
  request_ = std::move(**next);
  answer(request_);
}

void Connection::answer(const Request& request) {
  // A page in a browser on this machine can have a name of its server lead to 127.0.0.1 (DNS
  // rebinding), and would then read the answers as those of the site it came from. The Host header
  // is the one sign of it: it holds the name.
  if (rules_->local_names_only && !is_local_host(request.host)) {
    return end_with(refusal(403, "this address answers requests for localhost only"));
  }
  alarm_->disarm();  // it is the handler's time now
  rules_->handler(request, [weak = weak_from_this(), given = false](Answer answer) mutable {
    const auto self = weak.lock();
    // A second answer to one request would be taken for the answer to the next.
    if (given || !self || self->rules_ == nullptr) return;
    given = true;
    self->send(std::move(answer));
  });
}

void Connection::send(Answer answer) {
  if (answer.feed && !request_.head) {
    if (!rules_->may_stream()) return end_with(refusal(503, "too many streams of events"));
    return stream(std::move(answer));
  }
  stage_ = Stage::Writing;
  auto bytes = head_of(answer, request_, request_.keep_alive, false);
  if (!request_.head) bytes += answer.body;
  write(std::move(bytes));
}

void Connection::end_with(Answer answer) {
  request_.keep_alive = false;
  send(std::move(answer));
}

void Connection::write(std::string bytes) {
  output_ = std::move(bytes);
  limit(rules_->settings.write_limit);
  boost::asio::async_write(socket_, boost::asio::buffer(output_),
                           [self = shared_from_this()](error_code error, std::size_t) {
                             if (self->rules_ == nullptr) return;
                             error ? self->close() : self->written();
                           });
}

void Connection::written() {
  output_ = {};
  if (stage_ == Stage::Streaming) return write_next();
  if (!request_.keep_alive) return linger();
  // The next request may be here already, or a part of it (pipelining; RFC 9112, 9.3.2).
  limit(reader_.has_part() ? rules_->settings.head_limit : rules_->settings.idle_limit);
  digest();
}

/// Lets the other side read the answer: what it has sent and we have not read would make the
/// kernel reset the connection, and the answer may be lost with it.
void Connection::linger() {
  stage_ = Stage::Ending;
  error_code ignored;
  // Before the reads: a client that waits for the end of the connection gets it now, and closes.
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  limit(std::chrono::seconds(2));
  watch_end();
}

/// Reads and drops what comes, until the other side closes.
void Connection::watch_end() {
  socket_.async_read_some(boost::asio::buffer(input_),
                          [self = shared_from_this()](error_code error, std::size_t) {
                            if (self->rules_ == nullptr) return;
                            error ? self->close() : self->watch_end();
                          });
}

void Connection::stream(Answer answer) {
  stage_ = Stage::Streaming;
  // Never kept alive: a stream ends with its connection.
  auto bytes = head_of(answer, request_, false, !request_.old);
  if (!answer.body.empty()) bytes += request_.old ? answer.body : chunk_of(answer.body);
  answer.feed->add([weak = weak_from_this()](const std::shared_ptr<const std::string>& event) {
    const auto self = weak.lock();
    return self && self->push(event);
  });
  watch_end();
  write(std::move(bytes));
}

bool Connection::push(const std::shared_ptr<const std::string>& bytes) {
  if (rules_ == nullptr) return false;
  if (!bytes) return true;
  // Counted before the limit is looked at: a reader that is slow costs memory of the agent, and is
  // cut off rather than waited for. A browser's EventSource connects again.
  waiting_ += bytes->size();
  if (waiting_ > EventFeed::kFeedLimit) {
    close();
    return false;
  }
  events_.push_back(bytes);
  // Otherwise the write under way goes on with it. Two writes at once would mix their bytes.
  if (output_.empty()) write_next();
  return true;
}

void Connection::write_next() {
  if (events_.empty()) return alarm_->disarm();
  const auto bytes = std::move(events_.front());
  events_.pop_front();
  waiting_ -= bytes->size();
  write(request_.old ? *bytes : chunk_of(*bytes));
}

}  // namespace elastrun::http
