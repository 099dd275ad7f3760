// SPDX-License-Identifier: Apache-2.0

#include "export/stream_sink.hpp"

#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "export/record_line.hpp"
#include "files/whole_file.hpp"
#include "process/spawn.hpp"
#include "telemetry/record.hpp"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace elastrun::exporter {

using telemetry::Record;

namespace {

class ConsoleLines final : public MetricsSink {
 public:
  ConsoleLines(std::string name, logs::Console& console)
      : MetricsSink(std::move(name)), console_(console) {}
  void consume(const Record& record) override {
    std::string lines;
    const auto name = printable(series_name(record));
    const auto add = [&](std::string_view aggregation, const telemetry::Value& value) {
      lines += fmt::format("[{}][{}]: {}{}={}\n", python_float(to_seconds(record.stamp.wall)),
                           printable(record.scope), name, aggregation,
                           printable(telemetry::to_text(value)));
    };
    if (record.kind == Record::Kind::Sample) {
      add("", record.value);
    } else if (record.kind == Record::Kind::Window && record.window && !record.window->no_data) {
      for (const auto& [aggregation, value] : record.window->aggregates)
        add("." + aggregation, value);
    }
    if (lines.empty()) return;
    delivered_ += 1;
    console_.write(logs::Console::Stream::Out, lines);
  }
  void finish(Done done) override { done(); }

 private:
  logs::Console& console_;
};

class StreamSink final : public MetricsSink {
 public:
  StreamSink(Clock& clock, std::string name, RecordFormat format,
             std::unique_ptr<PieceWriter> writer)
      : MetricsSink(std::move(name)),
        format_(std::move(format)),
        clock_(clock),
        writer_(std::move(writer)) {}
  void consume(const telemetry::Record& record) override {
    auto text = format_(record);
    if (text.empty()) return;
    bytes_ += text.size();
    pieces_.push_back(std::move(text));
    for (; bytes_ > kMostPieces; ++lost_) take_oldest();
    if (record.kind == Record::Kind::Event || bytes_ >= kBatch) return write_out();
    if (std::exchange(pausing_, true)) return;
    if (!pause_) pause_ = clock_.make_alarm();
    pause_->arm(clock_.now() + kPiecePause, [this] {
      pausing_ = false;
      write_out();
    });
  }
  void flush(TimePoint) override { write_out(); }
  void finish(Done done) override {
    if (pause_) pause_->disarm();
    finished_ = std::move(done);
    write_out();
  }
  SinkAccount account() const override {
    const auto undone = writer_->lost();
    // A program's pipe takes pieces that it may never read: these count as delivered first, and as
    // lost once that is known.
    return {name(), delivered_ - std::min(delivered_, undone), lost_ + undone + waiting(), trouble_,
            waiting()};
  }

 private:
  static constexpr std::size_t kBatch = 256 << 10;  // bytes of one write

  std::string take_oldest() {
    auto piece = std::move(pieces_.front());
    pieces_.pop_front();
    bytes_ -= piece.size();
    return piece;
  }
  void write_out() {
    if (writing_ > 0) return;  // the rest when that is done
    std::vector<std::string> batch;
    std::size_t size = 0;
    while (!pieces_.empty() && (batch.empty() || size + pieces_.front().size() <= kBatch)) {
      batch.push_back(take_oldest());
      size += batch.back().size();
    }
    if (batch.empty()) {
      const auto finished = std::exchange(finished_, {});
      if (finished) writer_->close(finished);
      return;
    }
    writing_ = batch.size();
    writer_->write(std::move(batch),
                   [this](PieceWriter::Written done) { written(std::move(done)); });
  }
  void written(PieceWriter::Written written) {
    delivered_ += written.pieces;
    lost_ += std::exchange(writing_, 0) - written.pieces;
    if (trouble_.empty()) trouble_ = std::move(written.trouble);
    // Not pausing: the pause has ended during the write, and has left its pieces to this place.
    if (finished_ || bytes_ >= kBatch || !pausing_) write_out();
  }
  std::uint64_t waiting() const override { return pieces_.size() + writing_; }

