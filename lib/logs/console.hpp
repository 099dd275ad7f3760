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
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
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
  std::uint64_t lost() const { return lost_ + (file_ ? file_->counts().lost : 0); }
  /// Bytes written so far: it moves as long as the reader does.
  std::uint64_t written() const { return file_ ? file_->counts().written : written_; }
  /// The errno of the first loss, or 0. A reader that is too slow is none.
  int trouble() const { return file_ ? file_->counts().trouble : trouble_; }
  int fd() const { return fd_; }

 private:
  std::size_t waiting() const { return file_ ? file_->counts().waiting : waiting_.size(); }
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

/// The agent's own stdout and stderr, the only place that writes to them: worker output, log lines,
/// events, metrics, the report, and on a terminal the status line below all of that.
///
/// Policy. The loop never waits for the console. Where a file has the output as well (tee), neither
/// do the workers: a reader that cannot keep up misses lines, and reads how many where they would
/// have been. Where the console is the only place, it makes the workers wait as a terminal would:
/// their streams are not read on while it is congested, so they block in their own write(2) as soon
/// as their pipe is full; the agent itself goes on. A console that is closed or full costs output,
/// counted and said once on stderr, never a worker.
///
/// SIGPIPE and SIGTTOU must be ignored by the process (`ignore_console_signals`).
class Console {
 public:
  enum class Stream { Out, Err };

  /// Borrows both descriptors.
  explicit Console(boost::asio::any_io_executor executor, int out_fd = 1, int err_fd = 2);
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
  ~Console();

  /// From now on core/log.hpp's lines come here, until this object goes.
  void take_log_lines();
  using Weight = Lag::Weight;
  /// All of `bytes` is written or queued before this returns; pieces are never mixed. First ends
  /// another writer's unfinished line.
  void write(Stream stream, std::string_view bytes, Weight weight = Weight::Own);
  /// Writes whole lines of a worker; `filed`: a file has them as well. If they continue what
  /// show_part has shown for `owner`, writes only the rest.
  void write_lines(Stream stream, const void* owner, std::string_view lines, bool filed);
  /// Shows a line whose end has not come. Called again with more of it, the rest is added, or all
  /// of it shown again if other text has come between. False: the console lags, and nothing has
  /// happened.
  bool show_part(Stream stream, const void* owner, std::string_view part);
  /// Names the directory where people find what a lagging console did not show.
  void say_files_are_in(std::string directory) { directory_ = std::move(directory); }
  bool idle() const { return out_->idle() && err_->idle(); }
  std::uint64_t written() const { return out_->written() + err_->written(); }
  /// Runs `go` once when all has been written, as soon as the reader takes the last of it.
  void when_idle(std::function<void()> go) { when_idle_ = std::move(go); }
  /// Tells now what was left out, though the reader has not caught up.
  void tell_gaps() {
    for (const auto stream : {Stream::Out, Stream::Err}) tell_gap(stream, true);
  }

  /// The line below everything; empty takes it away. Without a terminal on stderr nothing happens.
  /// It is drawn only where the output before it has ended its line, and never while the terminal
  /// is slow.
  void set_status(std::string text);
  /// It is drawn only while `ours` says that the terminal is ours to paint on, and left as it is
  /// once that is over: another process has the terminal then.
  void draw_status_while(std::function<bool()> ours) { ours_ = std::move(ours); }
  /// True if a status line can be shown: stderr is a terminal that knows how (TERM is not dumb).
  bool can_show_status() const { return can_show_status_; }
  /// True if stderr takes colours and NO_COLOR does not forbid them (no-color.org).
  bool can_show_colour() const;

  bool is_terminal(Stream stream) const { return outlet(stream).kind() == Outlet::Kind::Terminal; }
  /// True if both streams end in the same file, pipe or terminal.
  bool one_place() const { return one_place_; }
  /// Columns of the terminal, 80 if there is none.
  std::size_t width() const;
  /// The end of a stream: for those who read on only while it has room.
  Outlet& outlet(Stream stream) const { return stream == Stream::Out ? *out_ : *err_; }

