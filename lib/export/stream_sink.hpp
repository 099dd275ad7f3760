// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "export/metrics_sink.hpp"
#include "export/piece_queue.hpp"

#include <functional>
#include <memory>
#include <string>
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

}  // namespace elastrun::exporter
