// SPDX-License-Identifier: Apache-2.0
#include "agent/last_writes.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

namespace elastrun::agent {
namespace {

constexpr std::string_view kArea = "files";
constexpr Duration kUnsaid = std::chrono::seconds(2);  // a wait that needs no words

}  // namespace

LastWrites::LastWrites(boost::asio::io_context& loop, Clock& clock, logs::Console& console,
                       files::BlockingCalls& files)
    : loop_(loop), console_(console), files_(files), clock_(clock), alarm_(clock.make_alarm()) {}

void LastWrites::wait(bool console) {
  with_console_ = console;
  waiting_ = true;
  over_ = false;
  loop_.restart();
  look();
  if (!over_) {
    before_ = progress();
    alarm_->arm(clock_.now() + kUnsaid, [this] { say(); });
    loop_.run();
  }
  alarm_->disarm();
  console_.when_idle({});
  waiting_ = false;
}

/// Asks the thread once: it may be done between two questions, and nobody would look again.
void LastWrites::look() {
  if (with_console_) console_.tell_gaps();
  const bool files = files_done();
  over_ = files && console_done();
  if (over_) return loop_.stop();
  if (!console_done()) console_.when_idle([this] { look(); });
  // Calls are made in order: the answer to this one comes after all before, but for those that go
  // on.
  if (!files && !std::exchange(marked_, true)) {
    files_.make(
        "the end", [] { return 0; },
        [this](int) {
          marked_ = false;
          look();
        });
  }
}

std::string LastWrites::waited_for() const {
  const auto file = files_given_up_ ? std::string() : files_.busy_with();
  return file.empty() ? "the reader of the output" : file;
}

void LastWrites::say() {
  log::warning(kArea,
               "waiting for {}, which does not take what is left of this run's output; up to {} as "
               "long as it takes nothing, a signal ends the wait",
               waited_for(), format_duration(kPatience));
  before_ = progress();
  alarm_->arm(clock_.now() + kPatience, [this] { give_up_if_stuck(); });
}

void LastWrites::give_up_if_stuck() {
  if (const auto now = progress(); now != before_) {
    before_ = now;
    return alarm_->arm(clock_.now() + kPatience, [this] { give_up_if_stuck(); });
  }
  log::error(kArea, "{} took nothing within {}: what is left for it is lost", waited_for(),
             format_duration(kPatience));
  give_up();
}

void LastWrites::hurry() {
  log::error(kArea, "a signal came: what {} has not taken is lost", waited_for());
  give_up();
}

void LastWrites::give_up() {
  files_given_up_ = !files_done() || files_given_up_;
  over_ = true;
  loop_.stop();
}

}  // namespace elastrun::agent
