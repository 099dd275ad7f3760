// SPDX-License-Identifier: Apache-2.0

#include "agent/files/run_files.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <utility>

namespace elastrun::agent {
namespace {

using files::Lane;

constexpr std::string_view kFilesArea = "files";
constexpr Duration kUnsaid = std::chrono::seconds(2);  // a wait that needs no words

bool is_round(const rendezvous::Push& push) {
  return std::holds_alternative<rendezvous::RoundReady>(push);
}

bool ends_round(const rendezvous::Push& push, const std::string& role) {
  const auto* restart = std::get_if<rendezvous::Restart>(&push);
  return (restart != nullptr && restart->is_for(role)) ||
         std::holds_alternative<rendezvous::Done>(push) ||
         std::holds_alternative<rendezvous::Lost>(push);
}

constexpr std::string_view kDrainArea = "agent";
// Polled, because the store tells of workers that come and not of those that go.
constexpr Duration kDrainLook = std::chrono::milliseconds(20);
// Workers of other nodes mostly end within it, which needs no words.
constexpr Duration kLong = std::chrono::seconds(1);

std::size_t visitors_at(const RoundStore& store) {
  return store.serves_others() ? store.visitors() : 0;
}

}  // namespace

void LastWrites::wait(bool console) {
  with_console_ = console;
  waiting_ = true;
  over_ = false;
  // It has run out of work or was stopped when the job ended, and would return at once.
  loop_.restart();
  look();
  if (!over_) {
    alarm_->arm(clock_.now() + kUnsaid / 2, [this] {
      remember();
      alarm_->arm(clock_.now() + kUnsaid / 2, [this] { say(); });
    });
    if (until_) {
      // The time that a signal has left may be over, and what comes last, as the report, has not
      // been tried yet.
      until_ = std::max(*until_, clock_.now() + kUnsaid);
      arm_limit();
    }
    loop_.run();
  }
  alarm_->disarm();
  limit_alarm_->disarm();
  console_.when_idle({});
  waiting_ = false;
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

void LastWrites::say() {
  if (brief_) {
    if (stands_still()) return loop_.stop();
    remember();
    return alarm_->arm(clock_.now() + kUnsaid / 2, [this] { say(); });
  }
  if (!until_) {
    log::warning(kFilesArea,
                 "waiting for {} to take what is left of this run's output; up to {} as long as "
                 "nothing is taken, a signal limits it to {}",
                 waited_for(), format_duration(kTimeLimit), format_duration(limit_));
  }
  // The line is written to a file, too, which does not count as progress of what is waited for.
  alarm_->arm(clock_.now() + kUnsaid / 2, [this] {
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

struct RunFiles::Made {
  logs::Layout layout;
  Result<Folders> folders;
  std::optional<workers::Channel::MaybePlace> place;
};

void RunFiles::pass(rendezvous::Push push) {
  // The agent never hears of a round that ended before its directories were made.
  if (ends_round(push, run_.spec.role) && std::erase_if(held_, is_round) > 0) dropped_ = preparing_;
  held_.push_back(std::move(push));
  pass_on();
}

void RunFiles::pass_on() {
  while (!held_.empty()) {
    const auto* ready = std::get_if<rendezvous::RoundReady>(&held_.front());
    if (ready != nullptr && !near_) {
      // What was told after this round waits behind it: the agent hears all in the order of the
      // coordinator.
      if (preparing_) return;
      if (!std::exchange(prepared_, false)) return prepare(ready->round);
    }
    // Taken out first: what hears it may lead back here.
    auto push = std::move(held_.front());
    held_.pop_front();
    run_.post(Pushed{std::move(push)});
  }
}

void RunFiles::prepare(const rendezvous::Round& round) {
  preparing_ = unanswered_ = true;
  const auto now = clock_.now();
  said_->arm(now + kUnsaid, [this] { say(); });
  limit_->arm(now + kTimeLimit, [this] { give_up(); });
  files_.make(
      what(),
      [layout = layout_, attempt = round.attempt, workers = run_.spec.nproc_per_node,
       first = !channel_.tried(), channel = channel_.path()]() mutable {
        auto folders = make_folders(layout, attempt, workers);
        std::optional<workers::Channel::MaybePlace> place;
        // Once more where a cleaner of temporary files has removed the name: by it no new worker
        // can connect.
        const bool wanted = first || (!channel.empty() && workers::ChannelPlace::is_gone(channel));
        if (wanted && folders) place = workers::ChannelPlace::find(layout.run_directory());
        return Made{std::move(layout), std::move(folders), std::move(place)};
      },
      // An answer may come after its round was given up, and belong to none.
      [this, asked = ++asked_](Made made) {
        if (asked == asked_ && preparing_) answered(std::move(made));
      });
}

void RunFiles::answered(Made made) {
  said_->disarm();
  limit_->disarm();
  unanswered_ = false;
  // Only now and here, on the loop: the thread has worked on a copy, since it may still hang when
  // the run ends.
  layout_ = std::move(made.layout);
  layout_.say_remark();
  folders_ = std::move(made.folders);
  if (made.place) channel_.open(std::move(*made.place));
  go_on();
}

void RunFiles::give_up() {
  // The error names the option that the user can change.
  const bool is_named = !layout_.is_temporary() && !layout_.is_null();
  folders_ = fail(Code::Io, fmt::format("cannot make {}: the file system has not answered within "
                                        "{}; choose another place with {}",
                                        what(), format_duration(kTimeLimit),
                                        is_named ? "--log-dir" : "TMPDIR"));
  go_on();
}

void StoreDrain::wait(RoundStore& store, Duration limit) {
  if (limit <= Duration::zero() || visitors_at(store) == 0) return;
  // From here on dead peers are looked for: this stay ends before a scheduler sends SIGKILL.
  store.rounds_are_over();
  store_ = &store;
  since_ = clock_.now();
  until_ = since_ + limit;
  waiting_ = true;
  loop_.restart();
  alarm_->arm(since_, [this] { look(); });
  // One at a time, because the end of this wait is a flag, which a signal may set as well.
  while (waiting_ && loop_.run_one() > 0) {
  }
  waiting_ = false;
  alarm_->disarm();
}

void StoreDrain::look() {
  const TimePoint now = clock_.now();
  const auto visitors = visitors_at(*store_);
  if (visitors == 0 || now >= until_) {
    waiting_ = false;
    return;
  }
  if (now >= since_ + kLong && !std::exchange(told_, true)) {
    log::info(kDrainArea,
              "{} connections of workers on other nodes to the store of this node are open: it "
              "stays until they have ended, for {} at most; a second signal ends that at once",
              visitors, format_duration(until_ - now));
  }
  alarm_->arm(now + kDrainLook, [this] { look(); });
}

void StoreDrain::hear_signal(bool insisted) {
  if (insisted) {
    log::warning(kDrainArea,
                 "a signal came again: workers on other nodes lose the store of this node");
    waiting_ = false;
    return boost::asio::post(loop_, [] {});  // which looks at that
  }
  log::warning(kDrainArea,
               "the job has ended here; this node serves {} connections of workers on other nodes, "
               "for {} at most; once more ends that at once",
               visitors_at(*store_), format_duration(until_ - clock_.now()));
}

RunFiles::RunFiles(RunContext& run, logs::Layout& layout, workers::Channel& channel, bool near,
                   bool keeps_output)
    : run_(run),
      files_(run.lanes[Lane::Folders]),
      layout_(layout),
      channel_(channel),
      near_(near),
      keeps_output_(keeps_output),
      last_writes_(run.loop, run.clock, run.console,
                   {&run.lanes[Lane::Logs], &run.lanes[Lane::Syncs], &run.lanes[Lane::Reports],
                    &run.lanes[Lane::Errors], &run.lanes[Lane::Folders]},
                   run.spec.shutdown_timeout),
      store_drain_(run.loop, run.clock),
      clock_(run.clock),
      said_(clock_.make_alarm()),
      limit_(clock_.make_alarm()) {}

logs::Fate RunFiles::settle_root(bool keep) {
  const auto& root = layout_.temporary_root();
  if (near_) return logs::settle(root, keep);
  const auto fate = std::make_shared<std::optional<logs::Fate>>();
  const auto kept = std::make_shared<std::atomic<bool>>(false);
  const auto wait = [this] {
    keeps_output_ ? last_writes_.wait(false) : void(last_writes_.give_up_on({&files_}));
  };
  wait();
  files_.make(
      root, [root, keep, kept] { return *kept ? logs::Fate::Kept : logs::settle(root, keep); },
      [fate](logs::Fate is) { *fate = is; });
  wait();
  unanswered_ = unanswered_ || !*fate;
  // What may explain a failure is not for the guardian, which would remove it unseen; it is named,
  // and not to go when this is told.
  *kept = !*fate && keep;
  return fate->value_or(keep ? logs::Fate::Kept : logs::Fate::Stays);
}

void RunFiles::finish(RoundStore& store, Duration store_needed) {
  last_writes_.give_up_on({&files_});  // nothing is lost there
  if (unanswered_) {
    last_writes_.lose({&run_.lanes[Lane::Logs], &run_.lanes[Lane::Syncs]});
  }
  last_writes_.wait(true);
  // After our own files, which are complete then, whatever ends this wait for workers of other
  // nodes. What it has logged itself is written by the wait that follows.
  store_drain_.wait(store, store_needed);
  last_writes_.wait(true);
}

}  // namespace elastrun::agent
