// SPDX-License-Identifier: Apache-2.0
#include "logs/console.hpp"

#include "core/log.hpp"
#include "files/whole_file.hpp"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <sys/ioctl.h>

namespace elastrun::logs {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";

constexpr Duration kParting = std::chrono::milliseconds(100);

bool terminal_can_clear() {
  // Terminals without a name or called dumb (editors, build servers) print escape sequences as
  // text.
  const char* term = std::getenv("TERM");
  return term != nullptr && *term != '\0' && std::strcmp(term, "dumb") != 0;
}

/// "1,234"
std::string with_commas(std::uint64_t number) {
  std::string text = fmt::to_string(number);
  for (auto at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
  return text;
}

}  // namespace

Console::Console(boost::asio::any_io_executor executor, int out_fd, int err_fd)
    : out_(std::make_shared<Outlet>(executor, out_fd)),
      err_(std::make_shared<Outlet>(executor, err_fd)),
      one_place_(out_->same_place(*err_)),
      can_show_status_(err_->kind() == Outlet::Kind::Terminal && terminal_can_clear()) {
  // One queue for one place: otherwise a slow terminal would get halves of lines from both.
  if (one_place_) out_ = err_;
  out_->on_progress([this] { progressed(); });
  err_->on_progress([this] { progressed(); });
}

Console::~Console() {
  // First: outlets are shared with operations under way and outlive this, and would tell an object
  // that has gone.
  out_->on_progress({});
  err_->on_progress({});
  // Before the outlets are finished: what is logged from here on goes to the stderr of the process.
  if (takes_log_lines_) log::set_writer(nullptr, nullptr);
  // What was said after finish(), which has waited long enough, is mostly written already.
  for (const auto& outlet : {out_, err_}) {
    if (outlet->kind() == Outlet::Kind::File) outlet->finish(kParting);
  }
}

void Console::take_log_lines() {
  takes_log_lines_ = true;
  log::set_writer(
      [](void* console, std::string_view line) {
        static_cast<Console*>(console)->write(Stream::Err, line);
      },
      this);
}

bool Console::shares_terminal(Stream stream) const {
  return can_show_status_ && (stream == Stream::Err || one_place_);
}

/// Around everything that is written: the status line goes and comes again.
template <class Write>
void Console::write_by(Stream stream, bool ends_line, Write write) {
  if (shares_terminal(stream)) {
    clear();
    write();
    at_line_start_ = ends_line;
    draw();
  } else {
    write();
  }
  if (outlet(stream).trouble() != 0) say_loss(stream);
}

void Console::end_open_line(Stream stream) {
  auto& open = open_line(stream);
  if (open.shown.empty()) return;
  open = {};
  outlet(stream).write("\n", Weight::Verdict);
}

void Console::write(Stream stream, std::string_view bytes, Weight weight) {
  if (bytes.empty()) return;
  // Before the bytes: the gap is told at the place where the lines are missing.
  tell_gap(stream, weight == Weight::Verdict);
  write_by(stream, bytes.back() == '\n', [&] {
    end_open_line(stream);
    outlet(stream).write(bytes, weight);
  });
}

void Console::write_lines(Stream stream, const void* owner, std::string_view lines, bool filed) {
  if (lines.empty()) return;
  tell_gap(stream, false);
  auto& open = open_line(stream);
  const bool goes_on = open.owner == owner && !open.shown.empty() && lines.starts_with(open.shown);
  write_by(stream, true, [&] {
    if (goes_on) {
      lines.remove_prefix(open.shown.size());
    } else if (!outlet(stream).skipping()) {
      end_open_line(stream);
    }
    bool taken = true;
    if (filed) taken = outlet(stream).offer(lines);
    if (!filed) outlet(stream).write(lines, Weight::Output);
    if (taken) open = {};
    open.owner = nullptr;  // what is left out cannot be gone on with
  });
}

bool Console::show_part(Stream stream, const void* owner, std::string_view part) {
  if (outlet(stream).congested() || outlet(stream).skipping()) return false;
  auto& open = open_line(stream);
  const bool goes_on = open.owner == owner && !open.shown.empty() && part.starts_with(open.shown);
  write_by(stream, false, [&] {
    if (!goes_on) end_open_line(stream);
    outlet(stream).write(part.substr(goes_on ? open.shown.size() : 0), Weight::Own);
    open = {owner, std::string(part)};
  });
  return true;
}

void Console::tell_gap(Stream stream, bool now) {
  const auto gap = outlet(stream).gap_to_tell(now);
  if (gap.empty()) return;
  std::string text;
  const auto tell = [&text](std::uint64_t lines, std::string_view where) {
    if (lines == 0) return;
    text +=
        fmt::format("[elastrun] {} line{} {} not shown: the reader was too slow; {}\n",
                    with_commas(lines), lines == 1 ? "" : "s", lines == 1 ? "was" : "were", where);
  };
  const auto files = directory_.empty() ? std::string("the log files have them")
                                        : "they are in the files below " + directory_;
  tell(gap.filed, files);
  tell(gap.lost, "no file has them");
  write_by(stream, true, [&] {
    end_open_line(stream);
    outlet(stream).write(text, Weight::Verdict);
  });
}

/// A reader has taken something.
void Console::progressed() {
  for (const auto stream : {Stream::Out, Stream::Err}) {
    tell_gap(stream, false);
    if (outlet(stream).trouble() != 0) say_loss(stream);
  }
  if (idle() && when_idle_) std::exchange(when_idle_, {})();
}

void Console::tell_gaps() {
  for (const auto stream : {Stream::Out, Stream::Err}) tell_gap(stream, true);
}

void Console::say_loss(Stream stream) {
  bool& said = said_loss_[static_cast<std::size_t>(stream)];
  // Once for each stream, and marked before the warning: that is written to stderr, which may be
  // the stream that fails.
  if (std::exchange(said, true)) return;
  const bool out = stream == Stream::Out;
  const int trouble = outlet(stream).trouble();
  const char* why =
      // EIO is what a terminal gives that was hung up.
      trouble == EPIPE || trouble == EIO ? "its reader has gone" : std::strerror(trouble);
  log::warning("console", "cannot write to {}: {}; output for it is dropped, the job goes on",
               out ? "stdout" : "stderr", why);
}

void Console::set_status(std::string text) {
  if (!can_show_status_ || (text == status_ && drawn_)) return;
  clear();
  status_ = std::move(text);
  draw();
}

void Console::clear() {
  // In the background the terminal belongs to another program, whose line would be erased.
  if (std::exchange(drawn_, false) && ours_()) err_->write(kClearLine);
}

void Console::draw() {
  // Behind a line without its end, or behind bytes that still wait, the status would stand in the
  // middle of a worker's words, and be taken away with them.
  if (status_.empty() || !at_line_start_ || !err_->idle() || !ours_()) return;
  err_->write(status_);
  drawn_ = true;
}

bool Console::can_show_colour() const {
  const char* forbidden = std::getenv("NO_COLOR");  // set and not empty
  return can_show_status_ && (forbidden == nullptr || *forbidden == '\0');
}

std::size_t Console::width() const {
  winsize size{};
  // A serial line and some pseudo-terminals have no size set and say 0; 80 is the width that
  // terminals have had since the VT100.
  if (::ioctl(err_->fd(), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

void Console::finish(Duration time_limit) {
  set_status({});
  tell_gaps();
  out_->finish(time_limit);
  // One queue for one place: finishing it twice would wait twice for a reader that has stopped.
  if (err_ != out_) err_->finish(time_limit);
}

void ignore_console_signals() {
  // A reader that goes ("| head") would end the agent, and the job with it; ignored, write(2) fails
  // with EPIPE.
  std::signal(SIGPIPE, SIG_IGN);
  // With "stty tostop" a write from the background would stop the agent (termios(3)).
  std::signal(SIGTTOU, SIG_IGN);
}

std::optional<Console::Stream> own_stream(const std::string& path, int out, int err) {
  using Stream = Console::Stream;
  // By name first: where /dev has no such link, a file of that name is not what is meant.
  if (path == "/dev/stdout" || files::is_open_at(path, out)) return Stream::Out;
  if (path == "/dev/stderr" || files::is_open_at(path, err)) return Stream::Err;
  return std::nullopt;
}

}  // namespace elastrun::logs
