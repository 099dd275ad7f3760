// SPDX-License-Identifier: Apache-2.0
#include "system/python_stacks.hpp"

#include "core/text.hpp"
#include "core/unique_fd.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace elastrun::system {
namespace {

constexpr auto kLook = std::chrono::milliseconds(10);
constexpr int kQuietLooks = 3;               // without another byte: it has come to its end
constexpr std::size_t kMostBytes = 1 << 18;  // faulthandler writes 100 frames of each thread
using Steady = std::chrono::steady_clock;

/// Only a file in memory: reading anything else might wait, or take bytes away from somebody.
UniqueFd open_offered(pid_t pid, int descriptor) {
  const auto path = fmt::format("/proc/{}/fd/{}", pid, descriptor);
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  struct stat info {};
  struct statfs system {};
  if (!file || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  if (::fstatfs(file.get(), &system) != 0 || system.f_type != TMPFS_MAGIC) return {};
  return file;
}

off_t size_of(const UniqueFd& file) {
  struct stat info {};
  return ::fstat(file.get(), &info) == 0 ? info.st_size : 0;
}

/// Until the file has grown and grows no more, or the process or the time has come to its end.
void await_growth(const UniqueFd& file, off_t before, int pidfd, Steady::time_point until) {
  off_t size = before;
  int quiet = 0;
  while (Steady::now() < until && quiet < kQuietLooks) {
    pollfd end{pidfd, POLLIN, 0};
    if (::poll(&end, 1, static_cast<int>(kLook.count())) != 0) return;
    const auto now = size_of(file);
    quiet = now > before && now == size ? quiet + 1 : 0;
    size = now;
  }
}

std::string read_from(const UniqueFd& file, off_t before) {
  const auto added = std::max<off_t>(0, size_of(file) - before);
  std::string text(std::min<std::size_t>(kMostBytes, static_cast<std::size_t>(added)), '\0');
  const auto got = ::pread(file.get(), text.data(), text.size(), before);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

}  // namespace

std::vector<std::string> ask_python_stacks(pid_t pid, int pidfd, StackOffer offer,
                                           std::chrono::milliseconds limit) {
  const auto file = open_offered(pid, offer.descriptor);
  if (!file) return {};
  const auto before = size_of(file);
  const auto until = Steady::now() + limit;
  if (::syscall(SYS_pidfd_send_signal, pidfd, offer.signal, nullptr, 0) != 0) return {};
  await_growth(file, before, pidfd, until);
  std::vector<std::string> lines;
  for (auto& line : split(trim(read_from(file, before)), '\n')) {
    if (!line.empty()) lines.push_back(printable(std::move(line)));
  }
  return lines;
}

}  // namespace elastrun::system
