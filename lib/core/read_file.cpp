// SPDX-License-Identifier: Apache-2.0
#include "core/read_file.hpp"

#include "core/unique_fd.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

namespace elastrun {
namespace {

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
