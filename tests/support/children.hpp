// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/system_clock.hpp"
#include "core/unique_fd.hpp"
#include "process/posix_launcher.hpp"
#include "support/stub_worker.hpp"

#include <array>
#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <dirent.h>
#include <fcntl.h>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

namespace elastrun::test {

/// Reads what processes say. Since a pipe ends only when the last holder of its other side has
/// gone, `rest()` is also how a test waits until no process of a job is left.
class Ear {
 public:
  Ear() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) std::abort();
    reading_.reset(ends[0]);
    writing_.reset(ends[1]);
  }
  int mouth() const { return writing_.get(); }
  void close_mouth() { writing_.reset(); }

  /// The next line, without its end; what there is when the writers have gone.
  std::string line() {
    close_mouth();
    while (heard_.find('\n') == std::string::npos && more()) {
    }
    const auto end = heard_.find('\n');
    const std::string result = heard_.substr(0, end);
    heard_.erase(0, end == std::string::npos ? end : end + 1);
    return result;
  }
  std::string rest() {
    close_mouth();
    while (more()) {
    }
    return std::exchange(heard_, {});
  }

 private:
  bool more() {
    std::array<char, 4096> piece{};
    ssize_t size = 0;
    do {
      size = ::read(reading_.get(), piece.data(), piece.size());
    } while (size < 0 && errno == EINTR);
    if (size > 0) heard_.append(piece.data(), static_cast<std::size_t>(size));
    return size > 0;
  }

  UniqueFd reading_, writing_;
  std::string heard_;
};

/// A loop, its clock, a real launcher and how the children of one test ended.
struct Nursery {
  boost::asio::io_context io;
  std::unique_ptr<Clock> clock = make_system_clock(io.get_executor());
  std::unique_ptr<process::PosixLauncher> launcher =
      std::make_unique<process::PosixLauncher>(io, *clock);

  struct Watched {
    std::unique_ptr<process::Child> child;
    std::optional<process::Exit> exit;
  };

  process::LaunchRequest stub(std::vector<std::string> steps, int stdout_fd = -1) const {
    process::LaunchRequest request;
    request.argv = std::move(steps);
    request.argv.insert(request.argv.begin(), stub_worker());
    request.stdout_fd = stdout_fd;
    return request;
  }
  Result<std::unique_ptr<Watched>> start(const process::LaunchRequest& request) {
    auto watched = std::make_unique<Watched>();
    auto child = launcher->start(
        request, [seen = watched.get()](const process::Exit& exit) { seen->exit = exit; });
    if (!child) return std::unexpected(child.error());
    watched->child = std::move(*child);
    return watched;
  }
  const process::Exit& wait(Watched& watched) {
    while (!watched.exit) {
      io.restart();
      io.run_one();
    }
    return *watched.exit;
  }
};

inline int open_descriptors() {
  int count = 0;
  DIR* const listing = ::opendir("/proc/self/fd");
  while (::readdir(listing) != nullptr) ++count;
  ::closedir(listing);
  return count;
}

}  // namespace elastrun::test
