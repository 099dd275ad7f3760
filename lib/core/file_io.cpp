// SPDX-License-Identifier: Apache-2.0

#include "core/file_io.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace elastrun {

std::vector<std::string> program_candidates(const std::string& name,
                                            std::optional<std::string_view> path) {
  if (name.contains('/')) return {name};
  std::vector<std::string> places;
  // Without PATH as confstr(_CS_PATH) says. An empty part of it is the current directory.
  for (const auto& folder : split(path.value_or("/bin:/usr/bin"), ':')) {
    places.push_back((folder.empty() ? "." : folder) + "/" + name);
  }
  return places;
}

std::string absolute_path(const std::string& path) {
  std::error_code error;  // where the current directory is gone, a relative path leads nowhere
  auto full = std::filesystem::absolute(path, error).lexically_normal().string();
  while (full.size() > 1 && full.back() == '/') full.pop_back();
  return error ? path : full;
}

namespace {

/// What those of these variables name that are set.
std::vector<std::string> named_by(std::initializer_list<const char*> variables) {
  std::vector<std::string> places;
  for (const char* name : variables) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') places.push_back(absolute_path(value));
  }
  return places;
}

/// Adds what there is to `text`; the errno of what ended it, 0 at the end of the file.
int read_into(std::string& text, const std::string& path, std::size_t most) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return errno;
  // Not by the size that stat(2) tells, which is 0 or 4096 for what the kernel makes up.
  std::array<char, 4096> piece;
  while (text.size() < most) {
    const auto got = ::read(file.get(), piece.data(), std::min(piece.size(), most - text.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) break;
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
  return 0;
}

}  // namespace

bool names_temporary_place() {
  return !named_by({"TMPDIR", "TEMP", "TMP"}).empty();
}

std::vector<std::string> socket_places() {
  auto places = named_by({"TMPDIR"});
  places.insert(places.end(), {"/tmp", "/dev/shm"});
  return places;
}

std::vector<std::string> temporary_places(const std::string& memory) {
  auto places = named_by({"TMPDIR", "TEMP", "TMP"});
  if (!memory.empty()) places.push_back(memory);
  places.insert(places.end(), {"/tmp", "/var/tmp", "/usr/tmp", absolute_path(".")});
  return places;
}

Status OwnName::make_folder(std::string folder, const std::string& name) {
  folder += "_XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr)
    return std::unexpected(errno_error(Code::Io, "cannot make the folder " + folder, errno));
  path = folder + '/' + name;
  own_folder = std::move(folder);
  return {};
}

std::function<void()> OwnName::take_removal() {
  return [name = std::exchange(made, false) ? path : std::string(),
          folder = std::exchange(own_folder, {})] {
    if (!name.empty()) ::unlink(name.c_str());
    if (!folder.empty()) ::rmdir(folder.c_str());
  };
}

void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    // open(2) takes the lowest free number, which is this one: those below it are open by now.
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY);
  }
}

void close_descriptors_from(int first) {
  if (::syscall(SYS_close_range, first, ~0U, 0) == 0) return;
  // Linux before 5.9. What we open is close-on-exec anyway; this is for what we inherited.
  for (int fd = first; fd < 4096; ++fd) ::close(fd);
}

int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto put = ::write(fd, text.data(), text.size());
    if (put > 0) {
      text.remove_prefix(static_cast<std::size_t>(put));
    } else if (put == 0) {
      return ENOSPC;  // of a disk; POSIX lets no other file say so
    } else if (errno == EAGAIN) {
      pollfd writable{fd, POLLOUT, 0};
      ::poll(&writable, 1, -1);  // also ends when the reader has gone: the next write tells
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

Result<UniqueFd> memory_file(const char* name, std::string_view text) {
  UniqueFd file(::memfd_create(name, MFD_CLOEXEC));
  const int number = file ? write_all(file.get(), text) : errno;
  if (number != 0) return std::unexpected(errno_error(Code::Io, "memfd_create", number));
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

bool send_with(int socket, std::string_view text, std::span<const int> descriptors) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  iovec piece{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

Result<std::string> read_file(const std::string& path, std::size_t most) {
  std::string text;
  const int failed = read_into(text, path, most);
  if (failed != 0) return std::unexpected(errno_error(Code::Io, path, failed));
  return text;
}

std::string read_kernel_file(const std::string& path) {
  std::string text;
  // A process that ends while it is read leaves half a file and ESRCH: that half counts.
  read_into(text, path, std::numeric_limits<std::size_t>::max());
  return text;
}

}  // namespace elastrun
