// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "http/answer.hpp"
#include "http/request_reader.hpp"
#include "net/endpoint.hpp"

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>

namespace elastrun::http {

/// A small HTTP/1.1 server on a loop, for GET and HEAD, without a thread: for people who look and
/// programs that scrape, not for many. All limits are there so that a client can cost no more than
/// a bounded amount of memory, descriptors and time.
class Server {
 public:
  struct Settings {
    net::Endpoint at;  // a numeric address; port 0: any that is free
    /// Above it the oldest goes that waits for a request, or for the rest of one; else 503.
    std::size_t max_connections = 64;
    /// Of these, streams of events, which have no end; others of them get 503.
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
  virtual ~Server() = default;
  /// With the port that was chosen.
  virtual const net::Endpoint& at() const = 0;
};

}  // namespace elastrun::http
