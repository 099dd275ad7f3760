// SPDX-License-Identifier: Apache-2.0
#include "agent/files/log_folders.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

#include <atomic>
#include <fmt/format.h>
#include <utility>

namespace elastrun::agent {
namespace {

constexpr Duration kUnsaid = std::chrono::seconds(2);  // a wait that needs no words

}  // namespace

struct LogFolders::Made {
  logs::Layout layout;
  Result<Folders> folders;
  std::optional<MaybePlace> place;
};

LogFolders::LogFolders(files::BlockingCalls& files, Clock& clock, logs::Layout& layout, int workers,
                       bool near, std::function<void(MaybePlace)> channel_found)
    : files_(files),
      layout_(layout),
      workers_(workers),
      near_(near),
      channel_found_(std::move(channel_found)),
      clock_(clock),
      said_(clock_.make_alarm()),
      limit_(clock_.make_alarm()) {}

void LogFolders::prepare(const rendezvous::Round& round, std::function<void()> done) {
  if (near_) return done();
  done_ = std::move(done);
  unanswered_ = true;
  const auto now = clock_.now();
  said_->arm(now + kUnsaid, [this] { say(); });
  limit_->arm(now + kTimeLimit, [this] { give_up(); });
  files_.make(
      what(),
      [layout = layout_, attempt = round.attempt, workers = workers_, first = !channel_tried_,
       channel = channel_]() mutable {
        auto folders = make_folders(layout, attempt, workers);
        std::optional<MaybePlace> place;
        // Once more where a cleaner of temporary files has removed the name: by it no new worker
        // can connect.
        const bool wanted = first || (!channel.empty() && workers::ChannelPlace::is_gone(channel));
        if (wanted && folders) place = workers::ChannelPlace::find(layout.run_directory());
        return Made{std::move(layout), std::move(folders), std::move(place)};
      },
      // An answer may come after its round was given up, and belong to none.
      [this, asked = ++asked_](Made made) {
        if (asked == asked_ && done_) answered(std::move(made));
      });
}

void LogFolders::answered(Made made) {
  said_->disarm();
  limit_->disarm();
  unanswered_ = false;
  // Only now and here, on the loop: the thread has worked on a copy, since it may still hang when
  // the run ends.
  layout_ = std::move(made.layout);
  layout_.say_remark();
  folders_ = std::move(made.folders);
  if (made.place) {
    channel_tried_ = true;
    channel_ = *made.place ? (**made.place)->path : std::string();
    channel_found_(std::move(*made.place));
  }
  std::exchange(done_, {})();
}

std::string LogFolders::what() const {
  const auto& run = layout_.run_directory();
  if (run.empty()) return "the temporary directory of this run";
  return fmt::format("the directories of the workers' logs in {}", run);
}

void LogFolders::say() const {
  log::warning("files",
               "waiting for {}: the file system does not answer. The workers start when it does; "
               "after {} the start fails, and a signal ends the job at once",
               what(), format_duration(kTimeLimit));
}

void LogFolders::give_up() {
  // The error names the option that the user can change.
  const bool is_named = !layout_.is_temporary() && !layout_.is_null();
  folders_ = fail(Code::Io, fmt::format("cannot make {}: the file system has not answered within "
                                        "{}; choose another place with {}",
                                        what(), format_duration(kTimeLimit),
                                        is_named ? "--log-dir" : "TMPDIR"));
  std::exchange(done_, {})();
}

logs::Fate LogFolders::settle(LastWrites& writes, bool waits, bool keep) {
  const auto& root = layout_.temporary_root();
  if (near_) return logs::settle(root, keep);
  // What may explain a failure is not for the guardian, which would remove it unseen.
  const bool unseen = !waits && !keep;
  const auto fate = std::make_shared<std::optional<logs::Fate>>();
  const auto kept = std::make_shared<std::atomic<bool>>(false);
  const auto wait = [&] { waits ? writes.wait(false) : void(writes.give_up_on({&files_})); };
  wait();
  files_.make(
      root, [root, keep, kept] { return *kept ? logs::Fate::Kept : logs::settle(root, keep); },
      [fate](logs::Fate is) { *fate = is; });
  wait();
  unanswered_ = unanswered_ || !*fate;
  *kept = !*fate && !unseen;  // and named: it is not to go when this is told
  return fate->value_or(unseen ? logs::Fate::Stays : logs::Fate::Kept);
}

Result<Folders> LogFolders::take(const rendezvous::Round& round) {
  if (!folders_) {
    auto made = make_folders(layout_, round.attempt, workers_);
    layout_.say_remark();
    return made;
  }
  auto made = std::move(*folders_);
  folders_.reset();
  return made;
}

}  // namespace elastrun::agent
