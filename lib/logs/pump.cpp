// SPDX-License-Identifier: Apache-2.0
#include "logs/pump.hpp"

#include "core/log.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <sys/ioctl.h>
#include <unistd.h>

namespace elastrun::logs {
namespace {

using namespace std::chrono_literals;

// One read: large enough to make system calls cheap, small enough to stay in the second-level cache
// on its way to file and console.
constexpr std::size_t kRead = 128 << 10;
// Then others get their turn.
constexpr int kReadsPerTurn = 8;
// When the rest is given up: enough for a full pipe, and an end if somebody goes on writing.
constexpr int kLastReads = 64;
// Lines are collected up to this size before they are written.
constexpr std::size_t kSlice = 64 << 10;
// A progress bar without LF is shown this often.
constexpr Duration kProgressInterval = 1s;
// The end of a line follows its text at once, also from a worker that does not buffer (python -u
// writes them one by one): so long, text of others is kept out of the line. No person sees a delay.
constexpr Duration kLineInterval = 20ms;
constexpr std::size_t kLongestLine = 64 << 10;

}  // namespace

void LogFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      if (std::exchange(lost_, lost_ + bytes.size()) == 0) {
        log::warning("logs", "cannot write {}: {}; what does not fit is dropped, the job goes on",
                     path_, std::strerror(errno));
      }
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

Pump::Pump(boost::asio::any_io_executor executor, Clock& clock, Console& console,
           std::shared_ptr<PumpBuffers> buffers, UniqueFd source, PumpRoute route)
    : executor_(executor),
      clock_(clock),
      console_(console),
      buffers_(std::move(buffers)),
      route_(std::move(route)),
      source_(executor, source.release()),
      splitter_(route_.prefix) {}

void Pump::start() {
  await_bytes();
}

void Pump::await_bytes() {
  if (awaiting_ || paused_ || ended_) return;
  awaiting_ = true;
  source_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [self = shared_from_this()](const boost::system::error_code&) {
                       self->awaiting_ = false;
                       if (!self->ended_) self->on_readable();
                     });
}

void Pump::on_readable() {
  for (int i = 0; i < (giving_up_ ? kLastReads : kReadsPerTurn); ++i) {
    if (!giving_up_ && route_.show != PumpRoute::Show::Nothing &&
        console_.congested(route_.stream)) {
      return pause();
    }
    if (!read_once()) break;
  }
  watch_unfinished();
  if (giving_up_) end();
  await_bytes();
}

/// False: nothing more to read now.
bool Pump::read_once() {
  auto& input = buffers_->input;
  if (input.empty()) input.resize(kRead);
  const ssize_t size = ::read(source_.native_handle(), input.data(), input.size());
  if (size > 0) {
    pass_on({input.data(), static_cast<std::size_t>(size)});
    return static_cast<std::size_t>(size) == input.size() || giving_up_;
  }
  if (size < 0 && errno == EINTR) return true;
  if (size < 0 && errno == EAGAIN) return false;
  // The master of a pseudo-terminal says EIO, not end of file, when nobody has the other side.
  end();
  return false;
}

void Pump::pass_on(std::string_view bytes) {
  if (route_.keep_tail) tail_.add(bytes, clock_.now());
  if (route_.file) route_.file->write(bytes);
  switch (route_.show) {
    case PumpRoute::Show::Nothing:
      break;
    case PumpRoute::Show::Raw:
      pass_raw(bytes);
      break;
    case PumpRoute::Show::Lines:
      pass_lines(bytes);
      break;
  }
}

void Pump::pass_raw(std::string_view bytes) {
  const auto last = bytes.find_last_of("\n\r");
  if (last != std::string_view::npos) {
    flush_unfinished();
    console_.write(route_.stream, bytes.substr(0, last + 1));
    bytes.remove_prefix(last + 1);
  }
  if (bytes.empty()) return;
  if (unfinished_.empty()) unfinished_since_ = clock_.now();
  unfinished_.append(bytes);
  if (unfinished_.size() > kLongestLine) flush_unfinished();
}

void Pump::flush_unfinished() {
  if (!unfinished_.empty()) console_.write(route_.stream, std::exchange(unfinished_, {}));
}

void Pump::pass_lines(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto slice = bytes.substr(0, kSlice);
    splitter_.feed(slice, buffers_->lines, route_.filter.get(), &buffers_->matching);
    write_lines();
    bytes.remove_prefix(slice.size());
  }
}

void Pump::write_lines() {
  console_.write(route_.stream, buffers_->lines);
  buffers_->lines.clear();
  if (buffers_->matching.empty()) return;
  route_.matching->write(buffers_->matching);
  buffers_->matching.clear();
}

/// When what there is of a line is to be shown without its end; nothing if there is none.
std::optional<TimePoint> Pump::unfinished_until() const {
  if (!unfinished_.empty()) return unfinished_since_ + kLineInterval;
  if (splitter_.holds_progress()) return clock_.now() + kProgressInterval;
  return {};
}

void Pump::watch_unfinished() {
  if (ended_ || alarm_armed_) return;
  const auto until = unfinished_until();
  if (!until) return;
  if (!alarm_) alarm_ = clock_.make_alarm();
  alarm_armed_ = true;
  alarm_->arm(*until, [weak = weak_from_this()] {
    if (const auto self = weak.lock(); self && !self->ended_) self->show_unfinished();
  });
}

void Pump::show_unfinished() {
  alarm_armed_ = false;
  if (unfinished_since_ + kLineInterval <= clock_.now()) flush_unfinished();
  if (splitter_.holds_progress()) {
    splitter_.show_progress(buffers_->lines);
    write_lines();
  }
  if (!unfinished_.empty()) watch_unfinished();  // a younger one than the alarm was set for
}

void Pump::pause() {
  paused_ = true;
  console_.when_clear(route_.stream, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->paused_ = false;
    self->await_bytes();
  });
}

void Pump::drain(bool give_up_rest, std::function<void()> on_drained) {
  on_drained_.push_back(std::move(on_drained));
  if (ended_) return end();
  if (!give_up_rest) return;
  // What is in the pipe now is read at once, past a congested console, which drops what is too
  // much.
  giving_up_ = true;
  on_readable();
}

void Pump::end() {
  if (!std::exchange(ended_, true)) {
    boost::system::error_code ignored;
    source_.close(ignored);
    flush_unfinished();
    splitter_.finish(buffers_->lines, route_.filter.get(), &buffers_->matching);
    write_lines();
    alarm_.reset();
  }
  for (auto& told : std::exchange(on_drained_, {})) boost::asio::post(executor_, std::move(told));
}

void Pump::take_size_of(int fd) {
  winsize size{};
  if (ended_ || ::ioctl(fd, TIOCGWINSZ, &size) != 0) return;
  ::ioctl(source_.native_handle(), TIOCSWINSZ, &size);  // ENOTTY for a pipe
}

void Pump::stop() {
  on_drained_.clear();
  if (std::exchange(ended_, true)) return;
  boost::system::error_code ignored;
  source_.close(ignored);
  alarm_.reset();
}

}  // namespace elastrun::logs
