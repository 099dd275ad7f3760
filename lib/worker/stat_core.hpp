// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent_channel.hpp"
#include "fork_lock.hpp"
#include "packet.hpp"
#include "samples.hpp"
#include "stat_choice.hpp"
#include "stat_window.hpp"
#include "written_page.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::worker {
/// What a window of time without values is: nothing; an event of zeros; or one with NAME.count, 0,
/// alone.
enum class OnEmpty { Skip, Zero, NoData };

struct StatOptions {
  std::chrono::milliseconds window{};  // 0: none
  std::uint64_t max_samples = 0;       // 0: no limit
  std::string unit{}, help{};
  OnEmpty on_empty = OnEmpty::Skip;
};

namespace detail {
/// What all Stats of one name are. For all threads; what changes is under shared_lock.
class StatCore : public std::enable_shared_from_this<StatCore> {
 public:
  using Clock = std::chrono::steady_clock;
  using Callback = std::function<double()>;

  StatCore(std::string called, std::vector<Aggregation> chosen, StatOptions given)
      : name(std::move(called)),
        aggregations(std::move(chosen)),
        options(std::move(given)),
        open_(aggregations) {}
  inline ~StatCore();

  const std::string name;
  const std::vector<Aggregation> aggregations;
  const StatOptions options;

  bool is_same(const std::vector<Aggregation>& others, const StatOptions& other) const {
    return std::is_permutation(others.begin(), others.end(), aggregations.begin(),
                               aggregations.end()) &&
           other.window == options.window && other.max_samples == options.max_samples &&
           other.on_empty == options.on_empty;
  }
  void add(double value, Clock::time_point now) {
    close_due(now);
    put(value);
  }
  /// Until the open window ends, if something will be told then.
  std::optional<std::chrono::duration<double>> close_due(Clock::time_point now) {
    if (options.window.count() == 0) return {};
    const auto number = now.time_since_epoch() / options.window;
    if (asks_before(number)) observe();
    Over over;
    bool tells = false;
    if (const Shared turn; turn) {
      settle();
      over = advance(number);
      tells = open_.count() > 0 || options.on_empty != OnEmpty::Skip || !callbacks_.empty();
    }
    tell(over);
    if (!tells) return {};
    return (number + 1) * options.window - now.time_since_epoch();
  }
  void observe(Callback callback) {
    if (const Shared turn; turn) callbacks_.push_back(std::move(callback));
  }
  /// Asks the callbacks; one that raises costs its own value.
  void observe() {
    std::vector<Callback> asked;
    if (const Shared turn; turn) asked = callbacks_;
    for (const auto& callback : asked) {
      double value = std::numeric_limits<double>::quiet_NaN();  // is dropped, and counted
      try {
        value = callback();
      } catch (const std::exception&) {
      }
      put(value);
    }
  }
  std::uint64_t count() {
    const Shared turn;
    settle();
    return open_.count();
  }
  std::uint64_t dropped() const {
    const Shared turn;
    return dropped_;
  }
  std::shared_ptr<const StatWindow> closed() const {
    const Shared turn;
    return closed_;
  }

  // Of collectors, which have the lock.
  void tap(StatWindow& window) {
    if (std::find(taps_.begin(), taps_.end(), &window) == taps_.end()) taps_.push_back(&window);
  }
  void leave(const StatWindow& window) {
    taps_.erase(std::remove(taps_.begin(), taps_.end(), &window), taps_.end());
  }

 private:
  using Over = std::shared_ptr<const StatWindow>;

  void settle() {
    if (open_.settle()) full_ = false;
  }
  void put(double value) {
    Over full;
    if (const Shared turn; turn) {
      full = take(value);
    } else {
      Channel::instance().count_lost();
    }
    tell(full);
  }
  Over take(double value) {
    settle();
    if (full_ || !std::isfinite(value)) {
      ++dropped_;
      return {};
    }
    open_.add(value);
    for (StatWindow* const one : taps_) one->add(value);
    if (open_.count() != options.max_samples) return {};
    full_ = options.window.count() > 0;
    return turn_over();
  }
  Over turn_over() {
    closed_ = std::make_shared<const StatWindow>(std::exchange(open_, StatWindow(aggregations)));
    return closed_;
  }
  /// Whether this call is the one that asks the callbacks for the window before.
  bool asks_before(std::int64_t number) {
    const Shared turn;
    const bool asks = turn && number_ >= 0 && number != number_ && asked_ != number_;
    if (asks) asked_ = number_;
    return asks && !callbacks_.empty();
  }
  Over advance(std::int64_t number) {
    if (number == number_) return {};
    // One that was full has been told.
    const bool empty = number_ >= 0 && !full_ && options.on_empty != OnEmpty::Skip;
    number_ = number;
    full_ = false;
    if (open_.count() > 0) return turn_over();
    return empty ? std::make_shared<const StatWindow>() : Over();
  }

  void tell(const Over& over) const {
    if (over == nullptr) return;
    const bool no_data = over->count() == 0 && options.on_empty == OnEmpty::NoData;
    std::string packet = R"({"kind":"event","name":"torch.monitor.Stat","attributes":{)";
    const auto add = [&](const std::string& key, const std::string& json) {
      if (packet.back() != '{') packet += ',';
      packet += worker::quoted(key) + ':' + json;
    };
    if (no_data) add(name + ".count", "0");
    for (const auto aggregation : aggregations) {
      if (no_data || aggregation == Aggregation::Histogram) continue;
      const auto key = name + '.' + kAggregations[static_cast<int>(aggregation)];
      add(key, number(over->of(aggregation)));
      Page::instance().put(Page::instance().series("torch.monitor", key), over->of(aggregation));
    }
    if (!options.unit.empty()) add("stat.unit", worker::quoted(cut(options.unit, 64)));
    if (!options.help.empty()) add("stat.help", worker::quoted(cut(options.help, 1024)));
    worker::tell([&] { return packet + "}}"; });
    const bool drawn = std::find(aggregations.begin(), aggregations.end(),
                                 Aggregation::Histogram) != aggregations.end();
    if (drawn && over->count() > 0) tell_histogram(*over);
  }
  void tell_histogram(const StatWindow& over) const {
    worker::tell([&] {
      return R"({"kind":"metric","type":"histogram","group":"torch.monitor","name":)" +
             worker::quoted(name) + R"(,"value":)" + number(over.last()) + R"(,"count":)" +
             std::to_string(over.count()) + R"(,"sum":)" + number(over.sum()) + R"(,"min":)" +
             number(over.min()) + R"(,"max":)" + number(over.max()) + over.sketch().members() +
             about_members({{}, options.unit, options.help}) + '}';
    });
  }

  std::vector<Callback> callbacks_;
  std::vector<StatWindow*> taps_;  // of collectors
  StatWindow open_;
  Over closed_ = std::make_shared<const StatWindow>();
  std::int64_t number_ = -1, asked_ = -1;  // of the open window; of the last one with callbacks
  bool full_ = false;
  std::uint64_t dropped_ = 0;
};
}  // namespace detail

}  // namespace elastrun::worker
