// SPDX-License-Identifier: Apache-2.0

#include "http/http_server.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/write.hpp>
#include <boost/beast/http/status.hpp>
#include <deque>
#include <fmt/format.h>
#include <iterator>
#include <utility>

namespace elastrun::http {

std::string event_text(std::string_view event, std::string_view data) {
  std::string text;
  text.append("event: ").append(event).append("\n");
  for (std::size_t begin = 0; begin <= data.size();) {
    const auto end = std::min(data.find('\n', begin), data.size());
    text.append("data: ").append(data.substr(begin, end - begin)).append("\n");
    begin = end + 1;
  }
  return text + "\n";
}

void EventFeed::send(std::string bytes) {
  const auto shared = std::make_shared<const std::string>(std::move(bytes));
  std::erase_if(listeners_, [&](const Listener& listener) { return !listener(shared); });
}

namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

std::string_view reason(int status) {
  const auto text =
      boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(status));
  return {text.data(), text.size()};
}

Answer refusal(int status, std::string_view text) {
  return {.status = status, .body = fmt::format("{}\n", text)};
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

/// One connection of a server: reads a request, has it answered, writes the answer, and so on.
/// Lives as long as an operation is under way, or its server holds it.
class Server::Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// The server may go before the connection does, after close().
  Connection(tcp::socket socket, const Server& server)
      : socket_(std::move(socket)),
        clock_(server.clock_),
        server_(&server),
        alarm_(clock_.make_alarm()) {}

  void start() {
    limit(server_->settings_.head_limit);  // who connects has something to ask
    read();
  }

  /// Answers with 503, and closes.
  void refuse() { end_with(refusal(503, "too many connections")); }

  void close() {
    error_code ignored;
    socket_.close(ignored);
    alarm_->disarm();
    // What has completed already is queued with success and cannot be cancelled: each completion
    // looks here first. The server may go after this.
    server_ = nullptr;
  }

  bool closed() const { return !socket_.is_open(); }
  /// Waits for a request, of which nothing has come.
  bool idle() const { return stage_ == Stage::Reading && input_.empty(); }
  /// Has its answer, and waits for the other side to close.
  bool ending() const { return stage_ == Stage::Ending; }
  bool streams() const { return stage_ == Stage::Streaming && !closed(); }
  /// Waits for the rest of a request.
  bool unfinished() const { return stage_ == Stage::Reading && !input_.empty(); }

 private:
  enum class Stage { Reading, Answering, Writing, Streaming, Ending };

  void limit(Duration time) {
    // Weak, because the alarm is ours: held by it, a connection would never end.
    alarm_->arm(clock_.now() + time, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->close();
    });
  }

  /// Reads requests; where none is awaited, drops what comes until the other side closes.
  void read() {
    socket_.async_read_some(boost::asio::buffer(piece_),
                            [self = shared_from_this()](error_code error, std::size_t size) {
                              if (self->server_ == nullptr) return;
                              if (error) return self->close();
                              if (self->stage_ != Stage::Reading) return self->read();
                              // The limit is for the whole request: a byte now and then wins no
                              // time.
                              if (self->idle()) self->limit(self->server_->settings_.head_limit);
                              self->input_.append(self->piece_.data(), size);
                              self->digest();
                            });
  }

  void digest() {
    stage_ = Stage::Reading;
    auto next = take_request(input_);
    if (!next) return read();
    stage_ = Stage::Answering;
    if (!*next) return end_with(std::move(next->error()));
    request_ = std::move(**next);
    // A page in a browser on this machine can have a name of its server lead to 127.0.0.1 (DNS
    // rebinding), and would then read the answers as those of the site it came from. The Host
    // header is the one sign of it: it holds the name.
    if (server_->local_names_only_ && !is_local_host(request_.host)) {
      return end_with(refusal(403, "this address answers requests for localhost only"));
    }
    alarm_->disarm();  // it is the handler's time now
    server_->handler_(request_, [weak = weak_from_this(), given = false](Answer answer) mutable {
      const auto self = weak.lock();
      // A second answer to one request would be taken for the answer to the next.
      if (given || !self || self->server_ == nullptr) return;
      given = true;
      self->send(std::move(answer));
    });
  }

  void send(Answer answer) {
    if (answer.feed && !request_.head) {
      if (!server_->may_stream()) return end_with(refusal(503, "too many streams of events"));
      return stream(std::move(answer));
    }
    stage_ = Stage::Writing;
    auto bytes = head_of(answer, request_, request_.keep_alive, false);
    if (!request_.head) bytes += answer.body;
    write(std::move(bytes));
  }

  void end_with(Answer answer) {
    request_.keep_alive = false;
    send(std::move(answer));
  }

  void write(std::string bytes) {
    output_ = std::move(bytes);
    limit(server_->settings_.write_limit);
    boost::asio::async_write(socket_, boost::asio::buffer(output_),
                             [self = shared_from_this()](error_code error, std::size_t) {
                               if (self->server_ == nullptr) return;
                               error ? self->close() : self->written();
                             });
  }

  void written() {
    output_ = {};
    if (stage_ == Stage::Streaming) return write_next();
    if (!request_.keep_alive) return linger();
    // The next request may be here already, or a part of it (pipelining; RFC 9112, 9.3.2).
    limit(input_.empty() ? server_->settings_.idle_limit : server_->settings_.head_limit);
    digest();
  }

  /// Lets the other side read the answer: what it has sent and we have not read would make the
  /// kernel reset the connection, and the answer may be lost with it.
  void linger() {
    stage_ = Stage::Ending;
    error_code ignored;
    // Before the reads: a client that waits for the end of the connection gets it now, and closes.
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    limit(std::chrono::seconds(2));
    read();
  }

  void stream(Answer answer) {
    stage_ = Stage::Streaming;
    // Never kept alive: a stream ends with its connection.
    auto bytes = head_of(answer, request_, false, !request_.old);
    if (!answer.body.empty()) bytes += request_.old ? answer.body : chunk_of(answer.body);
    answer.feed->add([weak = weak_from_this()](const std::shared_ptr<const std::string>& event) {
      const auto self = weak.lock();
      return self && self->push(event);
    });
    read();
    write(std::move(bytes));
  }

  bool push(const std::shared_ptr<const std::string>& bytes) {
    if (server_ == nullptr) return false;
    if (!bytes) return true;
    // Counted before the limit is looked at: a reader that is slow costs memory of the agent, and
    // is cut off rather than waited for. A browser's EventSource connects again.
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

  void write_next() {
    if (events_.empty()) return alarm_->disarm();
    const auto bytes = std::move(events_.front());
    events_.pop_front();
    waiting_ -= bytes->size();
    write(request_.old ? *bytes : chunk_of(*bytes));
  }

  tcp::socket socket_;
  Clock& clock_;
  const Server* server_;  // null: closed
  std::unique_ptr<Alarm> alarm_;
  Request request_;  // that is being answered
  Stage stage_ = Stage::Reading;
  std::array<char, 4096> piece_;
  std::string input_, output_;
  std::deque<std::shared_ptr<const std::string>> events_;  // the first is on its way
  std::size_t waiting_ = 0;                                // bytes of these
};

