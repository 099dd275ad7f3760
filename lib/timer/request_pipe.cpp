// SPDX-License-Identifier: Apache-2.0

#include "timer/request_pipe.hpp"

#include "core/json.hpp"
#include "core/log.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <fcntl.h>
#include <fmt/format.h>
#include <limits>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace elastrun::timer {
namespace {

DebugInfoHook& hook_of_process() {
  static DebugInfoHook hook;
  return hook;
}

constexpr std::size_t kShown = 120;              // of a line that means nothing
constexpr double kLongest = 10 * 365.0 * 86400;  // years; a deadline must fit into nanoseconds
constexpr std::string_view kBegin = "{\"version\"";

std::unexpected<Error> refuse(std::string_view why) {
  return fail(Code::Protocol, fmt::format("a timer request {}", why));
}

std::optional<std::int64_t> whole(const json::value& object, std::string_view name) {
  const auto* value = find_member(object, name);
  return value != nullptr && value->is_int64() ? std::optional(value->get_int64()) : std::nullopt;
}

std::optional<double> seconds(const json::value& object, std::string_view name) {
  const auto* value = find_member(object, name);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  const double number = value->to_number<double>();
  // A NaN compares false with everything: the deadline would neither expire nor be in order.
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

Result<Request> request_of(const json::value& object, TimePoint now, WallTime wall) {
  Request request;
  const auto pid = whole(object, "pid");
  if (!pid || *pid < 1 || *pid > std::numeric_limits<std::int32_t>::max()) {
    return refuse("needs a `pid`, a whole number above 0");
  }
  const auto* scope = find_member(object, "scope_id");
  if (scope == nullptr || !scope->is_string()) return refuse("needs a text `scope_id`");
  const auto expiration = seconds(object, "expiration_time");
  if (!expiration) return refuse("needs a number `expiration_time`");
  const auto signal = whole(object, "signal");
  if (!signal || *signal > SIGRTMAX) return refuse("needs a `signal`, 0 or less for none");
  request.worker = *pid;
  request.scope = std::string(std::string_view(scope->get_string()));
  request.signal = static_cast<int>(std::max<std::int64_t>(*signal, 0));
  request.armed = now;
  request.nests = true;
  if (*expiration < 0) return request;
  const double left = std::clamp(*expiration - to_seconds(wall), -kLongest, kLongest);
  // The client counts by the wall clock; setting it back must not make a time of the past.
  request.expiry = std::max(now, now + from_seconds(left));
  return request;
}

namespace asio = boost::asio;

constexpr int kCapacity = 1 << 20;  // what the kernel gives without privileges: 8,700 requests
constexpr std::size_t kLongestLine = PIPE_BUF + 1;  // one byte more than torch's client sends
constexpr int kPiecesAtOnce = 16;                   // of 64 KiB: then others have their turn

std::unexpected<Error> io_error(const std::string& what) {
  return std::unexpected(errno_error(Code::Io, what, errno));
}

bool is_own_fifo(const struct stat& info) {
  return S_ISFIFO(info.st_mode) && info.st_uid == ::geteuid();
}

/// Without a reader, opening it to write fails, see fifo(7).
bool has_reader(const std::string& fifo) {
  return bool(UniqueFd(::open(fifo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW)));
}

Status make_fifo(RequestPlace& place) {
  struct stat info {};
  if (::lstat(place.path.c_str(), &info) == 0) {
    if (!is_own_fifo(info)) {
      return fail(Code::Io, fmt::format("{} is there already, and is not our FIFO", place.path));
    }
    // Workers inherit TORCHELASTIC_TIMER_FILE, so below another agent this path may be that
    // agent's.
    if (has_reader(place.path)) {
      return fail(Code::Io, fmt::format("{} is that of another agent, which reads it", place.path));
    }
    // Left by an agent that was killed. Its inode must go as well: a late writer of that job may
    // hold it.
    ::unlink(place.path.c_str());
  }
  if (::mkfifo(place.path.c_str(), 0600) != 0)
    return io_error("cannot make the FIFO " + place.path);
  place.made = true;
  return {};
}

/// The writer after the reader: without one, its open(2) would fail, see fifo(7).
Status open_ends(RequestPlace& place) {
  const char* path = place.path.c_str();
  place.reading.reset(::open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!place.reading) return io_error("cannot open " + place.path);
  struct stat info {};
  // In a shared /tmp it may have been replaced since lstat(2).
  if (::fstat(place.reading.get(), &info) != 0 || !is_own_fifo(info)) {
    return fail(Code::Io, place.path + " has been replaced by something that is not our FIFO");
  }
  // Kept open, though nothing is written: without any writer a FIFO is at its end, which poll(2)
  // reports instead of waiting (pipe(7)).
  place.writing.reset(::open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!place.writing) return io_error("cannot open " + place.path);
  ::fcntl(place.reading.get(), F_SETPIPE_SZ, kCapacity);  // a refusal leaves 64 KiB
  return {};
}

}  // namespace

void set_debug_info_hook(DebugInfoHook hook) {
  hook_of_process() = std::move(hook);
}

void log_debug_info_for_expired_timers(const std::string& run_id, const ExpiredTexts& timers) {
  if (timers.empty()) return;
  if (hook_of_process()) return hook_of_process()(run_id, timers);
  if (!log::is_on(log::Level::Info)) return;
  std::vector<std::string> texts;
  for (const auto& [pid, requests] : timers) {
    texts.push_back(fmt::format("{}: ['{}']", pid, join(requests, "', '")));
  }
  log::info("timer", "Timers expired for run:[{}] [{{{}}}].", run_id, join(texts, ", "));
}

Result<Request> parse_torch_request(std::string_view line, TimePoint now, WallTime wall) {
  auto object = parse_json(line);
  // What stands before a second beginning is a line whose writer did not come to its end.
  const auto begin = line.rfind(kBegin);
  if (!object && begin != 0 && begin != std::string_view::npos) {
    object = parse_json(line.substr(begin));
  }
  if (object && object->is_object()) return request_of(*object, now, wall);
  return refuse(fmt::format("is not a JSON object: {:?}", cut(line, kShown)));
}

Result<std::unique_ptr<RequestPlace>> RequestPlace::make(const std::string& path) {
  auto place = std::make_unique<RequestPlace>();
  place->path = path;
  if (path.empty()) {
    const char* given = std::getenv("TMPDIR");
    const std::string base = given == nullptr || *given == '\0' ? "/tmp" : given;
    if (const auto folder = place->make_folder(base + "/elastrun_timer", "requests"); !folder)
      return std::unexpected(folder.error());
  }
  if (const auto made = make_fifo(*place); !made) return std::unexpected(made.error());
  if (const auto opened = open_ends(*place); !opened) return std::unexpected(opened.error());
  return place;
}

RequestPipe::RequestPipe(asio::io_context& loop, std::unique_ptr<RequestPlace> place,
                         OnLine on_line)
    : place_(std::move(place)),
      reader_(loop, place_->reading.release()),
      on_line_(std::move(on_line)) {
  await_bytes();
}

std::unique_ptr<RequestPlace> RequestPipe::take_place() {
  reader_.close();
  return std::move(place_);
}

void RequestPipe::catch_up() {
  std::array<char, 65536> buffer;
  for (int i = 0; i < kPiecesAtOnce; ++i) {
    const auto got = ::read(reader_.native_handle(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    // EAGAIN: all is read. The end cannot come while we hold a writer ourselves.
    if (got <= 0) return;
    // Of a longer line only its beginning is kept, which is not a request.
    for (std::string_view bytes(buffer.data(), static_cast<std::size_t>(got)); !bytes.empty();) {
      const auto end = bytes.find('\n');
      line_ += bytes.substr(0, std::min(end, kLongestLine - line_.size()));
      if (end == std::string_view::npos) break;
      bytes.remove_prefix(end + 1);
      on_line_(line_);
      line_.clear();
    }
  }
}

void RequestPipe::await_bytes() {
  reader_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [this, alive = lifetime_.token()](const auto& error) {
                       if (error || !alive) return;
                       catch_up();
                       await_bytes();
                     });
}

}  // namespace elastrun::timer
