// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/record.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::telemetry {

/// Where records end: console, journal, exporter. A sink that throws or fails loses its own
/// records, counted, and disturbs no other sink.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void consume(const Record& record) = 0;
  /// Everything consumed so far is out, or never will be, by `deadline`.
  virtual void flush(TimePoint deadline) { (void)deadline; }
};

/// Which records a route carries. Empty fields match all; a scope or name may end in `*`.
struct Selector {
  std::string scope{}, name{};
  std::optional<Record::Kind> kind{};
  Severity at_least = Severity::Trace;
  bool each = false;  // samples that were put, one by one, and not those that sum them up
  bool matches(const Record& record) const;
  /// The same for a series, of which scope and name count.
  bool matches(std::string_view of_scope, std::string_view of_name) const;
};

using RouteId = std::uint64_t;

/// The pipeline: instruments and events in, routes to sinks out; one way. Emitting returns nothing,
/// never fails and never blocks. With no route nothing is built and nothing is written.
///
/// For all threads. One record is delivered at a time, by the thread that emitted it, and no lock
/// is held meanwhile: sinks need none of their own, and one may emit, route or unroute from inside
/// consume(). What is emitted meanwhile, by a sink or another thread, is delivered after the record
/// in hand, in order, by the thread that is delivering; of more than kWaiting the oldest go.
class Pipeline {
 public:
  static constexpr std::size_t kWaiting = 65'536;
  explicit Pipeline(const Clock& clock);
  RouteId route(Selector selector, std::shared_ptr<Sink> sink) {
    return route_any({std::move(selector)}, std::move(sink));
  }
  /// The sink gets what fits any of `selectors`, once.
  RouteId route_any(std::vector<Selector> selectors, std::shared_ptr<Sink> sink);
  /// False if the id is not known. Another thread may still be inside the sink.
  bool unroute(RouteId id);
  /// Whether anybody would get a record of this scope: lets callers skip building one.
  bool wants(std::string_view scope) const { return has_routes() && asks_for(scope); }
  /// Costs one load.
  bool has_routes() const { return any_.load(std::memory_order_relaxed); }
  /// Whether anybody would get single samples of this scope (Detail::Each).
  bool wants_each(std::string_view scope) const;
  /// Whether any route carries records of this kind.
  bool carries(Record::Kind kind) const;
  void emit(Record record);
  /// An event stamped now.
  void event(std::string scope, std::string name, std::vector<Attribute> attributes = {},
             Severity severity = Severity::Info);
  /// A sample stamped now.
  void sample(std::string scope, std::string name, Value value, Detail detail = Detail::Whole);
  void flush(TimePoint deadline);
  std::uint64_t lost() const { return lost_; }        // records that sinks refused by throwing
  std::uint64_t dropped() const { return dropped_; }  // that waited among too many
  const Clock& clock() const { return clock_; }

 private:
  struct Route {
    RouteId id;
    std::vector<Selector> selectors;
    std::shared_ptr<Sink> sink;
    std::atomic<bool> off{false};
  };
  using Routes = std::vector<std::shared_ptr<Route>>;
  bool asks_for(std::string_view scope) const;
  bool any_selector(auto fits) const;
  std::shared_ptr<const Routes> routes() const;
  void replace(Routes routes);
  Stamp stamp() const { return {clock_.now(), clock_.wall()}; }
  void deliver(const Record& record);

  const Clock& clock_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Routes> routes_ = std::make_shared<const Routes>();  // never changed
  std::atomic<bool> any_{false};
  std::deque<Record> waiting_;  // emitted while another record is being delivered
  bool delivering_ = false;
  RouteId next_id_ = 1;
  std::atomic<std::uint64_t> lost_{0}, dropped_{0};
};

/// The pipeline of this process, for facades that are called without one (`metrics::put_metric` in
/// a user's launcher) and for the agent they are meant for. Made on first use, by the kernel's
/// clocks; it makes no alarms.
Pipeline& process_pipeline();

}  // namespace elastrun::telemetry
