// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "net/endpoint.hpp"
#include "net/listener.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <expected>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::http {

/// One request, as a handler sees it. Everything in it was written by a stranger.
struct Request {
  bool head = false;       // HEAD: the answer goes without its body
  bool keep_alive = true;  // the connection may carry another request
  bool old = false;        // HTTP/1.0, which knows no chunks
  std::string path{};      // "/metrics", without the query; not decoded
  std::string query{};     // what follows `?`
  std::string host{};      // as the header says: "localhost:9400"; empty: none
  std::string accept{};    // all headers of that name, joined by a comma
};

class EventFeed;

/// The answer to one request.
struct Answer {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body{};
  std::vector<std::pair<std::string, std::string>> headers{};
  /// Set: a stream of server-sent events without end, which begins with `body`.
  std::shared_ptr<EventFeed> feed{};
};

constexpr std::size_t kHeaderLimit = 8 << 10;  // of headers, with the request line
constexpr std::size_t kTargetLimit = 2 << 10;

/// Takes the next request, a GET or HEAD without a body, from the front of a connection's bytes.
/// Fails with the answer that refuses it: nothing after that can be read. Nothing: more bytes are
/// needed. Pure: no socket, no clock.
std::optional<std::expected<Request, Answer>> take_request(std::string& bytes);

/// True if no browser that was led here by a foreign name (DNS rebinding) could have sent this
/// `Host`: numeric addresses, localhost and names below it, and no name at all.
bool is_local_host(std::string_view host);

/// Gives the answer, once, now or later, on the loop. Of no effect once the connection has gone.
using Reply = std::function<void(Answer)>;

/// The bytes of one server-sent event. Line ends in `data` are kept.
std::string event_text(std::string_view event, std::string_view data);

/// Feeds events to all listeners. One that does not take its events while kFeedLimit bytes of them
/// wait is cut off: browsers reconnect by themselves, and start over.
class EventFeed {
 public:
  static constexpr std::size_t kFeedLimit = 512 << 10;

  /// Takes bytes for one listener; false: it has gone.
  using Listener = std::function<bool(const std::shared_ptr<const std::string>& bytes)>;

  void add(Listener listener) { listeners_.push_back(std::move(listener)); }
  void publish(std::string_view event, std::string_view data) {
    if (!listeners_.empty()) send(event_text(event, data));
  }
  /// Events that are written already (event_text).
  void publish_text(std::string text) {
    if (!listeners_.empty() && !text.empty()) send(std::move(text));
  }
  /// A comment, by which a connection whose other end has gone is found.
  void publish_nothing() {
    if (!listeners_.empty()) send(":\n\n");
  }
  bool has_listeners() {
    std::erase_if(listeners_, [](const Listener& listener) { return !listener(nullptr); });
    return !listeners_.empty();
  }

 private:
  void send(std::string bytes);
  std::vector<Listener> listeners_;
};

/// A small HTTP/1.1 server on a loop, for GET and HEAD, without a thread: for people who look and
/// programs that scrape, not for many. All limits are there so that a client can cost no more than
/// a bounded amount of memory, descriptors and time.
class Server {
 public:
  struct Settings {
    net::Endpoint at;  // a numeric address; port 0: any that is free
    /// Above it the oldest goes that waits for a request, or for the rest of one; else 503.
    std::size_t max_connections = 64;
    /// Streams of events among these, which have no end; others get 503.
    std::size_t max_streams = 32;
    Duration head_limit = std::chrono::seconds(10);   // for a request, from its first byte
    Duration idle_limit = std::chrono::seconds(60);   // between requests
    Duration write_limit = std::chrono::seconds(30);  // while the other side takes nothing
  };
  using Handler = std::function<void(const Request& request, Reply reply)>;

  /// Listens from now on. On a loopback address, requests for a host that is not local are refused
  /// (is_local_host). `handler` is called on the loop. Fails with Io.
  static Result<std::unique_ptr<Server>> open(boost::asio::io_context& loop, Clock& clock,
                                              Settings settings, Handler handler);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  /// With the port that was chosen.
  const net::Endpoint& at() const { return at_; }

 private:
  class Connection;
  Server(Clock& clock, Settings settings, Handler handler);
  void serve(boost::asio::ip::tcp::socket socket);
  bool make_room();
  bool may_stream() const;
  std::size_t count(bool (Connection::*is_one)() const) const;
  bool close_oldest(bool (Connection::*is_one)() const);

  Clock& clock_;
  const Settings settings_;
  const Handler handler_;
  net::Endpoint at_;
  const bool local_names_only_;
  std::list<std::shared_ptr<Connection>> connections_;  // the oldest first
  std::unique_ptr<net::Listener> listener_;
};

}  // namespace elastrun::http