  /// The last words: takes the status line away and waits outside the loop until all is written,
  /// or the reader has taken nothing for `time_limit`.
  void finish(Duration time_limit = std::chrono::seconds(10));

 private:
  /// A line that is shown without its end.
  struct OpenLine {
    const void* owner = nullptr;  // null: it cannot be continued
    std::string shown;            // empty: no open line
  };
  OpenLine& open_line(Stream stream) { return open_lines_[stream == Stream::Out && !one_place_]; }
  template <class Write>
  void write_by(Stream stream, bool ends_line, Write write);
  void end_open_line(Stream stream);
  void tell_gap(Stream stream, bool now);
  void progressed();
  bool shares_terminal(Stream stream) const;
  void draw();
  void clear();
  void say_loss(Stream stream);

  std::shared_ptr<Outlet> out_, err_;  // one object if they are one place
  bool one_place_;
  bool can_show_status_;
  bool takes_log_lines_ = false;
  // The terminal's last line
  std::string status_;
  std::function<bool()> ours_ = [] { return true; };
  bool drawn_ = false;
  bool at_line_start_ = true;
  bool said_loss_[2] = {false, false};
  OpenLine open_lines_[2];
  std::string directory_;
  std::function<void()> when_idle_;
};

/// Ignores SIGPIPE (a closed console is an errno, not a death) and SIGTTOU (`stty tostop` stops
/// background writers, and the agent is in a separate process group). Once, in main.
void ignore_console_signals();

/// Which of our own streams, open as these descriptors, is at that path, under whatever name:
/// /dev/stdout, /proc/self/fd/1, a link, the file itself. It is to be written by the console, which
/// knows where the next byte goes: of a file that the shell has opened without O_APPEND who opens
/// it again overwrites what is there, or is overwritten. May wait for the file system.
std::optional<Console::Stream> own_stream(const std::string& path, int out, int err);

/// True if a person looks at what is written to `fd`: a terminal, and not one whose bytes a
/// notebook (JPY_PARENT_PID of Jupyter) or script(1) keeps.
bool is_interactive(int fd);

/// True if the terminal `fd` is ours to paint on now: it is the controlling one, and its foreground
/// is our process group or that of `guardian` (0: none). A job in the background of a shell shares
/// the terminal with a prompt.
bool is_in_foreground(int fd, pid_t guardian);

/// The facts that the line below the output shows.
struct StatusFacts {    // not `Status`, which is core's
  std::string phase{};  // "starting", "running", "waiting for nodes", "stopping", ...
  int restarts = 0;     // spent
  std::optional<int> max_restarts{};
  int workers_up = 0, workers = 0;  // of this node
  int nodes = 1;                    // shown when more than one
  std::string detail{};             // free text: the newest step, who is missing; may be empty
  bool operator==(const StatusFacts&) const = default;
};

/// The status as one line of at most `width - 1` columns (a full last column would wrap). What
/// matters least is left out first. `colour`: the phase stands out by SGR sequences, which take no
/// columns. Pure. A long detail is cut short rather than left out, if enough of it fits.
std::string status_text(const StatusFacts& status, Duration elapsed, std::size_t width,
                        bool colour);

/// Keeps the status line of the console up to date: drawn when the facts change and once a second
/// while shown, because it tells the time. A detail alone is drawn four times a second at most: a
/// job may do thousands of steps in it. Hidden or disabled it costs nothing, not even a wake-up.
class StatusLine {
 public:
  /// Borrows both. `enabled`: --status allows it; on a stderr that is not a terminal nothing
  /// happens all the same. Colour is used unless NO_COLOR is set.
  StatusLine(Clock& clock, Console& console, bool enabled);

  bool is_enabled() const { return enabled_; }
  void show(StatusFacts status);
  void hide();
  /// The terminal may have another width now.
  void redraw() {
    if (status_) draw();
  }

 private:
  void draw();

  Clock& clock_;
  Console& console_;
  bool enabled_, colour_;
  TimePoint start_, drawn_at_{};
  bool soon_ = false;  // a detail is to be drawn before the next full second
  std::optional<StatusFacts> status_;
  std::unique_ptr<Alarm> alarm_;  // set while shown
};

}  // namespace elastrun::logs
