// SPDX-License-Identifier: Apache-2.0
#include "launcher/preemption_sources.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <sys/inotify.h>
#include <unistd.h>
#include <utility>

namespace elastrun::agent {
namespace {

constexpr std::string_view kPreemptArea = "preempt";
// Of the file, and of the end of its folder.
constexpr std::uint32_t kEvents =
    IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF;
constexpr Duration kAgain = std::chrono::seconds(1);

std::string watched_folder(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// Whether inotify(7) tells that a file of this name came, or that its folder went. `events`:
/// whole.
bool tell_of_another(std::string_view events, std::string_view name) {
  while (events.size() >= sizeof(inotify_event)) {
    inotify_event event{};
    std::memcpy(&event, events.data(), sizeof event);
    events.remove_prefix(sizeof event);
    const auto its = events.substr(0, event.len);  // padded with zeros
    events.remove_prefix(its.size());
    if ((event.mask & (IN_DELETE_SELF | IN_MOVE_SELF)) != 0) return true;
    const bool came = (event.mask & (IN_CREATE | IN_MOVED_TO)) != 0;
    if (came && its.substr(0, its.find('\0')) == name) return true;
  }
  return false;
}

}  // namespace

Duration preemption_margin(std::optional<Duration> save, Duration most) {
  const Duration wanted =
      save ? std::max<Duration>(2 * *save, PreemptionSources::kLeast) : PreemptionSources::kUnknown;
  return std::min(wanted, most);
}

PreemptionSources::PreemptionSources(RunContext& run, const std::string& end)
    : run_(run),
      file_(run.spec.preempt_file),
      timeout_(run.spec.preempt_timeout.value_or(run.spec.shutdown_timeout)),
      alarm_(run.clock.make_alarm()) {
  if (!run.spec.saves_when_preempted()) return;
  if (!file_.empty()) watch_file();
  if (end.empty()) return;
  const auto seconds = parse_int(end);
  // 2^33 s: nanoseconds of much more do not fit into 64 bits.
  const bool is_time = seconds && *seconds > 0 && *seconds <= 1LL << 33;
  const Duration left =
      is_time ? WallTime(std::chrono::seconds(*seconds)) - run.clock.wall() : Duration::zero();
  // A job that ended at once for this would be requeued, and end at once again.
  if (left <= Duration::zero()) {
    log::warning(kPreemptArea, "SLURM_JOB_END_TIME={}: {}, ignored; {}", printable(end),
                 is_time ? "in the past" : "no time in seconds since the epoch",
                 "scontrol show job has the end of this allocation");
    return;
  }
  end_ = run.clock.now() + left;
  // A save that seemed to take longer must not end each start behind its first checkpoint: a
  // requeue would follow, and the next one.
  most_ = std::clamp<Duration>(left / 2, Duration::zero(),
                               run.spec.preempt_timeout.value_or(PreemptionSources::kMost));
  margin_ = preemption_margin({}, most_);
  arm();
}

// A file on the pod's own file system: others would not tell of changes made elsewhere.
void PreemptionSources::watch_file() {
  const int fd = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  const auto folder = watched_folder(file_);
  if (fd < 0 || ::inotify_add_watch(fd, folder.c_str(), kEvents) < 0) {
    log::warning(kPreemptArea, "--preempt-file {}: cannot watch {} ({}); make that directory first",
                 file_, folder, std::strerror(errno));
    if (fd >= 0) ::close(fd);
    return;
  }
  events_ = std::make_unique<boost::asio::posix::stream_descriptor>(run_.loop, fd);
  again_ = run_.clock.make_alarm();
  // One that a last run has left says nothing of this one.
  if (::access(file_.c_str(), F_OK) == 0) {
    is_old_ = ::unlink(file_.c_str()) != 0;
    if (is_old_) {
      log::warning(kPreemptArea,
                   "--preempt-file {} is there and cannot be removed ({}): it asks for "
                   "nothing until it goes and comes again",
                   file_, std::strerror(errno));
    } else {
      log::info(kPreemptArea, "Removed {}, which was there before the job", file_);
    }
  }
  await_event();
}

void PreemptionSources::await_event() {
  events_->async_read_some(boost::asio::buffer(buffer_),
                           [this, alive = lifetime_.token()](const auto& error, std::size_t size) {
                             if (!alive || error) return;
                             const auto name = std::string_view(file_).substr(file_.rfind('/') + 1);
                             // By the events: it may have gone and come before we look.
                             if (tell_of_another({buffer_.data(), size}, name)) is_old_ = false;
                             look();
                           });
}

// Of the folder there are other events, and of the file several: it asks once.
void PreemptionSources::look() {
  const auto folder = watched_folder(file_);
  // The same watch, or that of a folder which was made in the place of the last.
  if (::inotify_add_watch(events_->native_handle(), folder.c_str(), kEvents) < 0) {
    if (!std::exchange(is_gone_, true)) {
      log::warning(kPreemptArea, "--preempt-file {}: {} is gone, and is looked for each second",
                   file_, folder);
    }
    return again_->arm(run_.clock.now() + kAgain, [this] { look(); });
  }
  is_gone_ = false;
  const bool there = ::access(file_.c_str(), F_OK) == 0;
  is_old_ = is_old_ && there;
  if (there && !is_old_) return run_.post(PreemptCame{file_ + " is there", timeout_});
  await_event();
}

void PreemptionSources::save_takes(Duration time) {
  margin_ = preemption_margin(time, most_);
  if (end_) arm();
}

void PreemptionSources::arm() {
  alarm_->arm(*end_ - margin_, [this] {
    const Duration left = std::min(margin_, *end_ - run_.clock.now());
    run_.post(PreemptCame{"the end of the Slurm job", left > Duration::zero() ? left : timeout_});
  });
}

}  // namespace elastrun::agent
