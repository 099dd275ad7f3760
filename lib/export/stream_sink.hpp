// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "export/metrics_sink.hpp"

#include <cstdint>
#include <deque>
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

}  // namespace elastrun::exporter