Server::Server(Clock& clock, Settings settings, Handler handler)
    : clock_(clock),
      settings_(std::move(settings)),
      handler_(std::move(handler)),
      at_(settings_.at),
      // A server that others may reach is asked for by names that we do not know.
      local_names_only_(net::parse_address(at_.host).is_loopback()) {}

Server::~Server() {
  // Operations under way hold their connection, which would use our settings and clock when we are
  // gone.
  for (const auto& connection : connections_) connection->close();
}

Result<std::unique_ptr<Server>> Server::open(boost::asio::io_context& loop, Clock& clock,
                                             Settings settings, Handler handler) {
  std::unique_ptr<Server> server(new Server(clock, std::move(settings), std::move(handler)));
  const auto serve = [&own = *server](tcp::socket socket, const std::string&) {
    own.serve(std::move(socket));
  };
  auto opened = net::Listener::open(
      loop, clock, {.address = server->at_.host, .port = server->at_.port}, {.any = serve});
  if (!opened) return std::unexpected(opened.error());
  server->listener_ = std::move(*opened);
  server->at_.port = server->listener_->port();
  return server;
}

bool Server::may_stream() const {
  return count(&Connection::streams) < settings_.max_streams;
}

void Server::serve(tcp::socket socket) {
  auto connection = std::make_shared<Connection>(std::move(socket), *this);
  // Before this one is in the list, or it could be the one that is closed for itself.
  const bool room = make_room();
  connections_.push_back(connection);
  room ? connection->start() : connection->refuse();
}

/// Makes room. Answered connections end soon and do not count, up to a bound of their own.
bool Server::make_room() {
  connections_.remove_if([](const auto& one) { return one->closed(); });
  const auto most = settings_.max_connections;
  // A client that never closes keeps its place until linger() gives up; twice as many as may be
  // served bounds the descriptors that this takes.
  if (connections_.size() >= 2 * most && !close_oldest(&Connection::ending)) {
    connections_.front()->close();
    connections_.pop_front();
  }
  if (connections_.size() - count(&Connection::ending) < most) return true;
  // Idle ones first: they lose nothing. Those with half a request come next, because a client
  // that opens many and sends a byte to each would keep all others out.
  return close_oldest(&Connection::idle) || close_oldest(&Connection::unfinished);
}

std::size_t Server::count(bool (Connection::*is_one)() const) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      connections_, [&](const auto& connection) { return ((*connection).*is_one)(); }));
}

bool Server::close_oldest(bool (Connection::*is_one)() const) {
  const auto found = std::ranges::find_if(
      connections_, [&](const auto& connection) { return ((*connection).*is_one)(); });
  if (found == connections_.end()) return false;
  (*found)->close();
  connections_.erase(found);
  return true;
}

}  // namespace elastrun::http
