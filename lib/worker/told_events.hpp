// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent_channel.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <exception>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>

namespace elastrun::worker {
/// What an attribute of an event may be: text, a number, true or false.
class Value {
 public:
  Value(std::string_view text) : json_(worker::quoted(text)) {}
  Value(const char* text) : Value(std::string_view(text)) {}
  Value(const std::string& text) : Value(std::string_view(text)) {}
  Value(bool value) : json_(value ? "true" : "false") {}
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Value(T value) {
    if constexpr (std::is_integral_v<T>) {
      json_ = std::to_string(value);
    } else {
      json_ = worker::number(static_cast<double>(value));
    }
  }
  const std::string& json() const { return json_; }

 private:
  std::string json_;
};
using Attribute = std::pair<std::string_view, Value>;

/// More of an event. `severity`: trace, debug, info, warn, error or fatal, by which routes select.
/// `time`: when it happened, in seconds since the epoch; 0: now. `id`, `span` (the stretch it is
/// from) and `parent` (that around it): 16 hexadecimal digits.
struct EventFacts {
  std::string_view severity{};
  double time = 0;
  std::string_view id{}, span{}, parent{};
};

namespace detail {
/// Which events pass: evenly spread ones, so that of 0.25 each fourth one does, the first with
/// them.
class Sampling {
 public:
  constexpr Sampling() = default;

  void add(std::string_view pattern, double rate) {
    const Shared turn;
    if (rules_ == nullptr) rules_ = new std::vector<Rule>;
    const auto same = std::find_if(rules_->begin(), rules_->end(),
                                   [&](const Rule& one) { return one.pattern == pattern; });
    if (same != rules_->end()) rules_->erase(same);
    rules_->insert(rules_->begin(), Rule{std::string(pattern), rate});
    any_.store(true, std::memory_order_relaxed);
  }
  /// Whether this one does; if it is only `asked`, whether one of that name may.
  bool passes(std::string_view name, bool asked = false) {
    if (!any_.load(std::memory_order_relaxed)) return true;
    const Shared turn;
    if (!turn) return true;
    const auto rule = std::find_if(rules_->begin(), rules_->end(),
                                   [&](const Rule& one) { return fits(one.pattern, name); });
    if (rule == rules_->end() || (asked && rule->rate > 0)) return true;
    const bool passes = !asked && rule->rate > 0 && rule->credit >= 1;
    if (!asked) rule->credit += rule->rate - (passes ? 1 : 0);
    return passes;
  }

