// SPDX-License-Identifier: Apache-2.0

#include "export/stream_sink.hpp"

#include "core/json.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "export/record_line.hpp"
#include "files/whole_file.hpp"
#include "telemetry/record.hpp"

#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace elastrun::exporter {

using telemetry::Record;

void ConsoleLines::consume(const Record& record) {
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

struct FileWriter::File {
  const std::string path;
  const Form form;
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
        torn = ends_torn();
        return true;
      }
    } else {
      errno = ENOENT;
    }
    // Renamed, it is still to be found.
    return mine.st_nlink > 0;
  }

  Written write(const std::vector<std::string>& batch) {
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
    Written written{0, std::strerror(error)};
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

  /// Whether an earlier writer has left half a line.
  bool ends_torn() const {
    struct stat info {};
    char last = '\n';
    // By descriptor, since the path may name another file by now; reopened, since this one only
    // writes.
    const auto open_one = fmt::format("/proc/self/fd/{}", fd.get());
    const UniqueFd reader(::open(open_one.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    return reader && ::fstat(reader.get(), &info) == 0 && S_ISREG(info.st_mode) &&
           info.st_size > 0 && ::pread(reader.get(), &last, 1, info.st_size - 1) == 1 &&
           last != '\n';
  }
};

Result<std::shared_ptr<FileWriter::File>> FileWriter::open(const std::string& path,
                                                           const Form& form) {
  auto file = std::make_shared<File>(path, form);
  auto opened = file->open();
  if (!opened) return std::unexpected(opened.error());
  file->fd = std::move(*opened);
  file->torn = form.lines && file->ends_torn();
  if (const auto [done, error] = file->put(form.head); error != 0) {
    return fail(Code::Io, fmt::format("cannot write {}: {}", path, std::strerror(error)));
  }
  return file;
}

FileWriter::FileWriter(files::BlockingCalls& calls, std::shared_ptr<File> file)
    : calls_(calls), file_(std::move(file)) {}

void FileWriter::write(std::vector<std::string> batch, Then then) {
  calls_.make(
      file_->path, [file = file_, batch = std::move(batch)] { return file->write(batch); },
      [then = std::move(then), alive = lifetime_.token()](Written written) {
        if (alive) then(std::move(written));
      });
}

void FileWriter::close(Done done) {
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

StreamSink::StreamSink(Clock& clock, std::string name, Format format,
                       std::unique_ptr<PieceWriter> writer)
    : MetricsSink(std::move(name)),
      format_(std::move(format)),
      clock_(clock),
      writer_(std::move(writer)) {}

void StreamSink::consume(const telemetry::Record& record) {
  auto text = format_(record);
  if (text.empty()) return;
  bytes_ += text.size();
  pieces_.push_back(std::move(text));
  for (; bytes_ > kMost; ++lost_) take_oldest();
  if (record.kind == Record::Kind::Event || bytes_ >= kBatch) return write_out();
  if (std::exchange(pausing_, true)) return;
  if (!pause_) pause_ = clock_.make_alarm();
  pause_->arm(clock_.now() + kPause, [this] {
    pausing_ = false;
    write_out();
  });
}

void StreamSink::flush(TimePoint) {
  write_out();
}

std::string StreamSink::take_oldest() {
  auto piece = std::move(pieces_.front());
  pieces_.pop_front();
  bytes_ -= piece.size();
  return piece;
}

void StreamSink::write_out() {
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
  writer_->write(std::move(batch), [this](PieceWriter::Written done) { written(std::move(done)); });
}

void StreamSink::written(PieceWriter::Written written) {
  delivered_ += written.pieces;
  lost_ += std::exchange(writing_, 0) - written.pieces;
  if (trouble_.empty()) trouble_ = std::move(written.trouble);
  // Not pausing: the pause has ended during the write, and has left its pieces to this place.
  if (finished_ || bytes_ >= kBatch || !pausing_) write_out();
}

void StreamSink::finish(Done done) {
  if (pause_) pause_->disarm();
  finished_ = std::move(done);
  write_out();
}

SinkAccount StreamSink::account() const {
  const auto undone = writer_->lost();
  // A program's pipe takes pieces that it may never read: these count as delivered first, and as
  // lost once that is known.
  return {name(), delivered_ - std::min(delivered_, undone), lost_ + undone + waiting(), trouble_,
          waiting()};
}

}  // namespace elastrun::exporter
