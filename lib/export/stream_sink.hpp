// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "export/metrics_sink.hpp"
#include "files/blocking_calls.hpp"
#include "logs/console.hpp"
#include "process/launcher.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <sys/types.h>
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

/// The record as text; empty: it is not for this format.
using RecordFormat = std::function<std::string(const telemetry::Record&)>;

constexpr std::size_t kMostPieces = 4 << 20;  // bytes that wait for a writer
constexpr Duration kPiecePause = std::chrono::milliseconds(500);
/// A sink that writes each record as a piece of text: events at once, others with the next event,
/// after kPiecePause or when a batch is full. Of what waits for a slow writer, more than
/// kMostPieces, the oldest pieces go. Borrows the clock.
std::shared_ptr<MetricsSink> make_stream_sink(Clock& clock, std::string name, RecordFormat format,
                                              std::unique_ptr<PieceWriter> writer);

/// How a file of pieces is made.
struct FileForm {
  int flags = 0;  // as those of open_by_name(), with O_WRONLY, O_CREAT and O_APPEND
  mode_t mode = 0644;
  std::string head{};  // what comes before the first piece
  std::string tail{};  // and after the last one
  /// Pieces are lines: a torn one, of ours or of an earlier writer, is closed off before the
  /// next. One that was removed or renamed is made again, as logrotate(8) expects. Else the file
  /// is ours alone: a torn piece is cut off, and what comes after its removal is lost.
  bool lines = true;
};
/// Makes a file, with the head in it, to which pieces are appended by the thread for files, which
/// is borrowed: a file system that does not answer holds up this file only. May wait for the file
/// system, so before there is a loop use it with files::result_within. Fails with Io.
Result<std::unique_ptr<PieceWriter>> write_file(files::BlockingCalls& calls,
                                                const std::string& path, const FileForm& form = {});

/// Writes pieces to one of our own streams, head first. Borrows the console.
std::unique_ptr<PieceWriter> write_console(logs::Console& console, logs::Console::Stream stream,
                                           const FileForm& form);

/// Feeds pieces to the standard input of the user's program, a line of sh(1). One that ends is
/// started again when there is something to say, at first after a second, later after up to a
/// minute; what it had not read is lost, and so is what comes meanwhile and does not fit. One that
/// reads nothing loses what comes. At the end it sees the end of its input and may go on until the
/// wait for the sink is over; then it is killed. Its output goes to stderr. Borrows all.
std::unique_ptr<PieceWriter> write_program(boost::asio::io_context& loop, Clock& clock,
                                           process::Launcher& launcher, std::string command,
                                           std::vector<std::string> environment);

/// Samples and windows as torchelastic's console handler prints metrics, a line for each number:
/// "[SECONDS][GROUP]: NAME=VALUE"; of a window NAME.AGGREGATION. Names come from workers: what
/// would steer a terminal is shown as text. Borrows the console, which counts itself what its
/// reader does not take.
std::shared_ptr<MetricsSink> make_console_lines(std::string name, logs::Console& console);

}  // namespace elastrun::exporter
