// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/unique_fd.hpp"
#include "files/appended_file.hpp"
#include "logs/console.hpp"
#include "logs/line_splitter.hpp"

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::logs {

/// The end of a stream, and when each part of it came: what a worker wrote last tells why it ended,
/// and the moment tells who was first. Memory is bounded, whatever comes.
class Tail {
 public:
  explicit Tail(std::size_t bytes) : bytes_(bytes) {}

  void add(std::string_view bytes, TimePoint now);
  /// The last bytes: at least as many as were asked for, at most twice that, or all there were.
  std::string_view text() const { return text_; }
  /// True if this is the whole output. If not, it may begin inside a line.
  bool is_whole() const { return total_ == text_.size(); }
  /// When the last occurrence of `text` came in. Nothing if it is not there, or so far back that
  /// its moment is forgotten.
  std::optional<TimePoint> seen_at(std::string_view text) const;

 private:
  struct Piece {
    std::uint64_t start;  // in bytes since the start of the stream
    TimePoint at;
  };
  const std::size_t bytes_;
  std::string text_;
  std::uint64_t total_ = 0;
  std::deque<Piece> pieces_;  // the latest, in order
};

/// Memory that all pumps of a job share: one reads at a time, because there is one thread.
struct PumpBuffers {
  std::shared_ptr<files::BufferPool> pool = std::make_shared<files::BufferPool>();
  files::BufferPool::Buffer input;            // null until the first read
  std::vector<files::Backlog::Piece> filled;  // in this turn, for the file
  std::string lines, matching;
  std::uint64_t out_bytes = 0, err_bytes = 0;  // that have been read in all
  TimePoint last_read = TimePoint::min();
};

/// Says what becomes of the bytes of one stream.
struct PumpRoute {
  enum class Show { Nothing, Raw, Lines };
  std::shared_ptr<files::AppendedFile> file;  // raw bytes; may be null
  Show show = Show::Nothing;
  Console::Stream stream = Console::Stream::Out;
  std::string prefix;                             // with Lines
  std::shared_ptr<const LineFilter> filter;       // with Lines; may be null
  std::shared_ptr<files::AppendedFile> matching;  // set when filter is
  bool keep_tail = false;
};

/// Carries one stream of one worker from its pipe or pseudo-terminal to where it belongs, by the
/// route. Reads as long as the writer has it open; pauses while its own file takes nothing, and
/// while the console is congested: for as long as that lasts if no file has the output, else for
/// 100 ms, after which the console misses lines.
///
/// With Lines, a line whose end has not come is shown after 100 ms of silence, or once the console
/// no longer lags.
class Pump : public std::enable_shared_from_this<Pump> {
 public:
  static constexpr std::size_t kTail = 16 << 10;  // bytes kept for the verdict

  /// Borrows all three, which must outlive the loop's last turn. `source` must be non-blocking.
  Pump(boost::asio::any_io_executor executor, Clock& clock, Console& console,
       std::shared_ptr<PumpBuffers> buffers, UniqueFd source, PumpRoute route);

  void start();
  /// See WorkerStreams::catch_up and drain.
  void catch_up();
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
  void pass_on(files::BufferPool::Buffer input);
  void hand_over();
  void pass_raw(std::string_view bytes);
  void flush_unfinished();
  void pass_lines(std::string_view bytes);
  void write_lines();
  std::optional<TimePoint> unfinished_until() const;
  void watch_unfinished();
  void show_unfinished();
  bool has_file() const { return route_.file != nullptr; }
  Outlet& outlet() const { return console_.outlet(route_.stream); }
  bool must_wait();
  void resume();
  void stop_waiting();
  void show_part();
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
  // With Lines, while a line is held: the silence that shows it begins here
  TimePoint last_bytes_{};
  std::optional<TimePoint> progress_due_;  // with Lines: when a progress bar is shown next
  bool part_shown_ = false;                // of the line that is held, all that there is
  Tail tail_{kTail};
  std::unique_ptr<Alarm> alarm_, deadline_;
  std::optional<TimePoint> armed_for_;
  bool awaiting_ = false, paused_ = false, ended_ = false;
  bool hurried_ = false;    // reads on though the reader lags
  bool giving_up_ = false;  // this is the last that is read
  std::vector<std::function<void()>> on_drained_;
};

}  // namespace elastrun::logs
