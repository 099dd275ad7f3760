// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/route.hpp"
#include "telemetry/windows.hpp"

#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

/// torch.monitor (RFC-0018 as it was built): a facade of the pipeline. What is logged is an Event
/// record of the scope "torch.monitor"; a Stat that closes a window is a Window record of that
/// scope, which handlers see as the event "torch.monitor.Stat".
///
/// Different from torch on purpose: a handler may log, register, unregister and use the Stat whose
/// event it handles; one that throws loses only its own event, counted; a handler that is not known
/// cannot be unregistered; windows can be closed on time; get() keeps the last window with values;
/// NaN and infinities are counted apart; Stats of one name are one, or an error.
namespace elastrun::telemetry::monitor {

using telemetry::Aggregation;
using telemetry::Aggregations;
constexpr std::string_view kScope = "torch.monitor";
constexpr std::string_view kStatEvent = "torch.monitor.Stat";
constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

struct Event {
  std::string name;  // like the qualified name of a class
  WallTime timestamp{};
  std::map<std::string, Value> data{};  // text, double, int64 or bool
  bool operator==(const Event&) const = default;
};

/// The event that a record is for handlers; nothing for records of others.
std::optional<Event> event_of(const Record& record);

class EventHandler {
 public:
  virtual ~EventHandler() = default;
  virtual void handle(const Event& event) = 0;
};
/// What register_event_handler gives and unregister_event_handler takes.
struct EventHandlerHandle {
  RouteId route = 0;
};

/// What Stats of both types have.
class AnyStat {
 public:
  virtual ~AnyStat() = default;
  /// Closes the window whose time is over, and tells when the next one is.
  virtual std::optional<TimePoint> close_due(TimePoint now) = 0;
};

/// Events and Stats of one pipeline, which it borrows. For all threads.
class Monitor {
 public:
  explicit Monitor(Pipeline& pipeline) : pipeline_(pipeline) {}

  void log_event(Event event);
  EventHandlerHandle register_event_handler(std::function<void(const Event&)> handler);
  EventHandlerHandle register_event_handler(std::shared_ptr<EventHandler> handler);
  /// False if it is not registered, or not any more.
  bool unregister_event_handler(EventHandlerHandle handle) {
    return pipeline_.unroute(handle.route);
  }
  /// Closes windows of Stats whose time is over, also when no value comes. Returns when to call
  /// again; nothing if no window is open.
  std::optional<TimePoint> close_due();

  Pipeline& pipeline() { return pipeline_; }
  /// The Stat of that name, made by `make` if there is none.
  std::shared_ptr<AnyStat> stat(const std::string& name,
                                const std::function<std::shared_ptr<AnyStat>()>& make);

 private:
  Pipeline& pipeline_;
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<AnyStat>> stats_;
};

/// That of process_pipeline().
Monitor& process_monitor();
void log_event(Event event);
EventHandlerHandle register_event_handler(std::function<void(const Event&)> handler);
EventHandlerHandle register_event_handler(std::shared_ptr<EventHandler> handler);
bool unregister_event_handler(EventHandlerHandle handle);

template <class T>
class StatCore;

/// Values of one name, summarised in windows. T: double or std::int64_t. What is open when the last
/// Stat of that name ends is told then.
template <class T>
class Stat {
 public:
  /// `window`: at least 1 ms. `max_samples`: a window that has so many is closed, and takes no more
  /// until its time is over. Throws std::invalid_argument, also if there is another Stat of that
  /// name with other aggregations, window, limit or type.
  Stat(std::string name, Aggregations aggregations, std::chrono::milliseconds window,
       std::int64_t max_samples = kNoLimit, Monitor& monitor = process_monitor());

  /// Dropped if the window is full, or the value not finite.
  void add(T value);
  /// Values in the open window.
  std::int64_t count() const;
  /// The chosen aggregations of the last window that was closed, zeros before the first.
  std::map<Aggregation, Value> get() const;
  const std::string& name() const;

 private:
  std::shared_ptr<StatCore<T>> core_;
};
extern template class Stat<double>;
extern template class Stat<std::int64_t>;

}  // namespace elastrun::telemetry::monitor
