// SPDX-License-Identifier: Apache-2.0

#include "logs/console.hpp"

#include "core/log.hpp"
#include "files/whole_file.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <fstream>
#include <poll.h>
#include <string>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
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

namespace {

/// A line without its end counts, too.
std::uint64_t lines_in(std::string_view text) {
  const auto ends = static_cast<std::uint64_t>(std::ranges::count(text, '\n'));
  return ends + (!text.empty() && text.back() != '\n' ? 1 : 0);
}

std::size_t room_below(std::size_t bound, std::size_t waiting) {
  return bound - std::min(bound, waiting);
}

}  // namespace

std::size_t Lag::take_filed(std::string_view lines, std::size_t waiting) {
  std::size_t taken = lines.size();
  if (skipping_) {
    taken = 0;
  } else if (const auto room = room_below(bounds_.filed, waiting); room < lines.size()) {
    taken = lines.substr(0, room).rfind('\n') + 1;  // npos + 1 is 0
    // From here on nothing is taken until the reader has caught up: single lines out of the middle
    // of a flood would tell nothing.
    skipping_ = true;
  }
  gap_.filed += lines_in(lines.substr(taken));
  return taken;
}

std::size_t Lag::take(std::string_view bytes, std::size_t waiting, Weight weight) {
  // Always: what ended the job is the one thing that must be shown.
  if (weight == Weight::Verdict) return bytes.size();
  const auto room = room_below(weight == Weight::Own ? bounds_.own : bounds_.output, waiting);
  const auto taken = std::min(room, bytes.size());
  gap_.lost += lines_in(bytes.substr(taken));
  return taken;
}

Lag::Gap Lag::gap_to_tell(std::size_t waiting, bool now) {
  const bool caught_up = waiting <= kCaughtUp;
  if (!caught_up && !now) return {};
  // Not when it is only told in the end: then the reader still lags.
  if (caught_up) skipping_ = false;
  return std::exchange(gap_, {});
}

namespace {

Outlet::Kind kind_of(int fd, const struct stat& info) {
  if (S_ISREG(info.st_mode)) return Outlet::Kind::File;
  if (S_ISFIFO(info.st_mode)) return Outlet::Kind::Pipe;
  if (S_ISSOCK(info.st_mode)) return Outlet::Kind::Socket;
  if (::isatty(fd) == 1) return Outlet::Kind::Terminal;
  return Outlet::Kind::Null;  // /dev/null, /dev/full and other devices that never block
}

bool ready_to_write(int fd, int wait_ms) {
  pollfd entry{fd, POLLOUT, 0};
  return ::poll(&entry, 1, wait_ms) > 0;
}

}  // namespace

Outlet::Outlet(boost::asio::any_io_executor executor, int fd)
    : executor_(std::move(executor)), fd_(fd) {
  struct stat info {};
  // Closed by the shell that started us (">&-"): the number may later be that of another file.
  dead_ = ::fstat(fd, &info) != 0;
  if (dead_) return;
  kind_ = kind_of(fd, info);
  if (kind_ == Kind::File) open_file();
  // A terminal is one place under all its names: /dev/tty, /dev/pts/3.
  device_ = kind_ == Kind::Terminal ? 0 : info.st_dev;
  inode_ = kind_ == Kind::Terminal ? info.st_rdev : info.st_ino;
}

bool Outlet::same_place(const Outlet& other) const {
  return kind_ == other.kind_ && device_ == other.device_ && inode_ == other.inode_;
}

void Outlet::open_file() {
  // Within what an AppendedFile takes at most.
  lag_ = Lag({.filed = 12 << 20, .output = 14 << 20, .own = 15 << 20});
  calls_ = std::make_unique<files::BlockingCalls>(executor_);
  const files::AppendedFile::Form form{.full = kCongested, .area = nullptr};
  const auto name = fmt::format("{}", fd_ == STDOUT_FILENO ? "stdout" : "stderr");
  file_ = std::make_unique<files::AppendedFile>(*calls_, name, form, fd_);
  file_->on_progress([this] {  // it does not outlive us
    if (on_progress_) on_progress_();
  });
}

/// The first ones; the rest is left out.
bool Outlet::write_by_thread(std::string_view bytes, std::size_t taken) {
  file_->write(bytes.substr(0, taken));
  lost_ += bytes.size() - taken;
  return taken > 0;
}

