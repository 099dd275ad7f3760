// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/descriptor.hpp"
#include "telemetry/route.hpp"

#include <algorithm>

/// Events of one's own on the pipeline of the process:
///
///     if (auto e = telemetry::event<"torch.elastic.rendezvous">()) e.set("round", n);
/// Without a listener an event costs a load and a branch, and its values are not evaluated.
namespace elastrun::telemetry {

/// Lets so many through: `burst` at once, `rate` a second in the long run, and counts the others.
class TokenBucket {
 public:
  struct Limit {
    double rate = 100, burst = 1000;
  };
  explicit TokenBucket(Limit limit) : limit_(limit), tokens_(limit.burst) {}
  /// The number of those suppressed since the last one that passed; nothing if this one is, too.
  std::optional<std::uint64_t> take(TimePoint now);
  void set(Limit limit) {
    limit_ = limit;
    tokens_ = std::min(tokens_, limit.burst);
  }

 private:
  Limit limit_;
  double tokens_;
  std::optional<TimePoint> filled_;
  std::uint64_t suppressed_ = 0;
};

/// A kind of event, known to the process from its start. Static storage only.
class EventType {
 public:
  explicit EventType(std::string_view name);
  EventType(const EventType&) = delete;
  EventType& operator=(const EventType&) = delete;

  bool on() const noexcept { return on_.load(std::memory_order_relaxed); }
  std::string_view name() const { return name_; }
  /// Whether an event may pass now, as TokenBucket::take.
  std::optional<std::uint64_t> admit(TimePoint now);
  std::uint64_t suppressed() const { return suppressed_.load(std::memory_order_relaxed); }

 private:
  friend void refresh_event_types(const Pipeline& pipeline);
  friend std::size_t enable_events(std::string_view pattern, bool on);
  friend std::size_t limit_events(std::string_view pattern, TokenBucket::Limit limit);
  const std::string_view name_;
  std::atomic<bool> on_{false};
  bool enabled_ = true;
  std::mutex mutex_;
  TokenBucket bucket_{{}};
  std::atomic<std::uint64_t> suppressed_{0};
};

/// Which types are on: those that are enabled and that some route of the pipeline would carry.
void refresh_event_types(const Pipeline& pipeline);
/// By pattern of the registry; each returns the number of types that it fits.
std::size_t enable_events(std::string_view pattern, bool on);
std::size_t limit_events(std::string_view pattern, TokenBucket::Limit limit);

/// A number that no other record of this process has, and with great probability none of another.
std::uint64_t next_record_id();

/// An event that is being written; emitted when it ends. The scope is the name without its last
/// part. "suppressed" tells how many of its type were held back before it.
class EventDraft {
 public:
  EventDraft() = default;  // is off
  EventDraft(EventType& type, Severity severity);
  EventDraft(const EventDraft&) = delete;
  EventDraft& operator=(const EventDraft&) = delete;
  ~EventDraft() {
    if (record_) [[unlikely]]
      emit();
  }

  explicit operator bool() const { return record_ != nullptr; }
  EventDraft& set(std::string key, Value value);
  EventDraft& message(std::string text) { return set("message", std::move(text)); }
  /// When it happened, if that was earlier; when it was noticed is "observed", in ns.
  EventDraft& happened(Stamp stamp);
  std::uint64_t id() const { return record_ ? record_->id : 0; }

 private:
  void emit();
  std::unique_ptr<Record> record_;
};

/// A name that can be the argument of a template, checked when the program is compiled.
template <std::size_t N>
struct FixedName {
  consteval FixedName(const char (&text)[N]) { std::copy_n(text, N, characters); }
  constexpr std::string_view view() const { return {characters, N - 1}; }
  char characters[N]{};
};
template <FixedName kName>
inline EventType event_type{kName.view()};

template <FixedName kName>
EventDraft event(Severity severity = Severity::Info) {
  static_assert(is_name(kName.view()), "a letter, then letters, digits and _ . - /");
  auto& type = event_type<kName>;
  if (!type.on()) [[likely]]
    return {};
  return {type, severity};
}

/// The short form, for names that are made at run time. Returns the id, or 0 without a listener.
std::uint64_t log(std::string_view name, std::string message = {},
                  std::vector<Attribute> attributes = {}, Severity severity = Severity::Info);

}  // namespace elastrun::telemetry
