// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/unique_fd.hpp"
#include "logs/console.hpp"
#include "logs/line_splitter.hpp"
#include "logs/tail.hpp"

#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::logs {

/// An append-only file that may be full: a write that fails is counted and said once, nothing else.
class LogFile {
 public:
  LogFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  void write(std::string_view bytes);
  const std::string& path() const { return path_; }
  std::uint64_t lost() const { return lost_; }

 private:
  UniqueFd fd_;
  std::string path_;
  std::uint64_t lost_ = 0;
};

/// Memory that all pumps of a job share: one reads at a time, because there is one thread.
struct PumpBuffers {
  std::vector<char> input;  // empty until the first read
  std::string lines, matching;
};

/// What becomes of the bytes of one stream.
struct PumpRoute {
  enum class Show { Nothing, Raw, Lines };
  std::shared_ptr<LogFile> file;  // raw bytes; may be null
  Show show = Show::Nothing;
  Console::Stream stream = Console::Stream::Out;
  std::string prefix;                        // with Lines
  std::shared_ptr<const LineFilter> filter;  // with Lines; may be null
  std::shared_ptr<LogFile> matching;         // set when filter is
  bool keep_tail = false;
};

/// Carries one stream of one worker from its pipe or pseudo-terminal to where it belongs, by the
/// route. Reads as long as the writer has it open; pauses while the console is congested.
class Pump : public std::enable_shared_from_this<Pump> {
 public:
  static constexpr std::size_t kTail = 16 << 10;  // bytes kept for the verdict

  /// Borrows all three, which must outlive the loop's last turn. `source` must be non-blocking.
  Pump(boost::asio::any_io_executor executor, Clock& clock, Console& console,
       std::shared_ptr<PumpBuffers> buffers, UniqueFd source, PumpRoute route);

  void start();
  /// As WorkerStreams::drain.
  void drain(bool give_up_rest, std::function<void()> on_drained);
  /// Closes the source and forgets who waits.
  void stop();
  /// A pseudo-terminal gets the size of the terminal that `fd` is; a pipe stays as it is.
  void take_size_of(int fd);
  const Tail& tail() const { return tail_; }
  const PumpRoute& route() const { return route_; }

 private:
  void await_bytes();
  void on_readable();
  bool read_once();
  void pass_on(std::string_view bytes);
  void pass_raw(std::string_view bytes);
  void flush_unfinished();
  void pass_lines(std::string_view bytes);
  void write_lines();
  std::optional<TimePoint> unfinished_until() const;
  void watch_unfinished();
  void show_unfinished();
  void pause();
  void end();

  // Set at construction
  boost::asio::any_io_executor executor_;
  Clock& clock_;
  Console& console_;
  std::shared_ptr<PumpBuffers> buffers_;
  PumpRoute route_;
  // Changes while running
  boost::asio::posix::stream_descriptor source_;
  LineSplitter splitter_;
  std::string unfinished_;  // with Raw: the start of a line, whose end will follow at once
  TimePoint unfinished_since_{};
  Tail tail_{kTail};
  std::unique_ptr<Alarm> alarm_;
  bool alarm_armed_ = false;
  bool awaiting_ = false, paused_ = false, giving_up_ = false, ended_ = false;
  std::vector<std::function<void()>> on_drained_;
};

}  // namespace elastrun::logs