 private:
  struct Rule {
    std::string pattern;
    double rate;
    double credit = 1;
  };
  std::atomic<bool> any_{false};
  std::vector<Rule>* rules_ = nullptr;  // the last one first; never freed
};
inline Sampling sampling;

/// The span that the code of this thread runs in, and the one around it.
struct SpanPlace {
  std::string span{}, parent{};
};
inline SpanPlace& span_place() {
  thread_local SpanPlace place;
  return place;
}

/// Of a JSON string with more, at most that many bytes between its quotes: whole characters and
/// escapes.
inline std::string cut_quoted(const std::string& json, std::size_t most) {
  std::size_t end = 1;
  for (std::size_t next = end; next <= most + 1;) {
    end = next;
    next += json[end] != '\\' ? 1 : json[end + 1] == 'u' ? 6 : 2;
    while ((static_cast<unsigned char>(json[next]) & 0xc0) == 0x80) ++next;
  }
  return json.substr(0, end) + '"';
}

/// The agent refuses a longer packet: of a stack of 20 kB it gets the beginning, rather than no
/// event.
template <class Attributes>
std::string event_packet(std::string_view name, const Attributes& attributes,
                         const EventFacts& facts) {
  constexpr std::size_t kLongestPacket = 16u << 10;
  std::string packet;
  const auto add = [&](std::string_view key, const std::string& json) {
    if (packet.back() != '{') packet += ',';
    packet += worker::quoted(key) + ':' + json;
  };
  const auto text = [&](std::string_view key, std::string_view value) {
    if (!value.empty()) add(key, worker::quoted(value));
  };
  for (const std::size_t longest :
       {kLongestPacket, std::size_t{4096}, std::size_t{1024}, std::size_t{256}}) {  // of a text
    packet = R"({"kind":"event","name":)" + worker::quoted(name);
    if (facts.time > 0) packet += R"(,"time":)" + number(facts.time);
    packet += R"(,"attributes":{)";
    for (const auto& [key, value] : attributes) {
      const auto& json = value.json();
      const bool cuts = json.size() > longest + 2 && json.front() == '"';
      cuts ? add(key, cut_quoted(json, longest)) : add(key, json);
    }
    const auto& place = span_place();
    const bool given = !facts.span.empty();
    text("severity", facts.severity);
    text("event.id", facts.id);
    text("span.id", given ? facts.span : std::string_view(place.span));
    text("span.parent", given ? facts.parent : std::string_view(place.parent));
    packet += "}}";
    if (packet.size() <= kLongestPacket) break;
  }
  return packet;
}
}  // namespace detail

/// Of the events and spans whose name matches `pattern` (with * and ?) that part passes from now
/// on, in (0, 1]; 0: none. Windows of a Stat always pass. Of several patterns the last one counts.
/// Throws std::invalid_argument on another rate.
inline void sample(std::string_view pattern, double rate) {
  if (!(rate >= 0 && rate <= 1)) {
    throw std::invalid_argument("sample('" + std::string(pattern) + "'): rate (" +
                                std::to_string(rate) + ") must be between 0 and 1");
  }
  detail::sampling.add(pattern, rate);
}

/// Whether an agent may hear what is told, and sample() lets events of that name pass: before one
/// that is expensive to make.
inline bool is_enabled(std::string_view name = {}) {
  return Channel::instance().configured() && detail::sampling.passes(name, true);
}

/// Something happened.
inline void event(std::string_view name, std::initializer_list<Attribute> attributes = {},
                  const EventFacts& facts = {}) {
  if (!is_enabled(name) || !detail::sampling.passes(name)) return;
  Channel::instance().send(detail::event_packet(name, attributes, facts));
}

/// 16 hexadecimal digits, as ids of events and spans are.
inline std::string new_id() {
  static std::atomic<std::uint64_t> count{0};
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  // splitmix64 of what no other process has at this moment.
  auto bits = (static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
               static_cast<std::uint64_t>(now.tv_nsec)) ^
              (static_cast<std::uint64_t>(::getpid()) << 40);
  bits += (count.fetch_add(1, std::memory_order_relaxed) + 1) * 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  bits ^= bits >> 31;
  std::string id;
  for (int shift = 60; shift >= 0; shift -= 4) id += "0123456789abcdef"[(bits >> shift) & 15];
  return id;
}

/// From here to the end of the block is a span: two events, its start and its end, of which the
/// agent makes a span of OTLP and of Perfetto. Spans in it are below it, and events in it know it;
/// one that an exception ends has failed. To be ended by its thread, the newest first.
///
///     elastrun::worker::Span epoch("epoch", {{"number", 3}});
class Span {
 public:
  explicit Span(std::string name, std::initializer_list<Attribute> attributes = {})
      : name_(std::move(name)),
        told_(is_enabled(name_) && detail::sampling.passes(name_)),
        before_(detail::span_place()) {
    for (const auto& [key, value] : attributes) attributes_.emplace_back(key, value);
    detail::span_place() = {new_id(), before_.span};
    tell_end("start");
  }
  ~Span() {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin_;
    attributes_.emplace_back("span.seconds", Value(took.count()));
    if (std::uncaught_exceptions() > exceptions_) {
      attributes_.emplace_back("span.error", Value("exception"));
    }
    tell_end("stop", took.count());
    detail::span_place() = before_;
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  const std::string& id() const { return detail::span_place().span; }

 private:
  void tell_end(const char* phase, double after = 0) {
    if (!told_) return;
    // The end is told by the start's time and what was measured: of the two a span is made, and
    // what is in it must not seem to begin before it.
    EventFacts facts;
    facts.time = time_ + after;
    attributes_.emplace_back("span.phase", Value(phase));
    Channel::instance().send(detail::event_packet(name_, attributes_, facts));
    attributes_.pop_back();
  }
  const std::string name_;
  const bool told_;  // both ends, or neither
  std::vector<std::pair<std::string, Value>> attributes_;
  const detail::SpanPlace before_;
  const double time_ =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const int exceptions_ = std::uncaught_exceptions();
};

/// This process is ended by `signal` (0: the agent only tells), with its stack in the agent's
/// report, unless this object has ended `after` seconds from now:
///
///     elastrun::worker::Expires timer(60);
///     all_reduce(gradients);
///
/// `scope` names it there; empty: file and line. Timers inside each other are separate; only a
/// function that calls itself arms the timer of its scope again, with the whole time once the
/// inner call has returned. To be ended by the thread that has made it, the newest first.
class Expires {
 public:
  explicit Expires(double after, std::string_view scope = {}, int signal = SIGKILL,
                   const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : after_(after),
        signal_(signal),
        scope_(scope.empty() ? std::string(file) + '#' + std::to_string(line) : scope),
        number_(numbers().fetch_add(1, std::memory_order_relaxed)),
        around_(std::exchange(innermost(), this)) {
    if (scope_.size() > kLongest) {
      auto first = scope_.size() - kLongest;  // of a character, not in the middle of one
      while (first < scope_.size() && (static_cast<unsigned char>(scope_[first]) & 0xc0) == 0x80) {
        ++first;
      }
      scope_.erase(0, first);
    }
    for (outer_ = around_; outer_ != nullptr && outer_->scope_ != scope_;) outer_ = outer_->around_;
    arm();
    if (outer_ != nullptr) outer_->disarm();
  }
  ~Expires() {
    innermost() = around_;
    if (outer_ != nullptr) outer_->arm();
    disarm();
  }
  Expires(const Expires&) = delete;
  Expires& operator=(const Expires&) = delete;

 private:
  static constexpr std::size_t kLongest = 256;  // bytes of a scope: its end tells more of a path

  static std::atomic<std::uint64_t>& numbers() {
    static std::atomic<std::uint64_t> next{1};
    return next;
  }
  static Expires*& innermost() {
    thread_local Expires* innermost = nullptr;
    return innermost;
  }
  std::string begin() const {
    return R"({"kind":"timer","id":)" + std::to_string(number_) + R"(,"scope":)" +
           worker::quoted(scope_);
  }
  /// By the monotonic clock: a wall clock that is set neither ends nor spares anybody.
  void arm() const {
    tell([&] {
      const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
      return begin() + R"(,"deadline":)" + number(now.count() + after_) + R"(,"after":)" +
             number(after_) + R"(,"signal":)" + std::to_string(signal_) + '}';
    });
  }
  /// One that is lost would cost the life of a process that is well.
  void disarm() const {
    if (Channel::instance().configured()) Channel::instance().send_surely(begin() + '}');
  }

  double after_;
  int signal_;
  std::string scope_;
  std::uint64_t number_;
  Expires *around_, *outer_ = nullptr;  // the timer around this one; that of the same scope
};

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
