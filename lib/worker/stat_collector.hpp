// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fork_lock.hpp"
#include "name_pattern.hpp"
#include "stat_book.hpp"
#include "stat_choice.hpp"
#include "stat_core.hpp"
#include "stat_window.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::worker {
/// What all Stats have seen since the last question, whatever their own windows are (RFC-0018):
///
///     elastrun::worker::Collector collector("train.*", {{"train.step", {Aggregation::P95}}});
///     for (const auto& [name, value] : collector.report()) writer.add_scalar(name, value);
///     collector.reset();
///
/// Of the Stats whose name matches `pattern`, those that exist and those that are made later.
/// `aggregations` by name or pattern take the place of a Stat's own; the first that matches counts.
/// Another thread may ask it.
class Collector final : private detail::StatListener {
 public:
  using Aggregations = std::vector<std::pair<std::string, std::vector<Aggregation>>>;

  explicit Collector(std::string pattern = "*", Aggregations aggregations = {})
      : pattern_(std::move(pattern)), instead_(std::move(aggregations)) {
    detail::stat_book.add(*this);
  }
  ~Collector() {
    detail::stat_book.remove(*this);
    for (const auto& core : detail::stat_book.living(pattern_)) {
      const detail::Shared turn;
      core->leave(seen_[core->name].window);
    }
  }
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

  /// NAME.AGGREGATION of what was added since reset(). NAME.count is always there, and 0 where
  /// nothing was added; then COUNT and SUM are all there is, as the others have no value.
  std::map<std::string, double> report() {
    for (const auto& core : detail::stat_book.living(pattern_)) core->observe();
    std::map<std::string, double> told;
    const detail::Shared turn;
    for (auto& [name, one] : seen_) {
      one.window.settle();
      told[name + ".count"] = static_cast<double>(one.window.count());
      for (const auto chosen : one.chosen) {
        if (one.window.count() == 0 && chosen != Aggregation::Sum) continue;
        told[name + '.' + detail::kAggregations[static_cast<int>(chosen)]] = one.window.of(chosen);
      }
    }
    return told;
  }
  /// The buckets of one, as Stat::histogram(); none, if it has not been seen.
  std::vector<std::pair<double, std::uint64_t>> histogram(const std::string& name) {
    const detail::Shared turn;
    const auto found = seen_.find(name);
    if (found == seen_.end()) return {};
    found->second.window.settle();
    return found->second.window.sketch().buckets();
  }
  /// Forgets what was added, not which Stats there are.
  void reset() {
    const detail::Shared turn;
    for (auto one = seen_.begin(); one != seen_.end();) {
      one->second.window = detail::StatWindow(one->second.chosen);
      // One that has ended has been reported.
      one = detail::stat_book.find(one->first) == nullptr ? seen_.erase(one) : std::next(one);
    }
  }

 private:
  struct Seen {
    std::vector<Aggregation> chosen{};
    detail::StatWindow window{};
  };
  void notice(detail::StatCore& core) override {
    if (!detail::fits(pattern_, core.name)) return;
    const auto [place, fresh] = seen_.try_emplace(core.name);
    if (fresh) {
      const auto instead = std::find_if(instead_.begin(), instead_.end(), [&](const auto& one) {
        return detail::fits(one.first, core.name);
      });
      auto& [chosen, window] = place->second;
      chosen = instead == instead_.end() ? core.aggregations : instead->second;
      window = detail::StatWindow(chosen);
    }
    core.tap(place->second.window);
  }

  const std::string pattern_;
  const Aggregations instead_;
  std::map<std::string, Seen> seen_;  // under the lock
};

}  // namespace elastrun::worker
