// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "store/client.hpp"

#include <array>
#include <functional>
#include <optional>

namespace elastrun::store {

/// The connection behind a TcpClient: requests out in order, answers matched to them. Kept alive by
/// the operations it has running; for client*.cpp alone.
struct TcpClient::Connection : std::enable_shared_from_this<Connection> {
  enum class Answer { Flag, Nonce, Number, Bytes, Texts, Wait };
  /// The payload: without its length for Bytes, whole for the others.
  using OnAnswer = std::function<void(Result<std::string>)>;

  struct Call {
    std::string request;
    Answer answer = Answer::Number;
    OnAnswer done;
    std::vector<std::string> keys;  // of a Wait, for the words of its timeout
    Duration timeout{};             // of a Wait; negative: none
  };

  Connection(boost::asio::io_context& loop_of_all, Clock& clock_of_all);
  /// Once the socket is connected: reads until the end.
  void start() { read(); }
  void call(Call call);
  /// The same, ahead of what is queued.
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

}  // namespace elastrun::store
