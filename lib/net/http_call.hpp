// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "net/endpoint.hpp"

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::net {

/// The settings of a TLS client. Made once, used by many calls.
class TlsClient {
 public:
  struct Files {
    std::string ca;         // empty: the machine's own list
    std::string cert, key;  // both or none
  };
  /// Fails with Usage: a file that cannot be read or means nothing.
  static Result<std::shared_ptr<TlsClient>> make(const Files& files);
  virtual ~TlsClient() = default;
};

struct HttpRequest {
  std::string method = "POST";
  std::string target;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers{};
};

/// The connection of a call that has been answered, for the next one to the same endpoint. When
/// thousands of agents make a few calls each at the same moment, a server that has to set up a
/// connection for every call has no time for anything else. It is not kept for long.
class KeptConnection {
 public:
  explicit KeptConnection(Clock& clock);
  ~KeptConnection();
  KeptConnection(const KeptConnection&) = delete;
  KeptConnection& operator=(const KeptConnection&) = delete;

  // For calls.
  struct Stream;
  void keep(const Endpoint& endpoint, std::unique_ptr<Stream> stream);
  /// Null: none to that endpoint, or the other side has closed it.
  std::unique_ptr<Stream> take(const Endpoint& endpoint);

 private:
  Clock& clock_;
  const std::unique_ptr<Alarm> alarm_;
  Endpoint endpoint_;
  std::unique_ptr<Stream> stream_;
};

/// One HTTP/1.1 request, and its answer as it comes. Destroying it ends it without a word. Answers
/// may be streams without end (etcd's watch): pieces are handed on as they arrive, however they
/// were cut.
class HttpCall {
 public:
  struct Handlers {
    /// The connection stands; `own` is this machine's address on it.
    std::function<void(const boost::asio::ip::address& own)> on_connect;
    std::function<void(int status)> on_head;
    std::function<void(std::string_view piece)> on_piece;
    /// The answer is complete, or the error that ended it: Closed, Timeout, Io, Protocol; Usage if
    /// the server's certificate is not to be trusted. The last thing that is called.
    std::function<void(Status)> on_end;
    /// Each field of the head of the answer, before on_head; may be empty.
    std::function<void(std::string_view name, std::string_view value)> on_field{};
  };
  struct Settings {
    Endpoint endpoint;
    std::shared_ptr<TlsClient> tls;            // null: plain HTTP
    Duration limit = std::chrono::seconds(5);  // until the head of the answer, or all of it
    bool endless = false;                      // the limit is for the head only
    KeptConnection* kept = nullptr;            // must outlive the call; null: a new connection
  };
  /// Handlers are called on the loop, never inside this call.
  static std::unique_ptr<HttpCall> start(boost::asio::io_context& loop, Clock& clock,
                                         Settings settings, HttpRequest request, Handlers handlers);
  virtual ~HttpCall() = default;
};

struct HttpResponse {
  int status = 0;
  std::string body;
  std::string retry_after{};  // the field of that name
};
/// A call whose whole answer, of at most 4 MiB, comes at once.
std::unique_ptr<HttpCall> fetch(boost::asio::io_context& loop, Clock& clock,
                                HttpCall::Settings settings, HttpRequest request,
                                std::function<void(Result<HttpResponse>)> answer);

}  // namespace elastrun::net