void Outlet::open_own() {
  opened_ = true;
  if (kind_ != Kind::Pipe && kind_ != Kind::Terminal) return;
  const std::string path = fmt::format("/proc/self/fd/{}", fd_);
  // Opened again for an open file description with O_NONBLOCK: on fd_ the flag would be set for all
  // who share it (fcntl(2)), the shell and the next program in the pipe, whose reads and writes
  // would then fail with EAGAIN. O_NOCTTY, or the agent could get a controlling terminal by it.
  own_.reset(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

ssize_t Outlet::write_once(std::string_view bytes) {
  if (kind_ == Kind::Socket) {
    // A socket cannot be opened by its path in /proc (ENXIO), but send(2) has the flag for one
    // call.
    return ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  if (own_) return ::write(own_.get(), bytes.data(), bytes.size());
  if (kind_ == Kind::Pipe || kind_ == Kind::Terminal) {
    if (!ready_to_write(fd_, 0)) {
      errno = EAGAIN;
      return -1;
    }
    // A pipe that poll(2) calls writable has room for PIPE_BUF bytes, so that many do not block;
    // more could.
    return ::write(fd_, bytes.data(), std::min<std::size_t>(bytes.size(), PIPE_BUF));
  }
  return ::write(fd_, bytes.data(), bytes.size());
}

/// How many bytes are done with: written or lost. Fewer than given: the reader is slow.
std::size_t Outlet::write_now(std::string_view bytes) {
  if (!opened_) open_own();
  std::size_t done = 0;
  while (done < bytes.size() && !dead_) {
    const ssize_t written = write_once(bytes.substr(done));
    if (written > 0) {
      done += static_cast<std::size_t>(written);
      written_ += static_cast<std::uint64_t>(written);
    } else if (written < 0 && errno == EAGAIN) {
      return done;
    } else if (written < 0 && errno != EINTR) {
      // A disk may have room again, so only these bytes are lost; a reader that has gone does not
      // come back.
      dead_ = errno != ENOSPC && errno != EDQUOT && errno != EFBIG;
      lose(bytes.size() - done, errno);
      return bytes.size();
    }
  }
  if (done < bytes.size()) lose(bytes.size() - done, trouble_);
  return bytes.size();
}

void Outlet::write(std::string_view bytes, Weight weight) {
  if (file_) {
    write_by_thread(bytes, lag_.take(bytes, waiting(), weight));
    return;
  }
  if (dead_) return lose(bytes.size(), trouble_);
  // Otherwise these would come before those that wait.
  if (waiting_.empty()) bytes.remove_prefix(write_now(bytes));
  if (bytes.empty()) return;
  const auto taken = lag_.take(bytes, waiting_.size(), weight);
  queue(bytes.substr(0, taken));
  lost_ += bytes.size() - taken;
}

bool Outlet::offer(std::string_view lines) {
  if (file_) return write_by_thread(lines, lag_.take_filed(lines, waiting()));
  if (dead_) return lose(lines.size(), trouble_), true;
  std::size_t begun = 0;
  if (waiting_.empty() && !lag_.skipping()) {
    const auto done = write_now(lines);
    if (done == lines.size()) return true;
    // A line that has begun is not left out.
    begun = done == 0 ? 0 : lines.find('\n', done - 1) + 1;
    if (begun == 0 && done > 0) begun = lines.size();
    queue(lines.substr(done, begun - done));
    lines.remove_prefix(begun);
  }
  const auto taken = lag_.take_filed(lines, waiting_.size());
  queue(lines.substr(0, taken));
  lost_ += lines.size() - taken;
  return begun + taken > 0;
}

void Outlet::queue(std::string_view bytes) {
  if (bytes.empty()) return;
  waiting_.append(bytes);
  await_room();
}

void Outlet::lose(std::size_t bytes, int number) {
  lost_ += bytes;
  if (bytes > 0 && trouble_ == 0) trouble_ = number;
}

void Outlet::await_room() {
  if (awaiting_) return;
  if (!watch_) {
    // Asio would set O_NONBLOCK on what it waits for; an epoll(7) in between keeps it off fd_.
    UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLOUT;
    // EPERM for what cannot be waited for, which never blocks either (epoll_ctl(2)).
    if (!epoll || ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd_, &event) != 0) return on_room();
    watch_ = std::make_unique<boost::asio::posix::stream_descriptor>(executor_, epoll.release());
  }
  awaiting_ = true;
  // An epoll descriptor is readable when one of those it watches is ready (epoll(7)).
  watch_->async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [self = shared_from_this()](const boost::system::error_code&) {
                       self->awaiting_ = false;
                       self->on_room();
                     });
}

void Outlet::on_room() {
  if (!waiting_.empty()) waiting_.erase(0, write_now(waiting_));
  if (on_progress_) on_progress_();
  if (!waiting_.empty() && watch_) {
    await_room();
  } else {
    lose(waiting_.size(), EIO);
    waiting_ = {};
    watch_.reset();  // no longer looked at: an idle console causes no wake-ups
  }
  if (!congested()) tell_clear();
}

void Outlet::tell_clear() {
  for (auto& go : std::exchange(when_clear_, {})) boost::asio::post(executor_, std::move(go));
}

void Outlet::when_clear(std::function<void()> go) {
  if (file_) return file_->when_room(std::move(go));
  when_clear_.push_back(std::move(go));
  if (!congested()) tell_clear();
}

void Outlet::finish(Duration time_limit) {
  if (file_) {
    calls_->finish(time_limit);
    return;
  }
  const auto wait_ms = std::chrono::duration_cast<std::chrono::milliseconds>(time_limit).count();
  while (!waiting_.empty()) {
    const bool ready = ready_to_write(own_ ? own_.get() : fd_, static_cast<int>(wait_ms));
    const std::size_t done = ready ? write_now(waiting_) : 0;
    // A whole time limit without a byte taken: what is left will not be read.
    if (done == 0) {
      lose(waiting_.size(), 0);
      dead_ = true;
      waiting_ = {};
    }
    waiting_.erase(0, done);
  }
  watch_.reset();
  tell_clear();
}

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
