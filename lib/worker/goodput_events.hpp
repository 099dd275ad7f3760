// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent_channel.hpp"

#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>

namespace elastrun::worker {
/// What the time goes to, for the account of goodput; as ml-goodput-measurement's recorder. A step
/// lasts until the next one, or EndJob; other things have an end.
enum class Event {
  StartJob,
  EndJob,
  StartStep,
  StartDeviceInit,
  EndDeviceInit,
  StartPreparation,
  EndPreparation,
  StartDataLoading,
  EndDataLoading,
  StartCustom,
  EndCustom,
  StartSave,
  EndSave,
  StartRestore,
  EndRestore,
};

/// The entries of this process on their way to the agent: what is recorded within a millisecond
/// goes in one packet, with the first entry after it or at the end of the process; what may take
/// longer than a step goes at once. For all threads.
class Recorder {
 public:
  constexpr Recorder() = default;
  static Recorder& instance();
  ~Recorder() { flush(); }

  void put(Event event, std::int64_t step, std::string_view name) {
    if (!Channel::instance().configured()) return;
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    const std::int64_t microseconds = now.tv_sec * 1'000'000LL + now.tv_nsec / 1000;
    const detail::Turn turn(lock_);
    if (!settle(turn)) {
      interrupted_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (size_ + 256 + 6 * name.size() > sizeof text_) send();
    append(event, step, name, microseconds);
    const bool due = microseconds - sent_ >= 1000 || microseconds < sent_;
    if (due || excuses(event)) send(), sent_ = microseconds;
  }
  void flush() {
    if (const detail::Turn turn(lock_); settle(turn)) send();
  }

 private:
  static constexpr const char* kMembers[] = {"job_start",
                                             "job_end",
                                             "step_start",
                                             "tpu_init_start",
                                             "tpu_init_end",
                                             "training_prep_start",
                                             "training_prep_end",
                                             "data_loading_start",
                                             "data_loading_end",
                                             "custom_badput_event_start",
                                             "custom_badput_event_end",
                                             "checkpoint_save_start",
                                             "checkpoint_save_end",
                                             "checkpoint_restore_start",
                                             "checkpoint_restore_end"};

  /// What --hang-timeout has to hear of before it takes its time.
  static bool excuses(Event event) {
    return event == Event::StartDeviceInit || event == Event::StartPreparation ||
           event == Event::StartCustom || event == Event::StartSave || event == Event::StartRestore;
  }
  bool settle(const detail::Turn& turn) {  // as Metric's
    if (turn.stale()) size_ = 0, count_ = 0, lost_ = 0, interrupted_ = 0;
    return static_cast<bool>(turn);
  }
  void add(std::string_view text) {
    std::memcpy(text_ + size_, text.data(), text.size());
    size_ += text.size();
  }
  void add(std::int64_t value) {
    size_ = static_cast<std::size_t>(std::to_chars(text_ + size_, text_ + sizeof text_, value).ptr -
                                     text_);
  }
  void append(Event event, std::int64_t step, std::string_view name, std::int64_t time) {
    add(count_ == 0 ? "{" : ",{");
    if (event == Event::StartStep) {
      add(R"("step_count":)");
      add(step);
      add(",");
    } else if (event == Event::StartCustom || event == Event::EndCustom) {
      add(R"("custom_badput_event_type":)");
      add(worker::quoted(name));
      add(",");
    }
    add("\"");
    add(kMembers[static_cast<int>(event)]);
    add(R"(_time":)");
    add(time / 1'000'000);
    add(".");
    for (std::int64_t unit = 100'000; unit > 0; unit /= 10) {
      text_[size_++] = static_cast<char>('0' + time / unit % 10);
    }
    add("}");
    ++count_;
  }
  void send() {
    lost_ += interrupted_.exchange(0, std::memory_order_relaxed);
    if (count_ == 0) return;
    std::string packet = R"({"kind":"goodput","lost":)" + std::to_string(lost_) + R"(,"entries":[)";
    packet.append(text_, size_).append("]}");
    lost_ = Channel::instance().try_send(packet) ? 0 : lost_ + count_;
    size_ = 0;
    count_ = 0;
  }

  std::atomic<std::uint64_t> interrupted_{0};  // entries of handlers that came in between
  detail::Lock lock_;                          // for what follows
  std::uint64_t count_ = 0, lost_ = 0;
  std::int64_t sent_ = 0;
  std::size_t size_ = 0;
  char text_[15000] = {};
};

namespace detail {
inline Recorder recorder;
}

inline Recorder& Recorder::instance() {
  return detail::recorder;
}

/// Rank 0 is enough. `step`: of StartStep.
inline void record_event(Event event, std::int64_t step = 0) {
  Recorder::instance().put(event, step, "unknown");
}
/// Of StartCustom and EndCustom, which belong together by their name: "eval". 256 bytes of it
/// count.
inline void record_event(Event event, std::string_view name) {
  Recorder::instance().put(event, 0, detail::cut(name, 256));
}

/// A block that is an event: recorded as begun now, and as ended with this object, also by an
/// exception. A step lasts until the next one.
///
///     { EventScope restore(Event::StartRestore); load(); }
///     { EventScope eval(Event::StartCustom, "eval"); evaluate(); }
class EventScope {
 public:
  explicit EventScope(Event start, std::int64_t step = 0) : start_(start), name_("unknown") {
    record_event(start, step);
  }
  EventScope(Event start, std::string_view name) : start_(start), name_(name) {
    record_event(start, name_);
  }
  ~EventScope() {
    if (start_ == Event::StartStep) return;
    // In the list each end follows its start; an end by itself has none.
    const auto next = static_cast<Event>(static_cast<int>(start_) + 1);
    for (const Event end :
         {Event::EndJob, Event::EndDeviceInit, Event::EndPreparation, Event::EndDataLoading,
          Event::EndCustom, Event::EndSave, Event::EndRestore}) {
      if (end == next) record_event(end, name_);
    }
  }
  EventScope(const EventScope&) = delete;
  EventScope& operator=(const EventScope&) = delete;

 private:
  const Event start_;
  const std::string name_;
};

}  // namespace elastrun::worker