  const RecordFormat format_;
  std::deque<std::string> pieces_;
  std::size_t bytes_ = 0;  // of those
  std::unique_ptr<Alarm> pause_;
  Clock& clock_;
  bool pausing_ = false;
  std::size_t writing_ = 0;  // pieces
  std::unique_ptr<PieceWriter> writer_;
};

struct File {
  const std::string path;
  const FileForm form;
  UniqueFd fd{};
  bool torn = false;

  Result<UniqueFd> open() const {
    // O_APPEND: several writers of one file then write behind each other, and not over each other
    // (open(2)).
    return files::open_by_name(path, O_WRONLY | O_CREAT | O_APPEND | form.flags, form.mode);
  }

  /// Bytes written, and the errno of what stopped it.
  std::pair<std::size_t, int> put(std::string_view text) const {
    std::size_t done = 0;
    while (done < text.size()) {
      const ssize_t wrote = ::write(fd.get(), text.data() + done, text.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      // After 0 errno says nothing, and to try again could take for ever.
      if (wrote <= 0) return {done, wrote < 0 ? errno : ENOSPC};
      done += static_cast<std::size_t>(wrote);
    }
    return {done, 0};
  }

  /// Goes on under its name where that was removed or given to another file. False: all that is
  /// written would be lost, errno says why.
  bool is_in_place() {
    struct stat mine {};
    struct stat named {};
    if (::fstat(fd.get(), &mine) != 0 || !S_ISREG(mine.st_mode)) return true;
    const bool there = ::stat(path.c_str(), &named) == 0;
    if (there && mine.st_dev == named.st_dev && mine.st_ino == named.st_ino) return true;
    if (!there && errno != ENOENT) return true;
    // To open a FIFO could wait without end for its reader.
    if (form.lines && (!there || S_ISREG(named.st_mode))) {
      if (auto again = open()) {
        fd = std::move(*again);
        torn = files::ends_torn(fd.get());
        return true;
      }
    } else {
      errno = ENOENT;
    }
    // Renamed, it is still to be found.
    return mine.st_nlink > 0;
  }

  PieceWriter::Written write(const std::vector<std::string>& batch) {
    if (!is_in_place()) {
      return {0, fmt::format("{} was removed: {}", path, std::strerror(errno))};
    }
    // One write(2) for the batch: with O_APPEND it lands in one piece, also where several agents
    // write one file (write(2)).
    std::string text = torn ? "\n" : "";
    for (const auto& piece : batch) text += piece;
    const std::size_t before = torn ? 1 : 0;
    auto [done, error] = put(text);
    // The LF is the first byte, so half a line has its end as soon as anything was written.
    if (done > 0) torn = false;
    if (error == 0) return {batch.size(), {}};
    PieceWriter::Written written{0, std::strerror(error)};
    std::size_t left = done > before ? done - before : 0;
    // Whole pieces count as written; the one that was cut is lost.
    // It ends before the last one: with all pieces written there was no error.
    while (left >= batch[written.pieces].size()) left -= batch[written.pieces++].size();
    if (left > 0) tear(static_cast<off_t>(left));
    return written;
  }

  void tear(off_t bytes) {
    struct stat info {};
    // A reader of binary records cannot skip half of one, so that is cut off; half a line gets its
    // end before the next one.
    const bool cut = !form.lines && ::fstat(fd.get(), &info) == 0 && S_ISREG(info.st_mode) &&
                     ::ftruncate(fd.get(), info.st_size - bytes) == 0;
    torn = form.lines && !cut;
  }
};

class FileWriter final : public PieceWriter {
 public:
  FileWriter(files::BlockingCalls& calls, std::shared_ptr<File> file)
      : calls_(calls), file_(std::move(file)) {}
  void write(std::vector<std::string> batch, Then then) override {
    calls_.make(
        file_->path, [file = file_, batch = std::move(batch)] { return file->write(batch); },
        [then = std::move(then), alive = lifetime_.token()](Written written) {
          if (alive) then(std::move(written));
        });
  }
  void close(Done done) override {
    if (file_->form.tail.empty()) return done();
    calls_.make(
        file_->path,
        [file = file_] {
          const auto [put, error] = file->put(file->form.tail);
          // A trace can be read without its end, and not with half of it.
          if (error != 0 && put > 0) file->tear(static_cast<off_t>(put));
          return error;
        },
        [done = std::move(done), alive = lifetime_.token()](int) {
          if (alive) done();
        });
  }

