// SPDX-License-Identifier: Apache-2.0
#include "log_tail.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace elastrun::ctl {
namespace {

constexpr std::size_t kPiece = 65536;
constexpr std::size_t kLongestPart = 1 << 20;  // longer ones are given in parts

/// Finds the offset of the last `lines` lines of a file. A last line without an end counts as one.
std::int64_t begin_of_last_lines(int file, std::int64_t size, int lines) {
  if (lines == 0) return size;
  std::array<char, kPiece> piece{};
  int ends = 0;
  for (std::int64_t stop = size; stop > 0;) {
    const auto start = std::max<std::int64_t>(stop - static_cast<std::int64_t>(kPiece), 0);
    // From the end, piece by piece: a log may have gigabytes, and its last lines are wanted.
    const auto got = ::pread(file, piece.data(), static_cast<std::size_t>(stop - start), start);
    if (got <= 0) return start;
    for (auto at = got - 1; at >= 0; --at) {
      // The end of the last line is not that of one before it.
      if (piece[static_cast<std::size_t>(at)] != '\n' || start + at == size - 1) continue;
      if (++ends == lines) return start + at + 1;
    }
    stop = start;
  }
  return 0;
}

}  // namespace

Result<LogTail> LogTail::open(const std::string& path, std::optional<int> lines) {
  // O_NONBLOCK: a FIFO would wait for its writer before it can be seen that it is one.
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0) {
    return std::unexpected(errno_error(Code::Io, "cannot read " + path, errno));
  }
  if (!S_ISREG(info.st_mode)) return fail(Code::Io, path + " is not a regular file");
  if (lines) ::lseek(file.get(), begin_of_last_lines(file.get(), info.st_size, *lines), SEEK_SET);
  return LogTail(std::move(file));
}

void LogTail::read(const Write& write) {
  std::array<char, kPiece> piece{};
  while (true) {
    const auto got = ::read(file_.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    const std::string_view text(piece.data(), static_cast<std::size_t>(got));
    if (label_.empty()) {
      write(text);
      continue;
    }
    // Half a line waits for its end, or the label would come again in its middle.
    pending_ += text;
    give_lines(write);
  }
}

void LogTail::give_lines(const Write& write) {
  std::string out;
  std::size_t begin = 0;
  for (auto end = pending_.find('\n'); end != std::string::npos; end = pending_.find('\n', begin)) {
    out += label_;
    out.append(pending_, begin, end + 1 - begin);
    begin = end + 1;
  }
  pending_.erase(0, begin);
  if (pending_.size() > kLongestPart) {
    out += label_ + pending_ + "\n";
    pending_.clear();
  }
  if (!out.empty()) write(out);
}

void LogTail::finish(const Write& write) {
  read(write);
  if (!pending_.empty()) write(label_ + pending_ + "\n");
  pending_.clear();
}

}  // namespace elastrun::ctl
