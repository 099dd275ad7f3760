// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/lifetime.hpp"
#include "export/stream_sink.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::exporter {

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
