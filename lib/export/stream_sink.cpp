// SPDX-License-Identifier: Apache-2.0
#include "export/stream_sink.hpp"

#include <utility>

namespace elastrun::exporter {

void PieceQueue::add(std::string piece) {
  bytes_ += piece.size();
  pieces_.push_back(std::move(piece));
  while (bytes_ > most_) {
    bytes_ -= pieces_.front().size();
    pieces_.pop_front();
    dropped_ += 1;
  }
}

std::vector<std::string> PieceQueue::take(std::size_t bytes) {
  std::vector<std::string> taken;
  std::size_t size = 0;
  while (!pieces_.empty() && (taken.empty() || size + pieces_.front().size() <= bytes)) {
    size += pieces_.front().size();
    taken.push_back(std::move(pieces_.front()));
    pieces_.pop_front();
  }
  bytes_ -= size;
  return taken;
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
  queue_.add(std::move(text));
  if (record.kind == telemetry::Record::Kind::Event || queue_.bytes() >= kBatch) {
    return write_out();
  }
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

void StreamSink::write_out() {
  if (writing_ > 0) return;  // the rest when that is done
  auto batch = queue_.take(kBatch);
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
  if (finished_ || queue_.bytes() >= kBatch || !pausing_) write_out();
}

void StreamSink::finish(std::function<void()> done) {
  if (pause_) pause_->disarm();
  finished_ = std::move(done);
  write_out();
}

SinkAccount StreamSink::account() const {
  const auto undone = writer_->lost();
  const auto waiting = queue_.size() + writing_;
  // A program's pipe takes pieces that it may never read: these count as delivered first, and as
  // lost once that is known.
  return {name(), delivered_ - std::min(delivered_, undone),
          lost_ + undone + queue_.dropped() + waiting, trouble_, waiting};
}

}  // namespace elastrun::exporter
