// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/record.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::telemetry {

/// Where records end: console, journal, ledger, exporter. A sink that throws or fails loses its own
/// records, counted, and disturbs nobody else.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void consume(const Record& record) = 0;
  /// Everything consumed so far is out, or never will be, by `deadline`.
  virtual void flush(TimePoint deadline) { (void)deadline; }
};

/// Which records a route carries. Empty fields match all; a scope or name may end in `*`.
struct Selector {
  std::string scope, name;
  std::optional<Record::Kind> kind;
  bool matches(const Record& record) const;
};

using RouteId = std::uint64_t;

/// The pipeline: instruments and events in, routes to sinks out; one way. Emitting returns nothing,
/// never fails and never blocks. With no route nothing is built and nothing is written.
///
/// A sink may emit, route or unroute from inside consume(): such records are delivered after the
/// one in hand, in order.
class Pipeline {
 public:
  explicit Pipeline(const Clock& clock);
  RouteId route(Selector selector, std::shared_ptr<Sink> sink);
  bool unroute(RouteId id);
  /// Whether anybody would get a record of this scope: lets callers skip building one.
  bool wants(std::string_view scope) const;
  void emit(Record record);
  /// An event stamped now.
  void event(std::string scope, std::string name, std::vector<Attribute> attributes = {});
  /// A sample stamped now.
  void sample(std::string scope, std::string name, Value value);
  void flush(TimePoint deadline);
  std::uint64_t lost() const;  // records that sinks refused by throwing
  const Clock& clock() const { return clock_; }

 private:
  struct Route {
    RouteId id;
    Selector selector;
    std::shared_ptr<Sink> sink;
  };
  Stamp stamp() const { return {clock_.now(), clock_.wall()}; }
  void deliver(const Record& record);
  void sweep();

  const Clock& clock_;
  std::vector<Route> routes_;
  std::vector<Record> waiting_;  // emitted while another record is being delivered
  bool delivering_ = false;
  RouteId next_id_ = 1;
  std::uint64_t lost_ = 0;
};

/// The pipeline of this process, for facades that are called without one (`metrics::put_metric` in
/// a user's launcher) and for the agent they are meant for. Made on first use, by the kernel's
/// clocks; it makes no alarms.
Pipeline& process_pipeline();

}  // namespace elastrun::telemetry
