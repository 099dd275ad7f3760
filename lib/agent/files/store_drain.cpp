// SPDX-License-Identifier: Apache-2.0
#include "agent/files/store_drain.hpp"

#include "core/log.hpp"
#include "core/text.hpp"

#include <boost/asio/post.hpp>
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

}  // namespace elastrun::agent
