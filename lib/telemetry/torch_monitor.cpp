// SPDX-License-Identifier: Apache-2.0
#include "telemetry/torch_monitor.hpp"

#include <fmt/format.h>

namespace elastrun::telemetry::monitor {
namespace {

class MonitorSink final : public Sink {
 public:
  explicit MonitorSink(std::function<void(const Event&)> handler) : handler_(std::move(handler)) {}
  void consume(const Record& record) override {
    if (const auto event = event_of(record)) handler_(*event);
  }

 private:
  std::function<void(const Event&)> handler_;
};

}  // namespace

std::optional<Event> event_of(const Record& record) {
  if (record.scope != kScope) return std::nullopt;
  if (record.kind == Record::Kind::Event) {
    return Event{
        record.name, record.stamp.wall, {record.attributes.begin(), record.attributes.end()}};
  }
  if (record.kind != Record::Kind::Window || record.window == nullptr) return std::nullopt;
  Event event{std::string(kStatEvent), record.stamp.wall};
  for (const auto& [aggregation, value] : record.window->aggregates) {
    event.data[record.name + "." + aggregation] = value;
  }
  return event;
}

void Monitor::log_event(Event event) {
  // First: an event that has no reader should cost next to nothing.
  if (!pipeline_.wants(kScope)) return;
  Record record;
  record.stamp = {pipeline_.clock().now(), event.timestamp};
  if (event.timestamp == WallTime()) record.stamp.wall = pipeline_.clock().wall();
  record.scope = kScope;
  record.name = std::move(event.name);
  record.attributes.assign(event.data.begin(), event.data.end());
  pipeline_.emit(std::move(record));
}

EventHandlerHandle Monitor::register_event_handler(std::function<void(const Event&)> handler) {
  return {pipeline_.route({.scope = std::string(kScope)},
                          std::make_shared<MonitorSink>(std::move(handler)))};
}

EventHandlerHandle Monitor::register_event_handler(std::shared_ptr<EventHandler> handler) {
  return register_event_handler(
      [handler = std::move(handler)](const Event& event) { handler->handle(event); });
}

std::optional<TimePoint> Monitor::close_due() {
  std::vector<std::shared_ptr<AnyStat>> stats;
  {
    const std::lock_guard lock(mutex_);
    // Collected first: the handlers run without the lock, as they may make Stats.
    for (const auto& [name, stat] : stats_) stats.push_back(stat.lock());
  }
  std::optional<TimePoint> first;
  for (const auto& stat : stats) {
    const auto due = stat ? stat->close_due(pipeline_.clock().now()) : std::nullopt;
    if (due && (!first || *due < *first)) first = due;
  }
  return first;
}

std::shared_ptr<AnyStat> Monitor::stat(const std::string& name,
                                       const std::function<std::shared_ptr<AnyStat>()>& make) {
  const std::lock_guard lock(mutex_);
  // Weak, so that the end of the last Stat of a name ends its windows, and the name is free again.
  std::erase_if(stats_, [](const auto& entry) { return entry.second.expired(); });
  if (auto known = stats_[name].lock()) return known;
  auto made = make();
  stats_[name] = made;
  return made;
}

Monitor& process_monitor() {
  static Monitor monitor(process_pipeline());
  return monitor;
}

void log_event(Event event) {
  process_monitor().log_event(std::move(event));
}
EventHandlerHandle register_event_handler(std::function<void(const Event&)> handler) {
  return process_monitor().register_event_handler(std::move(handler));
}
EventHandlerHandle register_event_handler(std::shared_ptr<EventHandler> handler) {
  return process_monitor().register_event_handler(std::move(handler));
}
bool unregister_event_handler(EventHandlerHandle handle) {
  return process_monitor().unregister_event_handler(handle);
}

template <class T>
class StatCore final : public AnyStat {
 public:
  using Closed = std::vector<typename Windows<T>::Closed>;

