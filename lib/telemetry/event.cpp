// SPDX-License-Identifier: Apache-2.0
#include "telemetry/event.hpp"

#include "core/mixed_bits.hpp"

#include <random>
#include <unistd.h>

namespace elastrun::telemetry {
namespace {

/// Made on first use, because types are made before main in any order.
struct EventTypes {
  std::mutex mutex;
  std::vector<EventType*> all;
};
EventTypes& event_types() {
  // Never destroyed: types of a library may come or go while the process ends.
  static auto* const types = new EventTypes;
  return *types;
}

Record draft(std::string_view name, Severity severity) {
  const auto& clock = process_pipeline().clock();
  Record record;
  record.stamp = {clock.now(), clock.wall()};
  const auto dot = name.rfind('.');
  record.scope = dot == name.npos ? std::string() : std::string(name.substr(0, dot));
  record.name = std::string(name);
  record.severity = severity;
  return record;
}

std::uint64_t fresh_nonce() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) ^ random();
}

}  // namespace

std::optional<std::uint64_t> TokenBucket::take(TimePoint now) {
  // Threads take the time before they get here, so it may be behind that of the one before.
  if (filled_ && now > *filled_) {
    const std::chrono::duration<double> passed = now - *filled_;
    tokens_ = std::min(limit_.burst, tokens_ + passed.count() * limit_.rate);
  }
  if (!filled_ || now > *filled_) filled_ = now;
  if (tokens_ < 1) {
    suppressed_ += 1;
    return std::nullopt;
  }
  tokens_ -= 1;
  return std::exchange(suppressed_, 0);
}

EventType::EventType(std::string_view name) : name_(name) {
  auto& types = event_types();
  {
    const std::lock_guard lock(types.mutex);
    types.all.push_back(this);
  }
  refresh_event_types(process_pipeline());  // of a library that is loaded late
}

std::optional<std::uint64_t> EventType::admit(TimePoint now) {
  const std::lock_guard lock(mutex_);
  const auto passed = bucket_.take(now);
  if (!passed) suppressed_.fetch_add(1, std::memory_order_relaxed);
  return passed;
}

void refresh_event_types(const Pipeline& pipeline) {
  auto& types = event_types();
  const std::lock_guard lock(types.mutex);
  for (auto* const type : types.all) {
    // Which severity an event has is known when it is there.
    const bool wanted = pipeline.wants(draft(type->name_, Severity::Fatal));
    type->on_.store(type->enabled_ && wanted, std::memory_order_relaxed);
  }
}

std::size_t enable_events(std::string_view pattern, bool on) {
  std::size_t count = 0;
  {
    auto& types = event_types();
    const std::lock_guard lock(types.mutex);
    for (auto* const type : types.all) {
      if (!fits_pattern(pattern, type->name_)) continue;
      type->enabled_ = on;
      count += 1;
    }
  }
  // Outside of the lock, which it takes itself.
  refresh_event_types(process_pipeline());
  return count;
}

std::size_t limit_events(std::string_view pattern, TokenBucket::Limit limit) {
  auto& types = event_types();
  const std::lock_guard lock(types.mutex);
  std::size_t count = 0;
  for (auto* const type : types.all) {
    if (!fits_pattern(pattern, type->name_)) continue;
    const std::lock_guard bucket(type->mutex_);
    type->bucket_.set(limit);
    count += 1;
  }
  return count;
}

std::uint64_t next_record_id() {
  // A child of fork(2) has another nonce, but the same counter.
  static std::atomic<std::uint64_t> counter{0};
  static std::atomic<std::uint64_t> nonce{fresh_nonce()};
  static std::atomic<pid_t> owner{::getpid()};
  const pid_t self = ::getpid();
  if (owner.load(std::memory_order_relaxed) != self) {
    nonce.store(fresh_nonce(), std::memory_order_relaxed);
    owner.store(self, std::memory_order_relaxed);
  }
  const auto number = counter.fetch_add(1, std::memory_order_relaxed);
  const auto id = mixed_bits(nonce.load(std::memory_order_relaxed) + number);
  // 0 means "no id" in a record. A bijection gives it once in 2^64, so this does not go round
  // twice.
  return id == 0 ? next_record_id() : id;
}

EventDraft::EventDraft(EventType& type, Severity severity) {
  const auto held_back = type.admit(process_pipeline().clock().now());
  if (!held_back) return;
  // After the limit: an event that is held back costs no allocation.
  record_ = std::make_unique<Record>(draft(type.name(), severity));
  record_->id = next_record_id();
  if (*held_back != 0) set("suppressed", static_cast<std::int64_t>(*held_back));
}

void EventDraft::emit() {
  process_pipeline().emit(std::move(*record_));
}

EventDraft& EventDraft::set(std::string key, Value value) {
  if (record_) record_->attributes.emplace_back(std::move(key), std::move(value));
  return *this;
}

EventDraft& EventDraft::happened(Stamp stamp) {
  if (!record_) return *this;
  const auto observed = record_->stamp.wall.time_since_epoch();
  record_->stamp = stamp;
  return set("observed", static_cast<std::int64_t>(observed.count()));
}

std::uint64_t log(std::string_view name, std::string message, std::vector<Attribute> attributes,
                  Severity severity) {
  Record record = draft(name, severity);
  if (!process_pipeline().wants(record)) return 0;
  record.id = next_record_id();
  if (!message.empty()) record.attributes.emplace_back("message", std::move(message));
  for (auto& attribute : attributes) record.attributes.push_back(std::move(attribute));
  const auto id = record.id;
  process_pipeline().emit(std::move(record));
  return id;
}

}  // namespace elastrun::telemetry
