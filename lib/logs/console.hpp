// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "logs/outlet.hpp"

#include <string>
#include <string_view>

namespace elastrun::logs {

/// The agent's own stdout and stderr, the only place that writes to them: worker output, log lines,
/// events, metrics, the report, and on a terminal the status line below all of that.
///
/// Policy. The loop never waits for the console. A reader that does not read makes the workers wait
/// as a terminal would: their streams are not read on while the console is congested, so they block
/// in their own write(2) as soon as their pipe is full; the agent itself goes on. A console that is
/// closed or full costs output, counted and said once on stderr, never a worker. At the end
/// `finish` waits for a slow reader, but not for a stuck one.
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
  /// All of `bytes` is written or queued before this returns; pieces are never mixed.
  void write(Stream stream, std::string_view bytes);
  bool congested(Stream stream) const { return outlet(stream).congested(); }
  /// As Outlet::when_clear.
  void when_clear(Stream stream, std::function<void()> go);

  /// The line below everything; empty takes it away. Without a terminal on stderr nothing happens.
  /// It is drawn only where the output before it has ended its line, and never while the terminal
  /// is slow.
  void set_status(std::string text);
  /// Whether a status line could be shown: stderr is a terminal that knows how (TERM is not dumb).
  bool can_show_status() const { return can_show_status_; }

  Outlet::Kind kind(Stream stream) const { return outlet(stream).kind(); }
  bool is_terminal(Stream stream) const { return kind(stream) == Outlet::Kind::Terminal; }
  /// Whether both streams end in the same file, pipe or terminal.
  bool one_place() const { return one_place_; }
  /// Columns of the terminal, 80 if there is none.
  std::size_t width() const;
  int fd(Stream stream) const { return outlet(stream).fd(); }
  std::uint64_t lost(Stream stream) const { return outlet(stream).lost(); }

  /// The last words: takes the status line away and waits outside the loop until all is written,
  /// or the reader has taken nothing for `patience`.
  void finish(Duration patience = std::chrono::seconds(10));

 private:
  Outlet& outlet(Stream stream) const { return stream == Stream::Out ? *out_ : *err_; }
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
  bool drawn_ = false;
  bool at_line_start_ = true;
  bool said_loss_[2] = {false, false};
};

/// Ignores SIGPIPE (a closed console is an errno, not a death) and SIGTTOU (`stty tostop` stops
/// background writers, and the agent is in a process group of its own). Once, in main.
void ignore_console_signals();

}  // namespace elastrun::logs
