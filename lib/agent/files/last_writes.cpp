// SPDX-License-Identifier: Apache-2.0
#include "agent/files/last_writes.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <utility>

namespace elastrun::agent {
namespace {

constexpr std::string_view kFilesArea = "files";
constexpr Duration kUnsaidWrite = std::chrono::seconds(2);  // a wait that needs no words

}  // namespace

LastWrites::LastWrites(boost::asio::io_context& loop, Clock& clock, logs::Console& console,
                       std::vector<files::BlockingCalls*> files, Duration limit)
    : loop_(loop),
      console_(console),
      clock_(clock),
      limit_(limit),
      alarm_(clock_.make_alarm()),
      limit_alarm_(clock_.make_alarm()) {
  for (auto* calls : files) files_.push_back({calls});
}

void LastWrites::wait(bool console) {
  with_console_ = console;
  waiting_ = true;
  over_ = false;
  // It has run out of work or was stopped when the job ended, and would return at once.
  loop_.restart();
  look();
  if (!over_) {
    alarm_->arm(clock_.now() + kUnsaidWrite / 2, [this] {
      remember();
      alarm_->arm(clock_.now() + kUnsaidWrite / 2, [this] { say(); });
    });
    if (until_) {
      // The time that a signal has left may be over, and what comes last, as the report, has not
      // been tried yet.
      until_ = std::max(*until_, clock_.now() + kUnsaidWrite);
      arm_limit();
    }
    loop_.run();
  }
  alarm_->disarm();
  limit_alarm_->disarm();
  console_.when_idle({});
  waiting_ = false;
}

void LastWrites::look() {
  if (!waiting_) return;  // an answer of one that was given up: the loop runs for others now
  if (with_console_) console_.tell_gaps();
  const bool files = ask_files();
  // Asked once: its thread may write the last of it between two questions, and no answer would
  // come.
  const bool console = console_done();
  over_ = files && console;
  if (over_) return loop_.stop();
  if (!console) console_.when_idle([this] { look(); });
}

/// Whether all is written; an answer may have something to write, too. Each thread is looked at
/// once and asked then: it may be done between two looks, and no answer would come. Calls are
/// made in order: the answer to ours comes after all before, but for those that go on.
bool LastWrites::ask_files() {
  bool done = true;
  for (auto& queue : files_) {
    if (queue.given_up || queue.left_out || queue.calls->idle()) continue;
    done = false;
    if (std::exchange(queue.marked, true)) continue;
    // `queue` stays where it is: the list is complete since the constructor.
    queue.calls->make(
        "the end", [] { return 0; },
        [this, &queue](int) {
          queue.marked = false;
          look();
        });
  }
  return done;
}

bool LastWrites::stands_still() const {
  const auto stands = [](const Queue& queue) {
    return queue.left_out || queue.calls->returned() == queue.returned;
  };
  return (!with_console_ || console_.written() == written_) && std::ranges::all_of(files_, stands);
}

void LastWrites::remember() {
  written_ = console_.written();
  for (auto& queue : files_) queue.returned = queue.calls->returned();
}

/// Those that stand still, if there are such: what is written at the moment, say the line that
/// tells this, is not meant.
std::string LastWrites::waited_for() const {
  std::vector<std::string> stuck, busy;
  for (const auto& queue : files_) {
    const auto name = queue.calls->busy_with();
    if (queue.given_up || queue.left_out || name.empty()) continue;
    (queue.calls->returned() == queue.returned ? stuck : busy).push_back(name);
  }
  if (!console_done()) stuck.emplace_back("the reader of the output");
  return fmt::format("{}", fmt::join(stuck.empty() ? busy : stuck, " and "));
}

void LastWrites::say() {
  if (brief_) {
    if (stands_still()) return loop_.stop();
    remember();
    return alarm_->arm(clock_.now() + kUnsaidWrite / 2, [this] { say(); });
  }
  if (!until_) {
    log::warning(kFilesArea,
                 "waiting for {} to take what is left of this run's output; up to {} as long as "
                 "nothing is taken, a signal limits it to {}",
                 waited_for(), format_duration(kTimeLimit), format_duration(limit_));
  }
  // The line is written to a file, too, which does not count as progress of what is waited for.
  alarm_->arm(clock_.now() + kUnsaidWrite / 2, [this] {
    remember();
    alarm_->arm(clock_.now() + kTimeLimit, [this] { give_up_if_stuck(); });
  });
}

void LastWrites::give_up_if_stuck() {
  if (!stands_still()) {
    remember();
    return alarm_->arm(clock_.now() + kTimeLimit, [this] { give_up_if_stuck(); });
  }
  log::error(kFilesArea, "{} took nothing within {}: what is left for it is lost", waited_for(),
             format_duration(kTimeLimit));
  give_up();
}

void LastWrites::shorten() {
  if (until_) return;
  until_ = clock_.now() + limit_;
  if (!waiting_) return;
  log::warning(kFilesArea,
               "a signal came: {} has up to {} to take what is left; once more gives up now",
               waited_for(), format_duration(limit_));
  arm_limit();
}

void LastWrites::arm_limit() {
  limit_alarm_->arm(*until_, [this] {
    log::error(kFilesArea, "what {} has not taken in time is lost", waited_for());
    give_up();
  });
}

void LastWrites::give_up_now() {
  log::error(kFilesArea, "a signal came again: what {} has not taken is lost", waited_for());
  give_up();
}

/// It may have begun to answer a moment ago.
std::vector<std::string> LastWrites::give_up_on(
    const std::vector<const files::BlockingCalls*>& calls) {
  for (auto& queue : files_) {
    queue.left_out = std::ranges::find(calls, queue.calls) == calls.end();
  }
  brief_ = true;
  wait(false);
  brief_ = false;
  std::vector<std::string> given_up;
  for (auto& queue : files_) {
    const bool meant = !std::exchange(queue.left_out, false);
    if (!meant || queue.given_up || queue.calls->idle()) continue;
    queue.given_up = true;
    given_up.push_back(queue.calls->busy_with());
  }
  return given_up;
}

void LastWrites::lose(const std::vector<const files::BlockingCalls*>& calls) {
  for (const auto& name : give_up_on(calls)) {
    log::error(kFilesArea, "{} took nothing: what is left for that file system is lost", name);
  }
}

void LastWrites::give_up() {
  for (auto& queue : files_) {
    queue.given_up = queue.given_up || !(queue.left_out || queue.calls->idle());
  }
  // A later wait() does not wait for it again.
  console_given_up_ = console_given_up_ || !console_done();
  over_ = true;
  loop_.stop();
}

}  // namespace elastrun::agent
