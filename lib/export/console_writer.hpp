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
