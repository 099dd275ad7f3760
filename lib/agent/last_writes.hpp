// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "files/blocking_calls.hpp"
#include "logs/console.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>

namespace elastrun::agent {

/// The end of a run: waits until files and console have taken what is left, on the loop, so that a
/// signal can end the wait. Who takes nothing at all for five minutes loses the rest, said so: the
/// workers have ended long ago, and nobody's nodes are to be kept for ever by a reader that hangs.
class LastWrites {
 public:
  static constexpr Duration kPatience = std::chrono::minutes(5);

  /// Borrows them all. The loop must have been stopped.
  LastWrites(boost::asio::io_context& loop, Clock& clock, logs::Console& console,
             files::BlockingCalls& files);

  /// Runs the loop until the files are written; `console`: and everything is shown.
  void wait(bool console);
  bool waiting() const { return waiting_; }
  /// A signal came: what is waited for now is given up. Files are not waited for again then, but
  /// what is written to the console later is.
  void hurry();

 private:
  bool files_done() const { return files_given_up_ || files_.busy_with().empty(); }
  bool console_done() const { return !with_console_ || console_.idle(); }
  std::string waited_for() const;
  std::uint64_t progress() const { return files_.returned() + console_.written(); }
  void look();
  void say();
  void give_up_if_stuck();
  void give_up();

  boost::asio::io_context& loop_;
  logs::Console& console_;
  files::BlockingCalls& files_;
  Clock& clock_;
  std::unique_ptr<Alarm> alarm_;
  std::uint64_t before_ = 0;
  bool with_console_ = false, waiting_ = false, over_ = false, marked_ = false;
  bool files_given_up_ = false;
};

}  // namespace elastrun::agent
