// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "logs/console.hpp"

#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>

namespace elastrun::logs {

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
