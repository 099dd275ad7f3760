// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/election/file_lock.hpp"

#include "core/host_name.hpp"
#include "core/text.hpp"
#include "files/whole_file.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace elastrun::rendezvous {
namespace {

// "process 4711 on n7": as much as anybody may read out of a file.
std::string leader_of(int fd) {
  std::array<char, 320> text{};
  const ssize_t got = ::pread(fd, text.data(), text.size() - 1, 0);
  const auto words = split(
      trim(std::string_view(text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)))),
      ' ');
  if (words.size() != 2 || !parse_int(words[1])) return "another process";
  // Others can write this file, and what stands there goes into a message.
  const bool plain = std::ranges::all_of(words[0], [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
  return plain ? fmt::format("process {} on {}", words[1], words[0]) : "another process";
}

// For people alone: a lock without it is as good.
void write_leader(int fd) {
  const std::string text = fmt::format("{} {}\n", host_name(), ::getpid());
  if (::pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size())) {
    static_cast<void>(!::ftruncate(fd, static_cast<off_t>(text.size())));
  }
}

// It may have been deleted meanwhile, as people do who read the error: then the next process locks
// another file.
bool is_still_there(int fd, const std::string& name) {
  struct stat own {};
  struct stat there {};
  return ::fstat(fd, &own) == 0 && ::stat(name.c_str(), &there) == 0 && own.st_ino == there.st_ino;
}

}  // namespace

Result<UniqueFd> lock_file(const std::string& name) {
  auto fd = files::open_by_name(name, O_RDWR | O_CREAT, 0600);
  if (!fd) return fd;
  struct flock whole {};
  whole.l_type = F_WRLCK;
  // Of the open file, not of the process: two sessions in one process are two agents too.
  if (::fcntl(fd->get(), F_OFD_SETLK, &whole) != 0) {
    const int number = errno;
    if (number != EAGAIN && number != EACCES) {
      return std::unexpected(errno_error(Code::Io, fmt::format("cannot lock {}", name), number));
    }
    return fail(Code::Io,
                fmt::format("{} is locked by {}; if that lasts, its machine may have died within "
                            "the lock, which NFS 3 keeps until it is up again: if it is down, "
                            "delete this file",
                            name, leader_of(fd->get())));
  }
  if (!is_still_there(fd->get(), name)) return fail(Code::Io, fmt::format("{} was deleted", name));
  write_leader(fd->get());
  return fd;
}

}  // namespace elastrun::rendezvous