 private:
  files::BlockingCalls& calls_;
  const std::shared_ptr<File> file_;  // with the thread
  Lifetime lifetime_;
};

class ConsoleWriter final : public PieceWriter {
 public:
  ConsoleWriter(logs::Console& console, logs::Console::Stream stream, const FileForm& form)
      : console_(console), stream_(stream), tail_(form.tail) {
    console_.write(stream_, form.head);
  }
  void write(std::vector<std::string> batch, Then then) override {
    std::string text;
    for (const auto& piece : batch) text += piece;
    console_.write(stream_, text);
    then({batch.size(), {}});
  }
  void close(Done done) override {
    console_.write(stream_, tail_);
    done();
  }

 private:
  logs::Console& console_;
  const logs::Console::Stream stream_;
  const std::string tail_;
};

class ProgramWriter final : public PieceWriter {
 public:
  ProgramWriter(boost::asio::io_context& loop, Clock& clock, process::Launcher& launcher,
                std::string command, std::vector<std::string> environment)
      : loop_(loop),
        clock_(clock),
        launcher_(launcher),
        command_(std::move(command)),
        environment_(std::move(environment)),
        input_(loop) {
    start();
  }
  ~ProgramWriter() override { lifetime_.end(); }
  void write(std::vector<std::string> batch, Then then) override {
    batch_ = std::move(batch);
    piece_ = offset_ = 0;
    then_ = std::move(then);
    forget_read();
    // It may have closed its input and live on: then its end is awaited, not a second one started
    // beside it.
    if (!input_.is_open() && !pausing_ && (!child_ || child_->ended())) start();
    if (input_.is_open()) send();
  }
  void close(Done done) override {
    if (!input_.is_open() || child_->ended()) return done();
    closed_ = std::move(done);
    const auto path = fmt::format("/proc/self/fd/{}", input_.native_handle());
    // A reading end for ourselves, by which unread_in() can look when our writing end is closed. It
    // is never read from. The program still gets its end of file: that comes when no writer is
    // left.
    reader_.reset(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    boost::system::error_code ignored;
    input_.close(ignored);
  }
  std::uint64_t lost() const override { return unread_ + (closed_ ? unread_in(reader_.get()) : 0); }

 private:
  static constexpr Duration kFirstPause = std::chrono::seconds(1);
  static constexpr Duration kLongestPause = std::chrono::minutes(1);
  static constexpr Duration kGoodRun = kLongestPause;  // after it the next pause is short again

  /// At once: what cannot be started now is tried again after the pause.
  void start() {
    child_.reset();
    started_ = clock_.now();
    if (const auto launched = launch(); !launched) {
      log::warning("metrics", "exec: cannot start {}: {}", command_, launched.error().text);
      pause_then_start();
    }
  }
  Status launch() {
    int ends[2];
    // Close-on-exec, or workers that start later would hold the writing end, and the program would
    // never see the end of its input.
    if (::pipe2(ends, O_CLOEXEC) != 0) return fail(Code::Io, std::strerror(errno));
    const UniqueFd theirs(ends[0]);
    UniqueFd ours(ends[1]);
    // What it prints must not come among the workers' output, which others read from our stdout.
    auto child = launcher_.start({.argv = process::shell_line(command_),
                                  .environment = environment_,
                                  .stdin_fd = theirs.get(),
                                  .stdout_fd = STDERR_FILENO,
                                  .stderr_fd = STDERR_FILENO},
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
  void pause_then_start() {
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
  void ended(const process::Exit& exit) {
    // What is in the pipe when the program ends will not be read by another one: none is started
    // any more.
    if (closed_) {
      unread_ += unread_in(reader_.get());
      in_pipe_.clear();
      return std::exchange(closed_, {})();
    }
    // One that runs for a while before it fails is not the one that fails at its start.
    if (clock_.now() - started_ >= kGoodRun) next_pause_ = kFirstPause;
    log::warning("metrics", "exec: {} has ended ({}); it is started again after {}", command_,
                 exit.status.text(), format_duration(next_pause_));
    broke_off();
    pause_then_start();
  }
  void send() {
    const auto& piece = batch_[piece_];
    input_.async_write_some(boost::asio::buffer(piece.data() + offset_, piece.size() - offset_),
                            [this, alive = lifetime_.token()](auto error, std::size_t bytes) {
                              if (!alive || error == boost::asio::error::operation_aborted) return;
                              error ? broke_off() : sent(bytes);
                            });
  }
  void sent(std::size_t bytes) {
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
  void broke_off() {
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
  std::uint64_t unread_in(int pipe) const {
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
  void forget_read() {
    int left = 0;
    if (!input_.is_open() || ::ioctl(input_.native_handle(), FIONREAD, &left) != 0) return;
    // Else the list would grow by each piece for the whole job.
    while (!in_pipe_.empty() &&
           in_pipe_bytes_ - in_pipe_.front() >= static_cast<std::size_t>(std::max(left, 0))) {
      in_pipe_bytes_ -= in_pipe_.front();
      in_pipe_.pop_front();
    }
  }

  // Set at construction.
  boost::asio::io_context& loop_;
  Clock& clock_;
  process::Launcher& launcher_;
  const std::string command_;
  const std::vector<std::string> environment_;
  // Changes while running.
  boost::asio::posix::stream_descriptor input_;  // our end; closed: no reader
  std::unique_ptr<process::Child> child_;
  std::unique_ptr<Alarm> pause_;
  bool pausing_ = false;
  Duration next_pause_ = kFirstPause;
  TimePoint started_{};
  std::vector<std::string> batch_;
  std::size_t piece_ = 0, offset_ = 0;  // what comes next of it
  std::deque<std::size_t> in_pipe_;     // sizes of pieces that may not have been read yet
  std::size_t in_pipe_bytes_ = 0;
  std::uint64_t unread_ = 0;  // by programs that have ended
  Then then_;
  UniqueFd reader_;  // of the pipe once our end is closed: tells what is left in it
  Done closed_;
  Lifetime lifetime_;
};

}  // namespace

Result<std::unique_ptr<PieceWriter>> write_file(files::BlockingCalls& calls,
                                                const std::string& path, const FileForm& form) {
  auto file = std::make_shared<File>(path, form);
  auto opened = file->open();
  if (!opened) return std::unexpected(opened.error());
  file->fd = std::move(*opened);
  file->torn = form.lines && files::ends_torn(file->fd.get());
  if (const auto [done, error] = file->put(form.head); error != 0) {
    return fail(Code::Io, fmt::format("cannot write {}: {}", path, std::strerror(error)));
  }
  return std::make_unique<FileWriter>(calls, std::move(file));
}

std::unique_ptr<PieceWriter> write_console(logs::Console& console, logs::Console::Stream stream,
                                           const FileForm& form) {
  return std::make_unique<ConsoleWriter>(console, stream, form);
}

std::unique_ptr<PieceWriter> write_program(boost::asio::io_context& loop, Clock& clock,
                                           process::Launcher& launcher, std::string command,
                                           std::vector<std::string> environment) {
  return std::make_unique<ProgramWriter>(loop, clock, launcher, std::move(command),
                                         std::move(environment));
}

std::shared_ptr<MetricsSink> make_stream_sink(Clock& clock, std::string name, RecordFormat format,
                                              std::unique_ptr<PieceWriter> writer) {
  return std::make_shared<StreamSink>(clock, std::move(name), std::move(format), std::move(writer));
}

std::shared_ptr<MetricsSink> make_console_lines(std::string name, logs::Console& console) {
  return std::make_shared<ConsoleLines>(std::move(name), console);
}

}  // namespace elastrun::exporter
