// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "http/answer.hpp"
#include "http/http_server.hpp"
#include "http/request_reader.hpp"

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>

namespace elastrun::http {

/// One connection of a server: reads a request, has it answered, writes the answer, and so on.
/// Lives as long as an operation is under way, or its server holds it.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Rules {
    Server::Settings settings;
    Server::Handler handler;
    bool local_names_only = false;
    std::function<bool()> may_stream{};  // whether there is room for one more stream of events
  };
  /// `rules` are the server's, and may go before the connection does, after close().
  Connection(boost::asio::ip::tcp::socket socket, Clock& clock, const Rules& rules);

  void start();
  /// Answers with 503, and closes.
  void refuse();
  void close();
  bool closed() const { return !socket_.is_open(); }
  /// Waits for a request, of which nothing has come.
  bool idle() const;
  /// Has its answer, and waits for the other side to close.
  bool ending() const { return stage_ == Stage::Ending; }
  bool streams() const { return stage_ == Stage::Streaming && !closed(); }
  /// Waits for the rest of a request.
  bool unfinished() const;

 private:
  enum class Stage { Reading, Answering, Writing, Streaming, Ending };
  void read();
  void digest();
  void answer(const Request& request);
  void send(Answer answer);
  void end_with(Answer answer);
  void write(std::string bytes);
  void written();
  void stream(Answer answer);
  bool push(const std::shared_ptr<const std::string>& bytes);
  void write_next();
  void watch_end();
  void linger();
  void limit(Duration time);

  boost::asio::ip::tcp::socket socket_;
  Clock& clock_;
  const Rules* rules_;  // null: closed
  std::unique_ptr<Alarm> alarm_;
  RequestReader reader_;
  Request request_;  // that is being answered
  Stage stage_ = Stage::Reading;
  std::array<char, 4096> input_;
  std::string output_;
  std::deque<std::shared_ptr<const std::string>> events_;  // the first is on its way
  std::size_t waiting_ = 0;                                // bytes of these
};

}  // namespace elastrun::http
