// SPDX-License-Identifier: Apache-2.0

#include "agent/files/run_files.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

#include <boost/asio/post.hpp>
#include <functional>
#include <utility>

namespace elastrun::agent {
namespace {

constexpr std::string_view kDrainArea = "agent";
// Polled, because the store tells of workers that come and not of those that go.
constexpr Duration kDrainLook = std::chrono::milliseconds(20);
// Workers of other nodes mostly end within it, which needs no words.
constexpr Duration kLong = std::chrono::seconds(1);

std::size_t visitors_at(const RoundStore& store) {
  return store.serves_others() ? store.visitors() : 0;
}

}  // namespace

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

namespace {

bool is_round(const rendezvous::Push& push) {
  return std::holds_alternative<rendezvous::RoundReady>(push);
}

bool ends_round(const rendezvous::Push& push, const std::string& role) {
  const auto* restart = std::get_if<rendezvous::Restart>(&push);
  return (restart != nullptr && restart->is_for(role)) ||
         std::holds_alternative<rendezvous::Done>(push) ||
         std::holds_alternative<rendezvous::Lost>(push);
}

}  // namespace

void RoundGate::hear(rendezvous::Push push) {
  // The agent never hears of a round that ended before its directories were made.
  if (ends_round(push, run_.spec.role) && std::erase_if(held_, is_round) > 0) dropped_ = preparing_;
  held_.push_back(std::move(push));
  pass_on();
}

void RoundGate::prepare(const rendezvous::Round& round) {
  preparing_ = true;
  prepare_(round, [this, alive = lifetime_.token()] {
    if (!alive) return;
    preparing_ = false;
    // What ended the round meanwhile has dropped it.
    prepared_ = !std::exchange(dropped_, false);
    pass_on();
  });
}

void RoundGate::pass_on() {
  while (!held_.empty()) {
    if (const auto* ready = std::get_if<rendezvous::RoundReady>(&held_.front())) {
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

using files::Lane;

RunFiles::RunFiles(RunContext& run, logs::Layout& layout, WorkerChannel& channel, bool near,
                   bool keeps_output)
    : run_(run),
      layout_(layout),
      channel_(channel),
      near_(near),
      keeps_output_(keeps_output),
      folders_(run.lanes[Lane::Folders], run.clock, layout, run.spec.nproc_per_node, near,
               [&channel](auto place) { channel.open(std::move(place)); }),
      gate_(run, std::bind_front(&LogFolders::prepare, &folders_)),
      last_writes_(run.loop, run.clock, run.console,
                   {&run.lanes[Lane::Logs], &run.lanes[Lane::Syncs], &run.lanes[Lane::Reports],
                    &run.lanes[Lane::Errors], &run.lanes[Lane::Folders]},
                   run.spec.shutdown_timeout),
      store_drain_(run.loop, run.clock) {}

std::string RunFiles::channel_path() {
  if (near_) channel_.look_in(layout_.run_directory());
  return channel_.path();
}

bool RunFiles::signalled(process::Demand demand) {
  using process::Demand;
  if (last_writes_.waiting()) {
    if (demand == Demand::Stop) last_writes_.shorten();
    if (demand == Demand::KillNow) last_writes_.give_up_now();
    return true;
  }
  if (!store_drain_.waiting()) return false;
  if (demand != Demand::Nothing) store_drain_.hear_signal(demand == Demand::KillNow);
  return true;
}

std::string RunFiles::settle(bool succeeded) {
  const auto& root = layout_.temporary_root();
  const bool keeps = keeps_output_;
  auto fate = logs::Fate::Kept;  // and named in the report
  if (!root.empty() && !(keeps && !succeeded)) {
    fate = folders_.settle(last_writes_, keeps, keeps || !succeeded);
  }
  if (fate != logs::Fate::Stays) run_.guardian.forget(root);
  return fate == logs::Fate::Kept ? layout_.run_directory() : std::string();
}

void RunFiles::finish(RoundStore& store, Duration store_needed) {
  last_writes_.give_up_on({&run_.lanes[Lane::Folders]});  // nothing is lost there
  if (folders_.is_unanswered()) {
    last_writes_.lose({&run_.lanes[Lane::Logs], &run_.lanes[Lane::Syncs]});
  }
  last_writes_.wait(true);
  // After our own files, which are complete then, whatever ends this wait for workers of other
  // nodes. What it has logged itself is written by the wait that follows.
  store_drain_.wait(store, store_needed);
  last_writes_.wait(true);
}

}  // namespace elastrun::agent
