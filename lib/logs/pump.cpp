// SPDX-License-Identifier: Apache-2.0

#include "logs/pump.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <sys/ioctl.h>
#include <unistd.h>

namespace elastrun::logs {
namespace {

constexpr std::size_t kMostPieces = 256;  // a traceback comes line by line, each a separate write

}  // namespace

void Tail::add(std::string_view bytes, TimePoint now) {
  pieces_.push_back({total_, now});
  if (pieces_.size() > kMostPieces) pieces_.pop_front();
  total_ += bytes.size();
  // After the total, which counts what is dropped here as well: seen_at() computes offsets in the
  // stream by it.
  if (bytes.size() > bytes_) bytes.remove_prefix(bytes.size() - bytes_);
  // Cut only when twice as long: each byte is then moved once on average.
  if (text_.size() + bytes.size() > 2 * bytes_) {
    text_.erase(0, text_.size() + bytes.size() - bytes_);
  }
  text_.append(bytes);
}

std::optional<TimePoint> Tail::seen_at(std::string_view text) const {
  // The last one: a message may have been logged before it became the error that ended the worker.
  const auto found = text_.rfind(text);
  if (found == std::string::npos) return std::nullopt;
  const auto offset = total_ - text_.size() + found;
  const auto next = std::ranges::upper_bound(pieces_, offset, {}, &Piece::start);
  if (next == pieces_.begin()) return std::nullopt;
  return std::prev(next)->at;
}

namespace {

using namespace std::chrono_literals;

// One read: large enough to make system calls cheap, small enough to stay in the second-level cache
// on its way to file and console.
constexpr std::size_t kRead = files::BufferPool::kBytes;
// Then others get their turn.
constexpr int kReadsPerTurn = 8;
// Reads at most that are handed over together: each time may wake the thread, which is idle.
constexpr std::size_t kHandedOver = 4;
// What is there now is wanted: enough for a full pipe, and an end if the writer goes on.
constexpr int kReadsInHurry = 64;
// Lines are collected up to this size before they are written.
constexpr std::size_t kSlice = 64 << 10;
// A progress bar without LF is shown this often.
constexpr Duration kProgressInterval = 1s;
// The end of a line follows its text at once, also from a worker that does not buffer (python -u
// writes them one by one): so long, text of others is kept out of the line. No person sees a delay.
constexpr Duration kLineInterval = 20ms;
constexpr std::size_t kLongestPiece = 64 << 10;
// A tee'd line without its end ("Loading... ", a prompt) is shown after so long a silence.
constexpr Duration kSilence = 100ms;

/// True if a line is shown before its end has come. The states of a progress bar are not: they are
/// lines of their own, once a second.
bool is_part(std::string_view held) {
  return !held.empty() && held.size() <= kLongestPiece && !held.contains('\r');
}

}  // namespace

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
  for (int i = 0; i < (hurried_ ? kReadsInHurry : kReadsPerTurn); ++i) {
    if (hurried_) {
      if (has_file() && outlet().congested()) {
        outlet().skip_rest();
      }
    } else if (must_wait()) {
      break;
    }
    if (!read_once()) break;
  }
  hand_over();
  watch_unfinished();
  // After what is there has been read: a process that outlives its worker may hold the pipe open,
  // and its end would never come.
  if (giving_up_) end();
  await_bytes();
}

/// True if nothing may be read now; resume() will come.
bool Pump::must_wait() {
  const auto go = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->resume();
  };
  // Not reading is how a worker is slowed down: its pipe fills, and its write(2) waits. Nothing is
  // lost that way.
  for (const auto& file : {route_.file, route_.matching}) {
    if (!file || !file->full()) continue;
    paused_ = true;
    file->when_room(go);
    return true;
  }
  if (route_.show == PumpRoute::Show::Nothing || !outlet().congested()) return false;
  if (has_file()) {
    if (outlet().skipping()) return false;
    if (!deadline_) deadline_ = clock_.make_alarm();
    deadline_->arm(clock_.now() + outlet().time_limit(), [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->stop_waiting();
    });
  }
  paused_ = true;
  outlet().when_clear(go);
  return true;
}

void Pump::resume() {
  if (deadline_) deadline_->disarm();
  // Two may call: the one with room, and the deadline.
  if (!std::exchange(paused_, false)) return;
  await_bytes();
}

void Pump::stop_waiting() {
  if (paused_ && outlet().congested()) outlet().skip();
  resume();
}

/// False: nothing more to read now.
bool Pump::read_once() {
  auto& input = buffers_->input;
  if (!input) input = buffers_->pool->take();
  ssize_t size = 0;
  input->resize_and_overwrite(kRead, [&](char* to, std::size_t room) {
    size = ::read(source_.native_handle(), to, room);
    return static_cast<std::size_t>(std::max<ssize_t>(size, 0));
  });
  if (size > 0) {
    pass_on(input);
    // A read that is not full has emptied the pipe: to look again would cost a system call for
    // EAGAIN each time.
    return static_cast<std::size_t>(size) == kRead || hurried_;
  }
  if (size < 0 && errno == EINTR) return true;
  if (size < 0 && errno == EAGAIN) return false;
  // The master of a pseudo-terminal says EIO, not end of file, when the other side is closed.
  end();
  return false;
}

