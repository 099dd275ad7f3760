// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "export/metrics_sink.hpp"
#include "files/blocking_calls.hpp"
#include "logs/console.hpp"

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
  using Then = std::function<void(Written)>;
  using Done = MetricsSink::Done;
  /// `then` runs once on the loop, maybe inside this call; not after this object has gone. Not
  /// called again before that.
  virtual void write(std::vector<std::string> batch, Then then) = 0;
  /// After the last write: all is out when `done` runs, which may be inside this call.
  virtual void close(Done done) = 0;
  /// Pieces that were written and then lost all the same, without their reader.
  virtual std::uint64_t lost() const { return 0; }
};

/// A sink that writes each record as a piece of text: events at once, others with the next event,
/// after kPause or when a batch is full. Of what waits for a slow writer, more than kMost, the
/// oldest pieces go.
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
  void finish(Done done) override;
  SinkAccount account() const override;

 private:
  void write_out();
  void written(PieceWriter::Written written);
  std::string take_oldest();
  std::uint64_t waiting() const override { return pieces_.size() + writing_; }

  const Format format_;
  std::deque<std::string> pieces_;
  std::size_t bytes_ = 0;  // of those
  std::unique_ptr<Alarm> pause_;
  Clock& clock_;
  bool pausing_ = false;
  std::size_t writing_ = 0;  // pieces
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
  void write(std::vector<std::string> batch, Then then) override;
  void close(Done done) override;

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
  /// Borrows the console, which counts itself what its reader does not take.
  ConsoleLines(std::string name, logs::Console& console)
      : MetricsSink(std::move(name)), console_(console) {}
  void consume(const telemetry::Record& record) override;
  void finish(Done done) override { done(); }

 private:
  logs::Console& console_;
};

/// Writes pieces to one of our own streams.
class ConsoleWriter final : public PieceWriter {
 public:
  /// Borrows the console. `form`: what comes before the first piece and after the last one.
  ConsoleWriter(logs::Console& console, logs::Console::Stream stream, const FileWriter::Form& form)
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

}  // namespace elastrun::exporter
