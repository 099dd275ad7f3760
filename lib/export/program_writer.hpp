// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/lifetime.hpp"
#include "core/unique_fd.hpp"
#include "export/stream_sink.hpp"
#include "process/launcher.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace elastrun::exporter {

/// Feeds pieces to the standard input of the user's program, a line of sh(1). One that ends is
/// started again when there is something to say, at first after a second, later after up to a
/// minute; what it had not read is lost, and so is what comes meanwhile and does not fit. One that
/// reads nothing loses what comes. At the end it sees the end of its input and may go on until the
/// wait for the sink is over; then it is killed.
class ProgramWriter final : public PieceWriter {
 public:
  static constexpr Duration kFirstPause = std::chrono::seconds(1);
  static constexpr Duration kLongestPause = std::chrono::minutes(1);

  /// Borrows all. The program's output goes to stderr.
  ProgramWriter(boost::asio::io_context& loop, Clock& clock, process::Launcher& launcher,
                std::string command, std::vector<std::string> environment);
  ~ProgramWriter() override;

  void write(std::vector<std::string> batch, Then then) override;
  void close(Done done) override;
  std::uint64_t lost() const override;

 private:
  void start();
  Status launch();
  void pause_then_start();
  void ended(const process::Exit& exit);
  void send();
  void sent(std::size_t bytes);
  void broke_off();
  std::uint64_t unread_in(int pipe) const;
  void forget_read();

  // Set at construction.
  boost::asio::io_context& loop_;
  Clock& clock_;
  process::Launcher& launcher_;
  const std::string command_;
  const std::vector<std::string> environment_;
  // Changes while running.
  boost::asio::posix::stream_descriptor input_;  // our end; closed: no reader
  std::unique_ptr<process::Child> child_;
  std::unique_ptr<Alarm> pause_;
  bool pausing_ = false;
  Duration next_pause_ = kFirstPause;
  TimePoint started_{};
  std::vector<std::string> batch_;
  std::size_t piece_ = 0, offset_ = 0;  // what comes next of it
  std::deque<std::size_t> in_pipe_;     // sizes of pieces that may not have been read yet
  std::size_t in_pipe_bytes_ = 0;
  std::uint64_t unread_ = 0;  // by programs that have ended
  Then then_;
  UniqueFd reader_;  // of the pipe once our end is closed: tells what is left in it
  Done closed_;
  Lifetime lifetime_;
};

}  // namespace elastrun::exporter