  StatCore(std::string name, Aggregations aggregations, WindowPlan plan, Monitor& monitor)
      : name_(std::move(name)),
        aggregations_(aggregations),
        plan_(plan),
        pipeline_(monitor.pipeline()),
        windows_(plan, aggregations.need_sketch()) {}
  ~StatCore() override {
    Closed closed;
    // As torch: a Stat that goes tells the window that is open.
    // Without the lock: no other owner is left.
    windows_.finish(pipeline_.clock().now(), closed);
    tell(closed);
  }
  void add(T value) {
    const TimePoint now = pipeline_.clock().now();
    Closed closed;
    {
      const std::lock_guard lock(mutex_);
      windows_.add(value, now, closed);
    }
    tell(closed);
  }
  std::optional<TimePoint> close_due(TimePoint now) override {
    Closed closed;
    std::optional<TimePoint> due;
    {
      const std::lock_guard lock(mutex_);
      windows_.advance(now, closed);
      due = windows_.due();
    }
    tell(closed);
    return due;
  }
  std::int64_t count() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(windows_.open().count);
  }
  std::map<Aggregation, Value> get() const {
    const std::lock_guard lock(mutex_);
    std::map<Aggregation, Value> values;
    for (const auto one : aggregations_.list()) values[one] = windows_.last_closed().get(one);
    return values;
  }
  bool is(Aggregations aggregations, WindowPlan plan) const {
    return aggregations_ == aggregations && plan_ == plan;
  }
  const std::string& name() const { return name_; }

 private:
  /// Without the lock: a handler may use this Stat.
  void tell(const Closed& closed) {
    if (closed.empty() || !pipeline_.wants(kScope)) return;
    for (const auto& one : closed) {
      auto window = std::make_shared<Window>(one.start, one.end, one.index, one.summary.count,
                                             one.dropped + one.summary.not_finite);
      for (const auto aggregation : aggregations_.list()) {
        window->aggregates.emplace_back(to_text(aggregation), one.summary.get(aggregation));
      }
      Record record;
      record.kind = Record::Kind::Window;
      record.stamp = {pipeline_.clock().now(), pipeline_.clock().wall()};
      record.scope = kScope;
      record.name = name_;
      record.window = std::move(window);
      pipeline_.emit(std::move(record));
    }
  }

  const std::string name_;
  const Aggregations aggregations_;
  const WindowPlan plan_;
  Pipeline& pipeline_;
  mutable std::mutex mutex_;
  Windows<T> windows_;
};

template <class T>
Stat<T>::Stat(std::string name, Aggregations aggregations, std::chrono::milliseconds window,
              std::int64_t max_samples, Monitor& monitor) {
  if (window < std::chrono::milliseconds(1) || max_samples < 1) {
    throw std::invalid_argument(
        fmt::format("Stat '{}': window ({} ms) and max_samples ({}) must be at least 1", name,
                    window.count(), max_samples));
  }
  const auto plan = max_samples == kNoLimit
                        ? every(window)
                        : first(static_cast<std::uint64_t>(max_samples), window);
  const auto found = monitor.stat(
      name, [&] { return std::make_shared<StatCore<T>>(name, aggregations, plan, monitor); });
  // Null where the Stat of that name has another type.
  core_ = std::dynamic_pointer_cast<StatCore<T>>(found);
  if (core_ == nullptr || !core_->is(aggregations, plan)) {
    throw std::invalid_argument(fmt::format(
        "Stat '{}': there is one of that name with another type, window or aggregations", name));
  }
}

template <class T>
void Stat<T>::add(T value) {
  core_->add(value);
}
template <class T>
std::int64_t Stat<T>::count() const {
  return core_->count();
}
template <class T>
std::map<Aggregation, Value> Stat<T>::get() const {
  return core_->get();
}
template <class T>
const std::string& Stat<T>::name() const {
  return core_->name();
}

template class Stat<double>;
template class Stat<std::int64_t>;

}  // namespace elastrun::telemetry::monitor
