// SPDX-License-Identifier: Apache-2.0

#include "logs/outlet.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <climits>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <utility>

namespace elastrun::logs {
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
  file_ = std::make_unique<files::AppendedFile>(*calls_, name, fd_, form);
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

}  // namespace elastrun::logs
