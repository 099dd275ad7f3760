// SPDX-License-Identifier: Apache-2.0
#include "timer/request_pipe.hpp"

#include "core/unique_fd.hpp"
#include "timer/torch_request.hpp"

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace elastrun::timer {
namespace {
namespace asio = boost::asio;

constexpr int kCapacity = 1 << 20;  // what the kernel gives without privileges: 8,700 requests
constexpr int kPiecesAtOnce = 16;   // of 64 KiB: then others have their turn

/// The FIFO in the file system.
struct Place {
  std::string path, own_folder;
  bool made = false;

  Place() = default;
  Place(Place&& other) noexcept
      : path(std::move(other.path)),
        own_folder(std::move(other.own_folder)),
        made(std::exchange(other.made, false)) {
    other.own_folder.clear();
  }
  Place& operator=(Place&&) = delete;
  ~Place() {
    if (made) ::unlink(path.c_str());
    if (!own_folder.empty()) ::rmdir(own_folder.c_str());
  }
};

std::unexpected<Error> io_error(const std::string& what) {
  return std::unexpected(errno_error(Code::Io, what, errno));
}

bool is_own_fifo(const struct stat& info) {
  return S_ISFIFO(info.st_mode) && info.st_uid == ::geteuid();
}

Status make_fifo(Place& place) {
  struct stat info {};
  if (::lstat(place.path.c_str(), &info) == 0) {
    if (!is_own_fifo(info)) {
      return fail(Code::Io, fmt::format("{} is there already, and is not our FIFO", place.path));
    }
    ::unlink(place.path.c_str());
  }
  if (::mkfifo(place.path.c_str(), 0600) != 0)
    return io_error("cannot make the FIFO " + place.path);
  place.made = true;
  return {};
}

Result<Place> make_place(const std::string& path) {
  Place place;
  place.path = path;
  if (path.empty()) {
    const char* given = std::getenv("TMPDIR");
    const std::string base = given == nullptr || *given == '\0' ? "/tmp" : given;
    std::string folder = base + "/elastrun_timer_XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) return io_error("cannot make the folder " + folder);
    place.own_folder = folder;
    place.path = folder + "/requests";
  }
  if (const auto made = make_fifo(place); !made) return std::unexpected(made.error());
  return place;
}

struct Ends {
  UniqueFd reading, writing;
};

/// The writer after the reader: without one, its open(2) would fail, see fifo(7).
Result<Ends> open_ends(const std::string& path) {
  Ends ends;
  ends.reading.reset(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!ends.reading) return io_error("cannot open " + path);
  struct stat info {};
  if (::fstat(ends.reading.get(), &info) != 0 || !is_own_fifo(info)) {
    return fail(Code::Io, path + " has been replaced by something that is not our FIFO");
  }
  ends.writing.reset(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!ends.writing) return io_error("cannot open " + path);
  ::fcntl(ends.reading.get(), F_SETPIPE_SZ, kCapacity);  // a refusal leaves 64 KiB
  return ends;
}

class FifoPipe final : public RequestPipe {
 public:
  FifoPipe(asio::io_context& loop, Place place, Ends ends, OnLine on_line)
      : place_(std::move(place)),
        reader_(loop, ends.reading.release()),
        writing_(std::move(ends.writing)),
        on_line_(std::move(on_line)) {
    await_bytes();
  }
  FifoPipe(const FifoPipe&) = delete;
  FifoPipe& operator=(const FifoPipe&) = delete;

  const std::string& path() const override { return place_.path; }
  const std::string& own_folder() const override { return place_.own_folder; }
  Statistics statistics() const override { return statistics_; }

  void catch_up() override {
    std::array<char, 65536> buffer;
    for (int i = 0; i < kPiecesAtOnce; ++i) {
      const auto got = ::read(reader_.native_handle(), buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return;
      take({buffer.data(), static_cast<std::size_t>(got)});
    }
  }

 private:
  void await_bytes() {
    reader_.async_wait(asio::posix::stream_descriptor::wait_read,
                       [this, alive = std::weak_ptr(alive_)](const auto& error) {
                         if (error || alive.expired()) return;
                         catch_up();
                         await_bytes();
                       });
  }

  void take(std::string_view bytes) {
    const auto left_out = lines_.feed(bytes, [this](std::string_view line) {
      ++statistics_.lines;
      on_line_(line);
    });
    statistics_.too_long += static_cast<std::uint64_t>(left_out);
  }

  Place place_;
  asio::posix::stream_descriptor reader_;
  UniqueFd writing_;
  const OnLine on_line_;
  RequestLines lines_;
  Statistics statistics_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // completions may be queued when we go
};

}  // namespace

Result<std::unique_ptr<RequestPipe>> RequestPipe::make(asio::io_context& loop,
                                                       const std::string& path, OnLine on_line) {
  auto place = make_place(path);
  if (!place) return std::unexpected(place.error());
  auto ends = open_ends(place->path);
  if (!ends) return std::unexpected(ends.error());
  return std::make_unique<FifoPipe>(loop, std::move(*place), std::move(*ends), std::move(on_line));
}

}  // namespace elastrun::timer
