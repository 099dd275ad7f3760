// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/unique_fd.hpp"
#include "files/appended_file.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::logs {

/// Decides what becomes of output for a reader that may be slow or stuck. Pure.
/// Lines that a file has as well are left out, whole and counted, once waiting is over or too much
/// waits already; until the reader has caught up, so that there is one gap and not
/// many. What no file has is taken up to a larger bound. The agent's own lines have a separate
/// reserve, and the verdict has no bound.
class Lag {
 public:
  enum class Weight { Output, Own, Verdict };
  static constexpr std::size_t kFiled = 1 << 20;   // so much waits at most of what a file has
  static constexpr std::size_t kOutput = 4 << 20;  // and of what no file has
  static constexpr std::size_t kOwn = 5 << 20;     // and with what the agent says
  static constexpr std::size_t kCaughtUp = 64 << 10;
  struct Bounds {
    std::size_t filed = kFiled, output = kOutput, own = kOwn;
  };

  struct Gap {
    std::uint64_t filed = 0;  // lines that are in a file
    std::uint64_t lost = 0;   // lines that are nowhere
    bool empty() const { return filed == 0 && lost == 0; }
  };

  Lag() = default;
  explicit Lag(Bounds bounds) : bounds_(bounds) {}

  /// Ends the waiting: lines that a file has are left out from now on.
  void skip() { skipping_ = true; }
  bool skipping() const { return skipping_; }
  /// How many bytes of these whole lines, which a file has, may be added to so many that wait.
  std::size_t take_filed(std::string_view lines, std::size_t waiting);
  /// Takes bytes that no file has.
  std::size_t take(std::string_view bytes, std::size_t waiting, Weight weight);
  /// Returns a gap once: when the reader has caught up with it, or at once if something follows
  /// that must not be left out (`now`).
  Gap gap_to_tell(std::size_t waiting, bool now);

 private:
  Bounds bounds_{};
  bool skipping_ = false;
  Gap gap_;
};

/// One end of the console: a descriptor that we did not open, share with the workers and with our
/// parent, and that may be slow, stuck, full or closed. Writing never blocks and never fails; what
/// cannot be written at once waits here, up to a limit.
///
/// O_NONBLOCK is a flag of the open file, not of the descriptor: setting it would reach the workers
/// and the user's shell. So a pipe or terminal is opened a second time through /proc/self/fd, which
/// gives an open file of our own; a socket gets MSG_DONTWAIT; a plain file, which may be on a
/// file system that does not answer, is written by a separate thread; /dev/null never blocks.
/// Where the second opening is refused (another user's terminal), poll(2) is asked before each
/// piece of PIPE_BUF bytes, which a pipe or terminal that is ready takes at once.
///
/// What does not fit below the bounds of `Lag` is left out, counted in lines, and told at that
/// place of the output as soon as the reader has caught up. A closed reader (EPIPE, EIO) makes it
/// dead: everything is dropped from then on. A full disk drops what did not fit and tries again
/// with the next piece. Both are counted in bytes.
class Outlet : public std::enable_shared_from_this<Outlet> {
 public:
  enum class Kind { Closed, Null, File, Pipe, Socket, Terminal };
  using Weight = Lag::Weight;
  static constexpr std::size_t kCongested = 256 << 10;  // sources pause when this much waits

  /// Borrows `fd`, which stays open as long as this object.
  Outlet(boost::asio::any_io_executor executor, int fd);

  /// Writes or queues, or leaves out.
  void write(std::string_view bytes, Weight weight = Weight::Own);
  /// Offers whole lines that a file has as well. False if none was taken.
  bool offer(std::string_view lines);
  bool congested() const { return waiting() >= kCongested; }
  /// Ends the waiting for room: offered lines are left out until the reader has caught up.
  void skip() { lag_.skip(); }
  /// Skips what comes at the end of a worker, which a plain file takes up to its bounds.
  void skip_rest() {
    if (!file_) lag_.skip();
  }
  /// So long a worker waits for it when a file has its output as well. A disk that others use is
  /// slow for longer than a reader that is there, and a plain file is read afterwards: it is whole
  /// unless it is frozen.
  Duration time_limit() const {
    return file_ ? Duration(std::chrono::seconds(10)) : Duration(std::chrono::milliseconds(100));
  }
  bool skipping() const { return lag_.skipping(); }
  /// Returns what was left out and is to be told now; see Lag::gap_to_tell.
  Lag::Gap gap_to_tell(bool now) { return lag_.gap_to_tell(waiting(), now); }
  /// `go`, unless empty, runs whenever the reader has taken something that had waited.
  void on_progress(std::function<void()> go) { on_progress_ = std::move(go); }
  /// Runs `go` once on the loop when there is room again, or nothing to wait for any more.
  void when_clear(std::function<void()> go);
  /// Waits outside the loop until everything is written, or the reader has taken nothing for
  /// `time_limit`; what is left then is dropped.
  void finish(Duration time_limit);

  Kind kind() const { return kind_; }
  bool idle() const { return waiting() == 0; }
  bool same_place(const Outlet& other) const;
  std::uint64_t lost() const { return lost_ + (file_ ? file_->lost() : 0); }
  /// Bytes written so far: it moves as long as the reader does.
  std::uint64_t written() const { return file_ ? file_->written() : written_; }
  /// The errno of the first loss, or 0. A reader that is too slow is none.
  int trouble() const { return file_ ? file_->trouble() : trouble_; }
  int fd() const { return fd_; }

 private:
  std::size_t waiting() const { return file_ ? file_->waiting() : waiting_.size(); }
  bool write_by_thread(std::string_view bytes, std::size_t taken);
  void open_file();
  void open_own();
  ssize_t write_once(std::string_view bytes);
  std::size_t write_now(std::string_view bytes);
  void queue(std::string_view bytes);
  void lose(std::size_t bytes, int number);
  void await_room();
  void on_room();
  void tell_clear();

  // Set at construction
  boost::asio::any_io_executor executor_;
  int fd_;
  Kind kind_ = Kind::Closed;
  std::uint64_t device_ = 0, inode_ = 0;
  // Changes while running
  bool opened_ = false, dead_ = false, awaiting_ = false;
  UniqueFd own_;                                 // the same file, opened by us with O_NONBLOCK
  std::string waiting_;                          // not yet written
  std::unique_ptr<files::BlockingCalls> calls_;  // with a plain file, and for it alone
  std::unique_ptr<files::AppendedFile> file_;    // the same file; it has what waits then
  std::unique_ptr<boost::asio::posix::stream_descriptor> watch_;  // an epoll that holds fd_
  std::vector<std::function<void()>> when_clear_;
  std::function<void()> on_progress_;
  Lag lag_;
  std::uint64_t lost_ = 0, written_ = 0;
  int trouble_ = 0;
};

}  // namespace elastrun::logs
