// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/unique_fd.hpp"

#include <boost/asio/io_context.hpp>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <poll.h>
#include <pty.h>
#include <sstream>
#include <stdlib.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

/// Vocabulary of the wired tests of logs: pipes, terminals, files, a clock that is set by hand.
namespace plumbing {

using elastrun::UniqueFd;

struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    reader.reset(ends[0]);
    writer.reset(ends[1]);
  }
  UniqueFd reader, writer;
};

/// A terminal with us in the place of the screen.
struct Terminal {
  Terminal() {
    int master = -1, slave = -1;
    winsize size{24, 60, 0, 0};
    REQUIRE(::openpty(&master, &slave, nullptr, nullptr, &size) == 0);
    screen.reset(master);
    side.reset(slave);
  }
  UniqueFd screen, side;
};

inline UniqueFd copy_of(int fd) {
  return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

inline void say(int fd, std::string_view text) {
  REQUIRE(::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

/// What can be read at once, without waiting.
inline std::string take(int fd) {
  std::string text;
  char buffer[65536];
  pollfd entry{fd, POLLIN, 0};
  while (::poll(&entry, 1, 0) > 0 && (entry.revents & POLLIN) != 0) {
    const ssize_t size = ::read(fd, buffer, sizeof buffer);
    if (size <= 0) break;
    text.append(buffer, static_cast<std::size_t>(size));
  }
  return text;
}

inline std::string content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Scratch {
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "logs_test_XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~Scratch() { std::filesystem::remove_all(path); }
  std::string path;
};

/// Time stands still until advance(); one alarm at most is armed per owner, as in real life.
class ManualClock final : public elastrun::Clock {
 public:
  elastrun::TimePoint now() const override { return now_; }
  elastrun::WallTime wall() const override { return {}; }
  std::unique_ptr<elastrun::Alarm> make_alarm() override {
    return std::make_unique<ManualAlarm>(*this);
  }
  void advance(elastrun::Duration by) {
    const auto end = now_ + by;
    while (!armed_.empty() && armed_.begin()->first <= end) {
      auto next = armed_.extract(armed_.begin());
      now_ = next.key();
      next.mapped().second();
    }
    now_ = end;
  }
  std::size_t armed() const { return armed_.size(); }

 private:
  struct ManualAlarm final : elastrun::Alarm {
    explicit ManualAlarm(ManualClock& owner) : clock(owner) {}
    ~ManualAlarm() override { disarm(); }
    void arm(elastrun::TimePoint when, std::function<void()> ring) override {
      disarm();
      clock.armed_.insert({when, {this, std::move(ring)}});
    }
    void disarm() override {
      std::erase_if(clock.armed_, [this](const auto& entry) { return entry.second.first == this; });
    }
    ManualClock& clock;
  };
  elastrun::TimePoint now_{};
  std::multimap<elastrun::TimePoint, std::pair<ManualAlarm*, std::function<void()>>> armed_;
};

/// Turns the loop until `done`. A condition that never comes true ends by the test's TIMEOUT.
template <class Done>
void run_until(boost::asio::io_context& loop, Done done) {
  while (!done()) {
    loop.restart();
    REQUIRE(loop.run_one() == 1);
  }
}

/// Everything that is ready now, without waiting.
inline void settle_loop(boost::asio::io_context& loop) {
  loop.restart();
  while (loop.poll() > 0) loop.restart();
}

}  // namespace plumbing
