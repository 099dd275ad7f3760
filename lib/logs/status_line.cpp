// SPDX-License-Identifier: Apache-2.0

#include "logs/status_line.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <string>
#include <termios.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace elastrun::logs {
namespace {

std::string word_after(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (key.empty() || (word == key && file >> word)) return word;
  }
  return {};
}

/// The program that made the terminal's session, say a terminal emulator, sshd or script.
std::string made_by(int fd) {
  // The shell leads the session in an ordinary terminal, and its parent made that.
  const pid_t leader = ::tcgetsid(fd);
  if (leader <= 0) return {};
  const auto parent = word_after(fmt::format("/proc/{}/status", leader), "PPid:");
  return parent.empty() ? parent : word_after(fmt::format("/proc/{}/comm", parent), "");
}

}  // namespace

bool is_interactive(int fd) {
  // Jupyter sets that variable for its kernels, and script(1) records what is written: both would
  // keep a line that is drawn again every second as a thousand lines.
  return ::isatty(fd) == 1 && std::getenv("JPY_PARENT_PID") == nullptr && made_by(fd) != "script";
}

bool is_in_foreground(int fd, pid_t guardian) {
  const pid_t front = ::tcgetpgrp(fd);  // -1: not our controlling terminal
  if (front <= 0) return false;
  return front == ::getpgrp() || (guardian > 0 && front == ::getpgid(guardian));
}

namespace {

using namespace std::chrono_literals;

constexpr Duration kDetailPause = 250ms;  // people do not read faster
constexpr int kDetail = 3;                // its importance
constexpr std::size_t kLeastDetail = 16;  // columns: less of it tells nothing

struct Piece {
  std::string text;
  int importance;  // the lowest goes first
};

std::size_t columns(const std::vector<Piece>& pieces) {
  std::size_t sum = pieces.size() == 1 ? 2 : 3 * (pieces.size() - 1);  // "[", "] " and " | "
  for (const auto& piece : pieces) sum += piece.text.size();
  return sum;
}

std::string plain(std::string text) {
  // Only what surely takes one column each: a line that wraps cannot be taken away again.
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

/// Whole seconds: the line changes once a second at most.
std::string clock_text(Duration elapsed) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(elapsed).count();
  if (seconds < 3600) return fmt::format("{}:{:02}", seconds / 60, seconds % 60);
  return fmt::format("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

std::vector<Piece> pieces_of(const StatusFacts& status, Duration elapsed) {
  std::vector<Piece> pieces;
  pieces.push_back({plain(status.phase), 9});
  if (status.workers > 0) {
    pieces.push_back({fmt::format("{}/{} workers", status.workers_up, status.workers), 7});
  }
  if (status.nodes > 1) pieces.push_back({fmt::format("{} nodes", status.nodes), 5});
  if (status.max_restarts) {
    pieces.push_back({fmt::format("{}/{} restarts", status.restarts, *status.max_restarts), 4});
  }
  if (!status.detail.empty()) pieces.push_back({plain(status.detail), kDetail});
  pieces.push_back({clock_text(elapsed), 8});
  return pieces;
}

void shorten_detail(std::vector<Piece>& pieces, std::size_t width) {
  const auto detail = std::ranges::find(pieces, kDetail, &Piece::importance);
  if (detail == pieces.end() || columns(pieces) < width) return;
  const std::size_t excess = columns(pieces) - (width - 1);
  if (detail->text.size() < excess + kLeastDetail) return;
  detail->text.resize(detail->text.size() - excess - 2);
  detail->text += "..";
}

void drop_least(std::vector<Piece>& pieces) {
  pieces.erase(std::min_element(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return a.importance < b.importance;
  }));
}

}  // namespace

std::string status_text(const StatusFacts& status, Duration elapsed, std::size_t width,
                        bool colour) {
  auto pieces = pieces_of(status, elapsed);
  if (width > 0) shorten_detail(pieces, width);
  while (pieces.size() > 1 && columns(pieces) >= width) drop_least(pieces);
  // Even the last piece has to fit: a line that wraps cannot be taken away by CR.
  pieces[0].text.resize(std::min(pieces[0].text.size(), width - std::min<std::size_t>(width, 4)));
  std::string line = colour ? "[\x1b[1;36m" : "[";
  line += pieces[0].text;
  line += colour ? "\x1b[0m]" : "]";
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    line += i == 1 ? " " : " | ";
    line += pieces[i].text;
  }
  return line;
}

StatusLine::StatusLine(Clock& clock, Console& console, bool enabled)
    : clock_(clock),
      console_(console),
      enabled_(enabled && console.can_show_status()),
      colour_(console.can_show_colour()),
      start_(clock.now()) {}

void StatusLine::show(StatusFacts status) {
  if (!enabled_) return;
  if (!alarm_) alarm_ = clock_.make_alarm();
  auto before = std::exchange(status_, std::move(status));
  // The detail may change many times a second and can wait; with it made equal, the comparison
  // finds whether anything else has changed.
  if (before) before->detail = status_->detail;
  const auto due = drawn_at_ + kDetailPause;
  const bool can_wait = before == status_ && clock_.now() < due;
  if (!can_wait) return draw();
  // The newest detail is drawn then: those that come in between cost nothing.
  if (!std::exchange(soon_, true)) alarm_->arm(due, [this] { draw(); });
}

void StatusLine::draw() {
  drawn_at_ = clock_.now();
  soon_ = false;
  const auto elapsed = drawn_at_ - start_;
  // A terminal echoes Ctrl+C as "^C" behind the line, which must not wrap: it could not be erased.
  const auto width = console_.width() - std::min<std::size_t>(console_.width(), 1);
  console_.set_status(status_text(*status_, elapsed, width, colour_));
  // At the next full second, when the time it tells changes.
  alarm_->arm(start_ + std::chrono::floor<std::chrono::seconds>(elapsed) + 1s, [this] { draw(); });
}

void StatusLine::hide() {
  alarm_.reset();
  status_.reset();
  if (enabled_) console_.set_status({});
}

}  // namespace elastrun::logs
