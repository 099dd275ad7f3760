// SPDX-License-Identifier: Apache-2.0
#include "telemetry/route.hpp"

#include "core/system_clock.hpp"

#include <algorithm>

namespace elastrun::telemetry {
namespace {

bool fits(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return true;
  if (pattern.back() != '*') return pattern == text;
  pattern.remove_suffix(1);
  return text.starts_with(pattern);
}

}  // namespace

bool Selector::matches(const Record& record) const {
  const bool fitting = record.detail == Detail::Whole || (record.detail == Detail::Each) == each;
  return fitting && (!kind || *kind == record.kind) && record.severity >= at_least &&
         matches(record.scope, record.name);
}

bool Selector::matches(std::string_view of_scope, std::string_view of_name) const {
  return fits(scope, of_scope) && fits(name, of_name);
}

Pipeline::Pipeline(const Clock& clock) : clock_(clock) {}

std::shared_ptr<const Pipeline::Routes> Pipeline::routes() const {
  const std::lock_guard lock(mutex_);
  return routes_;
}

void Pipeline::replace(Routes routes) {
  // So that emit() without any sink costs a load, and no lock.
  any_.store(!routes.empty(), std::memory_order_relaxed);
  // A new list for each change: delivery walks the old one without the lock, so a sink may unroute.
  routes_ = std::make_shared<const Routes>(std::move(routes));
}

RouteId Pipeline::route_any(std::vector<Selector> selectors, std::shared_ptr<Sink> sink) {
  const std::lock_guard lock(mutex_);
  Routes routes = *routes_;
  const RouteId id = next_id_++;
  routes.push_back(std::make_shared<Route>(id, std::move(selectors), std::move(sink)));
  replace(std::move(routes));
  return id;
}

bool Pipeline::unroute(RouteId id) {
  std::shared_ptr<Route> left;  // outlives the lock: the end of its sink is foreign code
  const std::lock_guard lock(mutex_);
  Routes routes = *routes_;
  const auto found = std::find_if(routes.begin(), routes.end(),
                                  [id](const auto& route) { return route->id == id; });
  if (found == routes.end()) return false;
  left = std::move(*found);
  left->off = true;  // a thread may be walking the old list
  routes.erase(found);
  replace(std::move(routes));
  return true;
}

bool Pipeline::any_selector(auto fits) const {
  const auto known = routes();
  return std::ranges::any_of(
      *known, [&](const auto& route) { return std::ranges::any_of(route->selectors, fits); });
}

bool Pipeline::asks_for(std::string_view scope) const {
  return any_selector([scope](const Selector& one) { return fits(one.scope, scope); });
}

bool Pipeline::wants_each(std::string_view scope) const {
  return any_selector([scope](const Selector& one) { return one.each && fits(one.scope, scope); });
}

bool Pipeline::carries(Record::Kind kind) const {
  return any_selector([kind](const Selector& one) { return one.kind.value_or(kind) == kind; });
}

void Pipeline::deliver(const Record& record) {
  const auto known = routes();  // routes that a sink adds now are for later records
  for (const auto& route : *known) {
    const bool fitting = std::ranges::any_of(
        route->selectors, [&](const Selector& one) { return one.matches(record); });
    if (route->off || !fitting) continue;
    try {
      route->sink->consume(record);
    } catch (...) {  // foreign code: whatever it throws is its own loss
      lost_ += 1;
    }
  }
}

void Pipeline::emit(Record record) {
  if (!has_routes()) return;
  {
    const std::lock_guard lock(mutex_);
    // A sink may emit, and threads meet here: one of them delivers, the others leave it their
    // records.
    if (delivering_) {
      if (waiting_.size() >= kWaiting) {
        waiting_.pop_front();
        // The oldest goes: a sink that emits two records for each one would fill the memory.
        dropped_ += 1;
      }
      waiting_.push_back(std::move(record));
      return;
    }
    delivering_ = true;
  }
  for (;;) {
    deliver(record);
    const std::lock_guard lock(mutex_);
    // Decided under the same lock as the end: a thread that comes after it delivers by itself, so
    // no record is left behind.
    delivering_ = !waiting_.empty();
    if (!delivering_) return;
    record = std::move(waiting_.front());
    waiting_.pop_front();
  }
}

void Pipeline::event(std::string scope, std::string name, std::vector<Attribute> attributes,
                     Severity severity) {
  if (!wants(scope)) return;
  emit({Record::Kind::Event,
        stamp(),
        std::move(scope),
        std::move(name),
        {},
        std::move(attributes),
        severity});
}

void Pipeline::sample(std::string scope, std::string name, Value value, Detail detail) {
  if (!wants(scope)) return;
  emit({.kind = Record::Kind::Sample,
        .stamp = stamp(),
        .scope = std::move(scope),
        .name = std::move(name),
        .value = std::move(value),
        .attributes = {},
        .detail = detail});
}

void Pipeline::flush(TimePoint deadline) {
  const auto known = routes();
  for (const auto& route : *known) {
    if (route->off) continue;
    try {
      route->sink->flush(deadline);
    } catch (...) {
      lost_ += 1;
    }
  }
}

Pipeline& process_pipeline() {
  // It tells the time only: the process's pipeline belongs to no loop. Never destroyed, as
  // process_registry() asks it until the very end.
  static Clock& clock = *make_system_clock({}).release();
  static Pipeline pipeline(clock);
  return pipeline;
}

}  // namespace elastrun::telemetry
