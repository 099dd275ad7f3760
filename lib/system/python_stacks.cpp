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
#include <utility>

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

/// One process that has been signalled.
struct Asked {
  UniqueFd file;
  int pidfd = -1;
  off_t before = 0, size = 0;
  int quiet = 0;
  bool done = true;

  void look() {
    pollfd end{pidfd, POLLIN, 0};
    const auto now = size_of(file);
    quiet = now > before && now == size ? quiet + 1 : 0;
    size = now;
    done = quiet >= kQuietLooks || ::poll(&end, 1, 0) != 0;
  }
};

Asked signal_to(const StackSource& source) {
  Asked asked{open_offered(source.pid, source.offer.descriptor), source.pidfd};
  if (!asked.file) return asked;
  asked.before = asked.size = size_of(asked.file);
  asked.done = ::syscall(SYS_pidfd_send_signal, source.pidfd, source.offer.signal, nullptr, 0) != 0;
  if (asked.done) asked.file.reset();
  return asked;
}

/// Until all files have grown and grow no more, or the processes or the time have come to their
/// end.
void await_growth(std::vector<Asked>& asked, Steady::time_point until) {
  while (Steady::now() < until && !std::ranges::all_of(asked, &Asked::done)) {
    ::poll(nullptr, 0, static_cast<int>(kLook.count()));
    for (auto& one : asked) {
      if (!one.done) one.look();
    }
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

std::vector<std::vector<std::string>> ask_python_stacks(const std::vector<StackSource>& sources,
                                                        std::chrono::milliseconds limit) {
  const auto until = Steady::now() + limit;
  std::vector<Asked> asked;
  for (const auto& source : sources) asked.push_back(signal_to(source));
  await_growth(asked, until);
  std::vector<std::vector<std::string>> stacks(sources.size());
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (!asked[i].file) continue;
    for (auto& line : split(trim(read_from(asked[i].file, asked[i].before)), '\n')) {
      if (!line.empty()) stacks[i].push_back(printable(std::move(line)));
    }
  }
  return stacks;
}

std::vector<std::string> ask_python_stacks(pid_t pid, int pidfd, StackOffer offer,
                                           std::chrono::milliseconds limit) {
  return std::move(ask_python_stacks({{pid, pidfd, offer}}, limit).front());
}

}  // namespace elastrun::system
