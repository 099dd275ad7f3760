// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "net/endpoint.hpp"

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace boost::asio::ssl {
class context;
}

namespace elastrun::net {

/// The settings of a TLS client. Made once, used by many calls.
using TlsClient = boost::asio::ssl::context;
struct TlsFiles {
  std::string ca;         // empty: the machine's own list
  std::string cert, key;  // both or none
};
/// Fails with Usage: a file that cannot be read or means nothing.
Result<std::shared_ptr<TlsClient>> load_tls(const TlsFiles& files);

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

/// One HTTP/1.1 request. Destroying it ends it without a word.
class HttpCall {
 public:
  struct Settings {
    Endpoint endpoint;
    std::shared_ptr<TlsClient> tls;            // null: plain HTTP
    Duration limit = std::chrono::seconds(5);  // until all of the answer is there
    KeptConnection* kept = nullptr;            // must outlive the call; null: a new connection
  };
  virtual ~HttpCall() = default;
};

struct HttpResponse {
  int status = 0;
  std::string body;
  std::string retry_after{};          // the field of that name
  boost::asio::ip::address own = {};  // this machine's, on that connection
};
/// Gets the whole answer, of at most 4 MiB, or the error that ended the call: Closed, Timeout, Io,
/// Protocol; Usage if the server's certificate is not to be trusted. `answer` runs on the loop,
/// never inside this function.
std::unique_ptr<HttpCall> fetch(boost::asio::io_context& loop, Clock& clock,
                                HttpCall::Settings settings, HttpRequest request,
                                std::function<void(Result<HttpResponse>)> answer);

}  // namespace elastrun::net
