// SPDX-License-Identifier: Apache-2.0

#include "timer/watchdog.hpp"

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
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
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

constexpr std::string_view kFile = "contextlib.py#";

Request numbered(const Request& request, std::size_t number, std::optional<TimePoint> expiry) {
  auto one = request;
  one.number = number;
  one.expiry = expiry;
  return one;
}

// Between the expiry and its consequence: the loop reads what has come by then through every
// descriptor. A release that was written in time must count, though both are ready at once.
constexpr Duration kLastReading = std::chrono::milliseconds(1);
constexpr Duration kReapAgain = std::chrono::seconds(1);

UniqueFd open_pidfd(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool has_ended(int pidfd) {
  pollfd one{pidfd, POLLIN, 0};
  // A pidfd becomes readable when its process ends, also while that is a zombie (pidfd_open(2)).
  return ::poll(&one, 1, 0) == 1;
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

bool is_torch_default(std::string_view scope) {
  const auto at = scope.rfind(kFile);
  if (at == std::string_view::npos || (at > 0 && scope[at - 1] != '/')) return false;
  const auto line = scope.substr(at + kFile.size());
  return !line.empty() && line.find_first_not_of("0123456789") == std::string_view::npos;
}

const Expired& ExpiredWorker::reason() const {
  const auto found =
      std::ranges::find_if(timers, [](const Expired& timer) { return timer.signal > 0; });
  return found == timers.end() ? timers.front() : *found;
}

bool Deadlines::apply(const Request& request) {
  const std::pair key(request.worker, request.scope);
  const bool known = nested_.contains(key);
  // Only torch's default name is the same for all blocks that nest; users' names are taken as they
  // are.
  const bool nests = request.nests && is_torch_default(request.scope);
  if (!nests || (!known && nested_.size() >= kMostNested)) return set(request);
  auto& blocks = nested_[key];
  const bool counted =
      request.expiry ? begin(blocks, request) : end(blocks, request, request.armed);
  // Or a process with many scopes would count against kMostNested for as long as it lives.
  if (blocks.empty()) nested_.erase(key);
  return counted;
}

bool Deadlines::begin(Blocks& blocks, const Request& request) {
  // So deep nothing nests: releases have been lost.
  if (blocks.size() == kDeepest) end(blocks, request, *request.expiry);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    auto& outer = blocks[i];
    // Requests of threads look the same, so an outer block that would expire first may be another
    // thread's: it is suspended while the inner one lasts.
    if (outer.expiry > *request.expiry) continue;
    outer.expiry = *request.expiry;
    if (!std::exchange(outer.suspended, true)) set(numbered(request, i + 1, {}));
  }
  blocks.push_back({*request.expiry - request.armed, *request.expiry, request.signal});
  return set(numbered(request, blocks.size(), request.expiry));
}

bool Deadlines::end(Blocks& blocks, const Request& request, TimePoint now) {
  if (blocks.empty()) return true;
  set(numbered(request, blocks.size(), {}));
  blocks.pop_back();
  if (blocks.empty() || !blocks.back().suspended) return true;
  auto& outer = blocks.back();
  outer.suspended = false;
  // Its whole time once more: of two mistakes, the one that ends no process which is in time.
  outer.expiry = std::max(outer.expiry, now + outer.after);
  auto again = numbered(request, blocks.size(), outer.expiry);
  again.signal = outer.signal;
  again.armed = outer.expiry - outer.after;
  return set(again);
}

bool Deadlines::set(const Request& request) {
  auto& timers = timers_[request.worker];
  const Name name(request.scope, request.number);
  // As with torch, the same scope again replaces its timer.
  if (const auto old = timers.find(name); old != timers.end()) {
    by_expiry_.erase({old->second.expiry, request.worker, name});
    timers.erase(old);
  }
  // A script that never releases must not fill the agent's memory.
  const bool counts = !request.expiry || timers.size() < kMostOfWorker;
  if (request.expiry && counts) {
    timers.emplace(name, Expired{request.scope, *request.expiry, request.signal, request.armed});
    by_expiry_.emplace(*request.expiry, request.worker, name);
  }
  if (timers.empty()) timers_.erase(request.worker);
  return counts;
}

std::optional<TimePoint> Deadlines::next() const {
  if (by_expiry_.empty()) return std::nullopt;
  return std::get<TimePoint>(*by_expiry_.begin());
}

std::vector<ExpiredWorker> Deadlines::take_expired(TimePoint now) {
  std::vector<ExpiredWorker> workers;
  while (!by_expiry_.empty() && *next() <= now) {
    const auto [expiry, pid, name] = *by_expiry_.begin();
    auto worker = std::ranges::find(workers, pid, &ExpiredWorker::worker);
    if (worker == workers.end()) worker = workers.insert(worker, {pid, {}});
    worker->timers.push_back(timers_[pid][name]);
    set({pid, name.first, {}, 0, name.second});
  }
  // A timer that only tells ends no process, whose other timers go on.
  for (const auto& worker : workers) {
    if (worker.signal() > 0) forget(worker.worker);
  }
  return workers;
}

void Deadlines::forget(std::int64_t worker) {
  for (const auto& [name, timer] : timers_[worker]) by_expiry_.erase({timer.expiry, worker, name});
  timers_.erase(worker);
  nested_.erase(nested_.lower_bound({worker, {}}), nested_.lower_bound({worker + 1, {}}));
}

Watchdog::Watchdog(boost::asio::io_context& loop, Clock& clock, Owner& owner)
    : loop_(loop),
      clock_(clock),
      owner_(owner),
      alarm_(clock.make_alarm()),
      last_reading_(clock.make_alarm()),
      again_(clock.make_alarm()) {}

bool Watchdog::request(const Request& request) {
  const auto pid = static_cast<pid_t>(request.worker);
  if (!request.expiry && !processes_.contains(pid)) return true;  // nothing is to be released
  const auto held = hold(pid);
  const bool counts = held == Held::Ended || (held == Held::Yes && deadlines_.apply(request));
  arm();
  return counts;
}

/// If another process has this pid by now, the timers in hand belong to the one that has ended.
Watchdog::Held Watchdog::hold(pid_t pid) {
  const auto known = processes_.find(pid);
  if (known != processes_.end() && !has_ended(known->second.pidfd.get())) return Held::Yes;
  if (known != processes_.end()) forget(pid);
  // First hold the process, then ask whose it is: in the other order its number may be given away
  // in between.
  auto pidfd = open_pidfd(pid);
  if (pidfd ? has_ended(pidfd.get()) : errno == ESRCH) return Held::Ended;
  if (!pidfd || !owner_.is_ours(pid)) return Held::No;
  // A second descriptor, since Asio closes the one that it is given.
  UniqueFd watched(::fcntl(pidfd.get(), F_DUPFD_CLOEXEC, 0));
  if (!watched) return Held::No;
  using Descriptor = asio::posix::stream_descriptor;
  auto watch = std::make_unique<Descriptor>(loop_, watched.release());
  watch->async_wait(Descriptor::wait_read,
                    [this, pid, alive = lifetime_.token()](const auto& error) {
                      if (error || !alive) return;
                      forget(pid);
                      arm();
                    });
  processes_.emplace(pid, Process{std::move(pidfd), std::move(watch)});
  return Held::Yes;
}

void Watchdog::forget(pid_t pid) {
  deadlines_.forget(pid);
  processes_.erase(pid);
}

void Watchdog::clear() {
  while (!processes_.empty()) forget(processes_.begin()->first);
  alarm_->disarm();
  last_reading_->disarm();
  again_->disarm();
  due_ = false;
}

void Watchdog::arm() {
  const auto next = deadlines_.next();
  next ? alarm_->arm(*next, [this] { look_again(); }) : alarm_->disarm();
}

void Watchdog::look_again() {
  // A second expiry within that moment is found by the same look.
  if (std::exchange(due_, true)) return;
  last_reading_->arm(clock_.now() + kLastReading, [this] { expire(); });
}

void Watchdog::expire() {
  due_ = false;
  // A release that was written in time may still wait in the channel.
  owner_.read_waiting();
  auto expired = deadlines_.take_expired(clock_.now());
  arm();
  if (!expired.empty()) owner_.expired(std::move(expired));
}

bool Watchdog::runs(pid_t pid) const {
  const auto process = processes_.find(pid);
  return process != processes_.end() && !has_ended(process->second.pidfd.get());
}

Status Watchdog::send(int pidfd, int signal) const {
  if (::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0) return {};
  return std::unexpected(errno_error(Code::Io, "cannot signal the process", errno));
}

Status Watchdog::reap(pid_t pid, int signal) {
  const auto process = processes_.find(pid);
  if (!runs(pid)) return {};
  const auto sent = send(process->second.pidfd.get(), signal);
  process->second.reap_signal = sent ? 0 : signal;
  // A process below sudo refuses the signal; it may end by itself, or change its user.
  if (!sent) again_->arm(clock_.now() + kReapAgain, [this] { reap_again(); });
  return sent;
}

void Watchdog::reap_again() {
  for (const auto& [pid, process] : processes_) {
    // reap() adds and removes no process, so the loop may go on over the map.
    if (process.reap_signal != 0) (void)reap(pid, process.reap_signal);
  }
}

}  // namespace elastrun::timer
