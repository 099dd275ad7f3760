// SPDX-License-Identifier: Apache-2.0
#include "export/program_writer.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "process/spawn.hpp"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>

namespace elastrun::exporter {
namespace {

constexpr std::string_view kProgramArea = "metrics";
constexpr Duration kGoodRun = std::chrono::minutes(1);  // after it, the next pause is short again

}  // namespace

ProgramWriter::ProgramWriter(boost::asio::io_context& loop, Clock& clock,
                             process::Launcher& launcher, std::string command,
                             std::vector<std::string> environment)
    : loop_(loop),
      clock_(clock),
      launcher_(launcher),
      command_(std::move(command)),
      environment_(std::move(environment)),
      input_(loop) {
  start();
}

ProgramWriter::~ProgramWriter() {
  lifetime_.end();
}

/// At once: what cannot be started now is tried again after the pause.
void ProgramWriter::start() {
  child_.reset();
  started_ = clock_.now();
  if (const auto launched = launch(); !launched) {
    log::warning(kProgramArea, "exec: cannot start {}: {}", command_, launched.error().text);
    pause_then_start();
  }
}

Status ProgramWriter::launch() {
  int ends[2];
  // Close-on-exec, or workers that start later would hold the writing end, and the program would
  // never see the end of its input.
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(Code::Io, std::strerror(errno));
  const UniqueFd theirs(ends[0]);
  UniqueFd ours(ends[1]);
  auto child = launcher_.start(
      process::fed_program(process::shell_line(command_), environment_, theirs.get()),
      [this](const process::Exit& exit) { ended(exit); });
  if (!child) return std::unexpected(child.error());
  boost::system::error_code error;
  input_.assign(ours.get(), error);
  if (error) return fail(Code::Io, error.message());
  // Only now: until assign() has succeeded the descriptor is ours to close.
  ours.release();
  // Our end alone: it is another open file than the program's (pipe(7)).
  input_.non_blocking(true, error);
  child_ = std::move(*child);
  return {};
}

/// Not inside the child's own call, and only if pieces wait by then.
void ProgramWriter::pause_then_start() {
  if (!pause_) pause_ = clock_.make_alarm();
  pausing_ = true;
  pause_->arm(clock_.now() + next_pause_, [this] {
    pausing_ = false;
    if (!then_) return;
    start();
    if (input_.is_open()) send();
  });
  next_pause_ = std::min(next_pause_ * 2, kLongestPause);
}

void ProgramWriter::ended(const process::Exit& exit) {
  // What is in the pipe when the program ends will not be read by another one: none is started any
  // more.
  if (closed_) {
    unread_ += unread_in(reader_.get());
    in_pipe_.clear();
    return std::exchange(closed_, {})();
  }
  // One that runs for a while before it fails is not the one that fails at its start.
  if (clock_.now() - started_ >= kGoodRun) next_pause_ = kFirstPause;
  log::warning(kProgramArea, "exec: {} has ended ({}); it is started again after {}", command_,
               exit.status.text(), format_duration(next_pause_));
  broke_off();
  pause_then_start();
}

void ProgramWriter::write(std::vector<std::string> batch, Then then) {
  batch_ = std::move(batch);
  piece_ = offset_ = 0;
  then_ = std::move(then);
  forget_read();
  // It may have closed its input and live on: then its end is awaited, not a second one started
  // beside it.
  if (!input_.is_open() && !pausing_ && (!child_ || child_->ended())) start();
  if (input_.is_open()) send();
}

void ProgramWriter::send() {
  const auto& piece = batch_[piece_];
  input_.async_write_some(boost::asio::buffer(piece.data() + offset_, piece.size() - offset_),
                          [this, alive = lifetime_.token()](auto error, std::size_t bytes) {
                            if (!alive || error == boost::asio::error::operation_aborted) return;
                            error ? broke_off() : sent(bytes);
                          });
}

void ProgramWriter::sent(std::size_t bytes) {
  offset_ += bytes;
  if (offset_ == batch_[piece_].size()) {
    // In the pipe is not read: a program that ends leaves these, and they count as lost.
    in_pipe_.push_back(offset_);
    in_pipe_bytes_ += offset_;
    offset_ = 0;
    ++piece_;
  }
  if (piece_ < batch_.size()) return send();
  const auto then = std::exchange(then_, {});
  then({std::exchange(batch_, {}).size(), {}});
}

/// The program has ended, or has closed its input and is awaited. The next one gets what is left,
/// but for what was under way.
void ProgramWriter::broke_off() {
  if (!input_.is_open()) return;
  unread_ += unread_in(input_.native_handle());
  in_pipe_.clear();
  in_pipe_bytes_ = 0;
  boost::system::error_code ignored;
  input_.close(ignored);
  if (offset_ == 0) return;
  unread_ += 1;
  offset_ = 0;
  // The cut piece is not sent again: the next program would get its second half, or the first one
  // twice.
  if (++piece_ < batch_.size()) return;
  // Posted, since this may run inside write() of the one who is told.
  boost::asio::post(loop_, [this, alive = lifetime_.token()] {
    if (alive && then_) std::exchange(then_, {})({std::exchange(batch_, {}).size(), {}});
  });
}

/// A piece that the program has read in part may have been of use or not: it counts as lost.
std::uint64_t ProgramWriter::unread_in(int pipe) const {
  int left = 0;
  // FIONREAD on the writing end tells what is in the pipe, too: both ends have one buffer
  // (pipe_ioctl in Linux's fs/pipe.c).
  if (::ioctl(pipe, FIONREAD, &left) != 0) return 0;
  std::uint64_t pieces = 0;
  auto bytes = static_cast<std::ptrdiff_t>(left) - static_cast<std::ptrdiff_t>(offset_);
  for (auto one = in_pipe_.rbegin(); bytes > 0 && one != in_pipe_.rend(); ++one) {
    bytes -= static_cast<std::ptrdiff_t>(*one);
    ++pieces;
  }
  return pieces;
}

void ProgramWriter::forget_read() {
  int left = 0;
  if (!input_.is_open() || ::ioctl(input_.native_handle(), FIONREAD, &left) != 0) return;
  // Else the list would grow by each piece for the whole job.
  while (!in_pipe_.empty() &&
         in_pipe_bytes_ - in_pipe_.front() >= static_cast<std::size_t>(std::max(left, 0))) {
    in_pipe_bytes_ -= in_pipe_.front();
    in_pipe_.pop_front();
  }
}

void ProgramWriter::close(Done done) {
  if (!input_.is_open() || child_->ended()) return done();
  closed_ = std::move(done);
  const auto path = fmt::format("/proc/self/fd/{}", input_.native_handle());
  // A reading end for ourselves, by which unread_in() can look when our writing end is closed. It
  // is never read from. The program still gets its end of file: that comes when no writer is left.
  reader_.reset(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  boost::system::error_code ignored;
  input_.close(ignored);
}

std::uint64_t ProgramWriter::lost() const {
  return unread_ + (closed_ ? unread_in(reader_.get()) : 0);
}

}  // namespace elastrun::exporter
