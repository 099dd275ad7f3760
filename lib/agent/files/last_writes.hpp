// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/awake_clock.hpp"
#include "core/clock.hpp"
#include "files/blocking_calls.hpp"
#include "logs/console.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::agent {

/// The end of a run: waits until files and console have taken what is left, on the loop, so that a
/// signal can end the wait. Who takes nothing at all for five minutes loses the rest, said so: the
/// workers have ended long ago, and a reader that hangs must not keep nodes for ever.
class LastWrites {
 public:
  static constexpr Duration kTimeLimit = std::chrono::minutes(5);

  /// Borrows them all. The loop must have been stopped. `limit` is what a signal leaves.
  LastWrites(boost::asio::io_context& loop, Clock& clock, logs::Console& console,
             std::vector<files::BlockingCalls*> files, Duration limit);

  /// Runs the loop until the files are written; `console`: and everything is shown.
  void wait(bool console);
  bool waiting() const { return waiting_; }
  /// A signal asks for the end: no more than `limit` from now on, also of a wait that comes later.
  void shorten();
  /// Files of these threads are waited for no longer: their file system has not answered. It has
  /// another two seconds for that, in which the loop runs, and more as long as it does. What each
  /// is busy with that is given up.
  std::vector<std::string> give_up_on(const std::vector<const files::BlockingCalls*>& calls);
  /// The same, with an error in the log for each: something is lost.
  void lose(const std::vector<const files::BlockingCalls*>& calls);
  /// A second signal: what is waited for now is given up. Files of that thread are not waited for
  /// again then, but what is written to the console later is.
  void give_up_now();

 private:
  struct Queue {
    files::BlockingCalls* calls;
    bool marked = false;         // our question is in it
    bool given_up = false;       // for good
    bool left_out = false;       // of this wait
    std::uint64_t returned = 0;  // when it was looked at last
  };
  bool ask_files();
  bool console_done() const { return !with_console_ || console_given_up_ || console_.idle(); }
  std::string waited_for() const;
  bool stands_still() const;
  void remember();
  void look();
  void say();
  void arm_limit();
  void give_up_if_stuck();
  void give_up();

  boost::asio::io_context& loop_;
  logs::Console& console_;
  AwakeClock clock_;
  const Duration limit_;
  std::vector<Queue> files_;
  std::unique_ptr<Alarm> alarm_, limit_alarm_;
  std::optional<TimePoint> until_;  // since a signal came
  std::uint64_t written_ = 0;       // to the console, when it was looked at last
  bool with_console_ = false, waiting_ = false, over_ = false;
  bool brief_ = false;             // no words, and no longer than needs none
  bool console_given_up_ = false;  // for good
};

}  // namespace elastrun::agent
