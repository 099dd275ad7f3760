// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "logs/outlet.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace elastrun::logs {

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
  void tell_gaps();

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

}  // namespace elastrun::logs
