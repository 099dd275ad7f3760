// SPDX-License-Identifier: Apache-2.0
#include "telemetry/route.hpp"

#include <algorithm>

namespace elastrun::telemetry {
namespace {

bool fits(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return true;
  if (pattern.back() != '*') return pattern == text;
  pattern.remove_suffix(1);
  return text.starts_with(pattern);
}

/// Tells the time only: the process's pipeline belongs to no loop.
class KernelClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
  WallTime wall() const override { return std::chrono::system_clock::now(); }
  std::unique_ptr<Alarm> make_alarm() override { return nullptr; }
};

}  // namespace

bool Selector::matches(const Record& record) const {
  return (!kind || *kind == record.kind) && fits(scope, record.scope) && fits(name, record.name);
}

Pipeline::Pipeline(const Clock& clock) : clock_(clock) {}

RouteId Pipeline::route(Selector selector, std::shared_ptr<Sink> sink) {
  routes_.push_back({next_id_, std::move(selector), std::move(sink)});
  return next_id_++;
}

bool Pipeline::unroute(RouteId id) {
  const auto found = std::find_if(routes_.begin(), routes_.end(), [id](const Route& route) {
    return route.id == id && route.sink != nullptr;
  });
  if (found == routes_.end()) return false;
  found->sink.reset();  // places in the list stay while somebody walks it
  sweep();
  return true;
}

void Pipeline::sweep() {
  if (delivering_) return;
  std::erase_if(routes_, [](const Route& route) { return route.sink == nullptr; });
}

bool Pipeline::wants(std::string_view scope) const {
  return std::any_of(routes_.begin(), routes_.end(), [scope](const Route& route) {
    return route.sink != nullptr && fits(route.selector.scope, scope);
  });
}

void Pipeline::deliver(const Record& record) {
  // Routes that a sink adds now are for later records.
  const std::size_t count = routes_.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (routes_[i].sink == nullptr || !routes_[i].selector.matches(record)) continue;
    const auto sink = routes_[i].sink;  // lives on though it unroutes itself
    try {
      sink->consume(record);
    } catch (...) {  // foreign code: whatever it throws is its own loss
      lost_ += 1;
    }
  }
}

void Pipeline::emit(Record record) {
  if (routes_.empty()) return;
  if (delivering_) {
    waiting_.push_back(std::move(record));
    return;
  }
  delivering_ = true;
  deliver(record);
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    const Record next = std::move(waiting_[i]);
    deliver(next);
  }
  waiting_.clear();
  delivering_ = false;
  sweep();
}

void Pipeline::event(std::string scope, std::string name, std::vector<Attribute> attributes) {
  if (!wants(scope)) return;
  emit(
      {Record::Kind::Event, stamp(), std::move(scope), std::move(name), {}, std::move(attributes)});
}

void Pipeline::sample(std::string scope, std::string name, Value value) {
  if (!wants(scope)) return;
  emit({Record::Kind::Sample, stamp(), std::move(scope), std::move(name), std::move(value), {}});
}

void Pipeline::flush(TimePoint deadline) {
  const auto routes = routes_;  // a sink may unroute itself when it is flushed
  for (const auto& route : routes) {
    if (route.sink == nullptr) continue;
    try {
      route.sink->flush(deadline);
    } catch (...) {
      lost_ += 1;
    }
  }
}

std::uint64_t Pipeline::lost() const {
  return lost_;
}

Pipeline& process_pipeline() {
  static const KernelClock clock;
  static Pipeline pipeline(clock);
  return pipeline;
}

}  // namespace elastrun::telemetry
