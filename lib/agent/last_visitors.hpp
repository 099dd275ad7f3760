// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/round_store.hpp"
#include "core/clock.hpp"
#include "core/log.hpp"
#include "core/text.hpp"

#include <functional>
#include <memory>
#include <utility>

namespace elastrun::agent {

/// At the end of a node that has served the store of a round: workers of the other nodes may be
/// saving, with the help of the store. It stays until they have hung up.
class LastVisitors {
 public:
  LastVisitors(Clock& clock, RoundStore& store)
      : clock_(clock), store_(store), alarm_(clock.make_alarm()) {}

  /// Runs `then` once nobody is there, or `limit` is over: at once if nobody is. In one log line if
  /// that takes long.
  void await(Duration limit, std::function<void()> then) {
    store_.rounds_are_over();
    limit_ = limit;
    since_ = clock_.now();
    then_ = std::move(then);
    look();
  }

 private:
  static constexpr Duration kLook = std::chrono::milliseconds(20);
  static constexpr Duration kLong = std::chrono::seconds(1);

  void look() {
    const TimePoint now = clock_.now();
    const auto visitors = store_.serves_others() ? store_.visitors() : 0;
    if (visitors == 0 || now >= since_ + limit_) return std::exchange(then_, {})();
    if (now >= since_ + kLong && !std::exchange(told_, true)) {
      log::info("agent",
                "{} connections of workers on other nodes to the store of this node are open: it "
                "stays until they have ended, for {} at most",
                visitors, format_duration(since_ + limit_ - now));
    }
    alarm_->arm(now + kLook, [this] { look(); });
  }

  Clock& clock_;
  RoundStore& store_;
  const std::unique_ptr<Alarm> alarm_;
  Duration limit_{};
  TimePoint since_;
  std::function<void()> then_;
  bool told_ = false;
};

}  // namespace elastrun::agent