void Pump::pass_on(files::BufferPool::Buffer input) {
  const std::string_view bytes = *input;
  const bool out = route_.stream == Console::Stream::Out;
  (out ? buffers_->out_bytes : buffers_->err_bytes) += bytes.size();
  buffers_->last_read = clock_.now();
  // Before anything is shown or filtered: the report quotes what was said, shown or not.
  if (route_.keep_tail) tail_.add(bytes, buffers_->last_read);
  if (route_.file) {
    const bool shared = bytes.size() >= files::Backlog::kWorthSharing;
    if (shared) buffers_->input.reset();  // not read into again while the thread may have it
    buffers_->filled.push_back(input);
    if (!shared || buffers_->filled.size() >= kHandedOver) hand_over();
  }
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

void Pump::hand_over() {
  if (!buffers_->filled.empty()) route_.file->write(buffers_->filled);
  buffers_->filled.clear();
}

void Pump::pass_raw(std::string_view bytes) {
  // Whole lines at once; those of a progress bar end by CR.
  const auto last = bytes.find_last_of("\n\r");
  if (last != std::string_view::npos) {
    flush_unfinished();
    console_.write(route_.stream, bytes.substr(0, last + 1), Console::Weight::Output);
    bytes.remove_prefix(last + 1);
  }
  if (bytes.empty()) return;
  if (unfinished_.empty()) unfinished_since_ = clock_.now();
  unfinished_.append(bytes);
  if (unfinished_.size() > kLongestPiece) flush_unfinished();
}

void Pump::flush_unfinished() {
  if (unfinished_.empty()) return;
  console_.write(route_.stream, std::exchange(unfinished_, {}), Console::Weight::Output);
}

void Pump::pass_lines(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto slice = bytes.substr(0, kSlice);
    splitter_.feed(slice, buffers_->lines, route_.filter.get(), &buffers_->matching);
    write_lines();
    bytes.remove_prefix(slice.size());
  }
  if (splitter_.held().empty()) return;
  part_shown_ = false;
  last_bytes_ = clock_.now();
}

void Pump::write_lines() {
  if (!buffers_->lines.empty()) {
    console_.write_lines(route_.stream, this, buffers_->lines, has_file());
    part_shown_ = false;
  }
  buffers_->lines.clear();
  if (buffers_->matching.empty()) return;
  route_.matching->write(buffers_->matching);
  buffers_->matching.clear();
}

/// When what there is of a line is to be shown without its end; nothing if there is none.
std::optional<TimePoint> Pump::unfinished_until() const {
  if (!unfinished_.empty()) return unfinished_since_ + kLineInterval;
  if (progress_due_) return progress_due_;
  if (!part_shown_ && is_part(splitter_.held())) return last_bytes_ + kSilence;
  return {};
}

void Pump::watch_unfinished() {
  if (ended_) return;
  if (!splitter_.holds_progress()) {
    progress_due_.reset();
  } else if (!progress_due_) {
    progress_due_ = clock_.now() + kProgressInterval;
  }
  const auto until = unfinished_until();
  // An alarm that comes too early finds nothing due, and is set again: cheaper than to set it for
  // each read.
  if (!until || (armed_for_ && *armed_for_ <= *until)) return;
  if (!alarm_) alarm_ = clock_.make_alarm();
  armed_for_ = until;
  alarm_->arm(*until, [weak = weak_from_this()] {
    if (const auto self = weak.lock(); self && !self->ended_) self->show_unfinished();
  });
}

void Pump::show_unfinished() {
  armed_for_.reset();
  const auto now = clock_.now();
  if (unfinished_since_ + kLineInterval <= now) flush_unfinished();
  if (progress_due_ && *progress_due_ <= now) {
    progress_due_.reset();
    splitter_.show_progress(buffers_->lines);
    write_lines();
  } else if (!progress_due_ && last_bytes_ + kSilence <= now) {
    show_part();
  }
  if (unfinished_until()) watch_unfinished();  // a younger one than the alarm was set for
}

void Pump::show_part() {
  const auto held = splitter_.held();
  part_shown_ =
      !is_part(held) || console_.show_part(route_.stream, this, route_.prefix + std::string(held));
  // Where the console lags: a worker that waits for an answer says nothing more.
  if (!part_shown_) last_bytes_ = clock_.now();
}

void Pump::drain(bool give_up_rest, std::function<void()> on_drained) {
  on_drained_.push_back(std::move(on_drained));
  if (ended_) return end();
  if (!give_up_rest) return;
  giving_up_ = true;
  catch_up();
}

/// Past a file that takes nothing, which has room for it beyond its limit, and past a congested
/// console, which misses lines.
void Pump::catch_up() {
  if (ended_) return;
  hurried_ = true;
  on_readable();
  hurried_ = false;
}

void Pump::end() {
  if (!std::exchange(ended_, true)) {
    hand_over();
    boost::system::error_code ignored;
    source_.close(ignored);
    flush_unfinished();
    splitter_.finish(buffers_->lines, route_.filter.get(), &buffers_->matching);
    write_lines();
    alarm_.reset();
    deadline_.reset();
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
  deadline_.reset();
}

}  // namespace elastrun::logs
