// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "store/store.hpp"
#include "store/tcp_protocol.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <deque>
#include <memory>

namespace elastrun::store {

/// A client of any TCPStore server that speaks the current protocol; with keys as torch's clients
/// write them, so both see each other's values. One connection, made by connect() and not made
/// again: when it is lost, all calls fail with Closed.
///
/// A wait keeps later requests of the same client back until it ends, since the protocol's answers
/// carry no name; for a long wait beside other work use another client, as torch's clone().
class TcpClient final : public Store {
 public:
  using OnConnected = std::function<void(Result<std::unique_ptr<TcpClient>>)>;
  /// Tries until the timeout, with growing pauses, as long as the server does not answer. `done`
  /// runs on the loop; the loop and the clock must outlive the client.
  static void connect(boost::asio::io_context& loop, Clock& clock,
                      boost::asio::ip::tcp::endpoint endpoint, Duration timeout, OnConnected done);
  ~TcpClient() override;

  void set(std::string key, std::string value, OnDone done) override;
  void get(std::string key, Duration timeout, OnValue done) override;
  void add(std::string key, std::int64_t delta, OnNumber done) override;
  void compare_set(std::string key, std::string expected, std::string desired,
                   OnValue done) override;
  void check(std::vector<std::string> keys, OnFlag done) override;
  void wait(std::vector<std::string> keys, Duration timeout, OnDone done) override;
  void erase(std::string key, OnFlag done) override;
  void count_keys(OnNumber done) override;
  void list_keys(OnKeys done) override;

 private:
  struct Connection;
  explicit TcpClient(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
  std::shared_ptr<Connection> connection_;
};

}  // namespace elastrun::store
