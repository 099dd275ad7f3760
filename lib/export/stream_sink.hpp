// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "export/metrics_sink.hpp"
#include "files/blocking_calls.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <deque>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace elastrun::exporter {

/// Who takes text piece by piece, one batch after the other: a file, a program. Pieces are whole
/// records; of one that could not be written whole nothing is left that a reader could stumble on.
class PieceWriter {
 public:
  struct Written {
    std::size_t pieces = 0;  // the first ones; the others are lost
    std::string trouble;     // why
  };
  virtual ~PieceWriter() = default;
  /// `then` runs once on the loop, never inside this call; not after this object has gone. Not
  /// called again before that.
  virtual void write(std::vector<std::string> batch, std::function<void(Written)> then) = 0;
  /// After the last write: all is out when `done` runs, which may be inside this call.
  virtual void close(std::function<void()> done) = 0;
  /// Pieces that were written and then lost all the same, without their reader.
  virtual std::uint64_t lost() const { return 0; }
};

/// Pieces that wait for a slow writer, bounded in bytes: drops the oldest first, and counts them.
/// Pure.
class PieceQueue {
 public:
  explicit PieceQueue(std::size_t most) : most_(most) {}

  void add(std::string piece);
  /// The oldest, together at most so many bytes, but at least one.
  std::vector<std::string> take(std::size_t bytes);
  bool empty() const { return pieces_.empty(); }
  std::size_t size() const { return pieces_.size(); }
  std::size_t bytes() const { return bytes_; }
  std::uint64_t dropped() const { return dropped_; }

 private:
  const std::size_t most_;
  std::deque<std::string> pieces_;
  std::size_t bytes_ = 0;
  std::uint64_t dropped_ = 0;
};

/// A sink that writes each record as a piece of text: events at once, others with the next event,
/// after kPause or when a batch is full.
class StreamSink final : public MetricsSink {
 public:
  static constexpr std::size_t kMost = 4 << 20;     // bytes that wait
  static constexpr std::size_t kBatch = 256 << 10;  // of one write
  static constexpr Duration kPause = std::chrono::milliseconds(500);
  /// The record as text; empty: it is not for this format.
  using Format = std::function<std::string(const telemetry::Record&)>;

  StreamSink(Clock& clock, std::string name, Format format, std::unique_ptr<PieceWriter> writer);
  void consume(const telemetry::Record& record) override;
  void flush(TimePoint deadline) override;
  void finish(std::function<void()> done) override;
  SinkAccount account() const override;

 private:
  void write_out();
  void written(PieceWriter::Written written);

  const Format format_;
  PieceQueue queue_{kMost};
  std::unique_ptr<Alarm> pause_;
  Clock& clock_;
  bool pausing_ = false;
  std::size_t writing_ = 0;  // pieces
  std::uint64_t delivered_ = 0, lost_ = 0;
  std::string trouble_;
  std::function<void()> finished_;
  std::unique_ptr<PieceWriter> writer_;
};

/// Appends pieces to a file, by the thread for files: a file system that does not answer holds up
/// this file only.
class FileWriter final : public PieceWriter {
 public:
  struct Form {
    int flags = 0;  // as those of open_by_name(), with O_WRONLY, O_CREAT and O_APPEND
    mode_t mode = 0644;
    std::string head{};  // what comes before the first piece
    std::string tail{};  // and after the last one
    /// Pieces are lines: a torn one, of ours or of an earlier writer, is closed off before the
    /// next. One that was removed or renamed is made again, as logrotate(8) expects. Else the file
    /// is ours alone: a torn piece is cut off, and what comes after its removal is lost.
    bool lines = true;
  };
  struct File;
  /// Makes the file and writes the head. May wait for the file system, so before there is a loop
  /// use it with files::result_within. Fails with Io.
  static Result<std::shared_ptr<File>> open(const std::string& path, const Form& form);

  /// Borrows `calls`.
  FileWriter(files::BlockingCalls& calls, std::shared_ptr<File> file);
  void write(std::vector<std::string> batch, std::function<void(Written)> then) override;
  void close(std::function<void()> done) override;

 private:
  files::BlockingCalls& calls_;
  const std::shared_ptr<File> file_;  // with the thread
  Lifetime lifetime_;
};

/// Samples and windows as torchelastic's console handler prints metrics, a line for each number:
/// "[SECONDS][GROUP]: NAME=VALUE"; of a window NAME.AGGREGATION. Names come from workers: what
/// would steer a terminal is shown as text.
class ConsoleLines final : public MetricsSink {
 public:
  /// `write` takes everything at once, or counts itself what it does not.
  ConsoleLines(std::string name, std::function<void(std::string_view)> write)
      : MetricsSink(std::move(name)), write_(std::move(write)) {}
  void consume(const telemetry::Record& record) override;
  void finish(std::function<void()> done) override { done(); }
  SinkAccount account() const override { return {name(), delivered_, 0, {}}; }

 private:
  const std::function<void(std::string_view)> write_;
  std::uint64_t delivered_ = 0;
};

/// Writes pieces to one of our own streams, and counts what the stream does not take.
class ConsoleWriter final : public PieceWriter {
 public:
  /// Borrows the loop. `write` takes everything at once. `tail` comes after the last piece.
  ConsoleWriter(boost::asio::io_context& loop, std::function<void(std::string_view)> write,
                std::string tail)
      : loop_(loop), write_(std::move(write)), tail_(std::move(tail)) {}

  void write(std::vector<std::string> batch, std::function<void(Written)> then) override {
    std::string text;
    for (const auto& piece : batch) text += piece;
    write_(text);
    boost::asio::post(loop_,
                      [then = std::move(then), pieces = batch.size(), alive = lifetime_.token()] {
                        if (alive) then({pieces, {}});
                      });
  }
  void close(std::function<void()> done) override {
    write_(tail_);
    done();
  }

 private:
  boost::asio::io_context& loop_;
  const std::function<void(std::string_view)> write_;
  const std::string tail_;
  Lifetime lifetime_;
};

}  // namespace elastrun::exporter
