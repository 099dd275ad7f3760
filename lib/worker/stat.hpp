// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent_channel.hpp"
#include "samples.hpp"
#include "summary.hpp"
#include "written_page.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::worker {
class Collector;

/// What a window of time without values is: nothing; an event of zeros; or one with NAME.count, 0,
/// alone.
enum class OnEmpty { Skip, Zero, NoData };

struct StatOptions {
  std::chrono::milliseconds window{};  // 0: none
  std::uint64_t max_samples = 0;       // 0: no limit
  std::string unit{}, help{};
  OnEmpty on_empty = OnEmpty::Skip;
};

namespace detail {
/// Those of --aggregations, PATTERN=NAME[+NAME...] with commas between them, or what was chosen.
inline std::vector<Aggregation> chosen_for(std::string_view name, std::vector<Aggregation> chosen) {
  const char* const given = std::getenv("ELASTRUN_AGGREGATIONS");
  std::string_view rest = given == nullptr ? "" : given;
  while (!rest.empty()) {
    const auto one = rest.substr(0, rest.find(','));
    rest.remove_prefix(one.size() < rest.size() ? one.size() + 1 : rest.size());
    const auto equals = one.rfind('=');
    if (equals == one.npos || !fits(one.substr(0, equals), name)) continue;
    std::vector<Aggregation> instead;
    const auto list = '+' + std::string(one.substr(equals + 1)) + '+';
    for (std::size_t i = 0; i < kAggregations.size(); ++i) {
      const auto found = list.find('+' + std::string(kAggregations[i]) + '+');
      if (found != list.npos) instead.push_back(static_cast<Aggregation>(i));
    }
    return instead.empty() ? chosen : instead;
  }
  return chosen;
}

/// The values of one stretch, of this process alone.
struct StatWindow {
  StatWindow() = default;
  explicit StatWindow(const std::vector<Aggregation>& aggregations) {
    if (std::any_of(aggregations.begin(), aggregations.end(), needs_sketch)) {
      values.sketch.emplace();
    }
  }
  /// True: this process was forked since, and what was in it is the parent's to tell.
  bool settle() {
    const auto now = generation.load(std::memory_order_relaxed);
    if (made_in == now) return false;
    const bool sketched = values.sketch.has_value();
    *this = {};
    if (sketched) values.sketch.emplace();
    return true;
  }
  void add(double value) {
    settle();
    values.add(value);
  }
  std::vector<std::pair<double, std::uint64_t>> buckets() const {
    return values.sketch.value_or(Sketch()).buckets();
  }

  Summary values{};
  std::uint32_t made_in = generation.load(std::memory_order_relaxed);
};

/// What all Stats of one name are. For all threads; what changes is under shared_lock.
class StatCore : public std::enable_shared_from_this<StatCore> {
 public:
  using Clock = std::chrono::steady_clock;
  using Callback = std::function<double()>;

  StatCore(std::string called, std::vector<Aggregation> chosen, StatOptions given)
      : name(std::move(called)),
        aggregations(std::move(chosen)),
        options(std::move(given)),
        open_(aggregations) {}
  inline ~StatCore();

  const std::string name;
  const std::vector<Aggregation> aggregations;
  const StatOptions options;

  bool is_same(const std::vector<Aggregation>& others, const StatOptions& other) const {
    return std::is_permutation(others.begin(), others.end(), aggregations.begin(),
                               aggregations.end()) &&
           other.window == options.window && other.max_samples == options.max_samples &&
           other.on_empty == options.on_empty;
  }
  void add(double value, Clock::time_point now) {
    close_due(now);
    put(value);
  }
  /// Until the open window ends, if something will be told then.
  std::optional<std::chrono::duration<double>> close_due(Clock::time_point now) {
    if (options.window.count() == 0) return {};
    const auto number = now.time_since_epoch() / options.window;
    if (asks_before(number)) observe();
    Over over;
    bool tells = false;
    if (const Shared turn; turn) {
      settle();
      over = advance(number);
      tells = open_.values.count > 0 || options.on_empty != OnEmpty::Skip || !callbacks_.empty();
    }
    tell(over);
    if (!tells) return {};
    return (number + 1) * options.window - now.time_since_epoch();
  }
  void observe(Callback callback) {
    if (const Shared turn; turn) callbacks_.push_back(std::move(callback));
  }
  /// Asks the callbacks; one that raises costs its own value.
  void observe() {
    std::vector<Callback> asked;
    if (const Shared turn; turn) asked = callbacks_;
    for (const auto& callback : asked) {
      double value = std::numeric_limits<double>::quiet_NaN();  // is dropped, and counted
      try {
        value = callback();
      } catch (const std::exception&) {
      }
      put(value);
    }
  }
  std::uint64_t count() {
    const Shared turn;
    settle();
    return open_.values.count;
  }
  std::uint64_t dropped() const {
    const Shared turn;
    return dropped_;
  }
  std::shared_ptr<const StatWindow> closed() const {
    const Shared turn;
    return closed_;
  }

  // Of collectors, which have the lock.
  void tap(StatWindow& window) {
    if (std::find(taps_.begin(), taps_.end(), &window) == taps_.end()) taps_.push_back(&window);
  }
  void leave(const StatWindow& window) {
    taps_.erase(std::remove(taps_.begin(), taps_.end(), &window), taps_.end());
  }

 private:
  using Over = std::shared_ptr<const StatWindow>;

  void settle() {
    if (open_.settle()) full_ = false;
  }
  void put(double value) {
    Over full;
    if (const Shared turn; turn) {
      full = take(value);
    } else {
      Channel::instance().count_lost();
    }
    tell(full);
  }
  Over take(double value) {
    settle();
    if (full_ || !std::isfinite(value)) {
      ++dropped_;
      return {};
    }
    open_.add(value);
    for (StatWindow* const one : taps_) one->add(value);
    if (open_.values.count != options.max_samples) return {};
    full_ = options.window.count() > 0;
    return turn_over();
  }
  Over turn_over() {
    closed_ = std::make_shared<const StatWindow>(std::exchange(open_, StatWindow(aggregations)));
    return closed_;
  }
  /// Whether this call is the one that asks the callbacks for the window before.
  bool asks_before(std::int64_t number) {
    const Shared turn;
    const bool asks = turn && number_ >= 0 && number != number_ && asked_ != number_;
    if (asks) asked_ = number_;
    return asks && !callbacks_.empty();
  }
  Over advance(std::int64_t number) {
    if (number == number_) return {};
    // One that was full has been told.
    const bool empty = number_ >= 0 && !full_ && options.on_empty != OnEmpty::Skip;
    number_ = number;
    full_ = false;
    if (open_.values.count > 0) return turn_over();
    return empty ? std::make_shared<const StatWindow>() : Over();
  }

  void tell(const Over& over) const {
    if (over == nullptr) return;
    const bool no_data = over->values.count == 0 && options.on_empty == OnEmpty::NoData;
    std::string packet = R"({"kind":"event","name":"torch.monitor.Stat","attributes":{)";
    const auto add = [&](const std::string& key, const std::string& json) {
      if (packet.back() != '{') packet += ',';
      packet += worker::quoted(key) + ':' + json;
    };
    if (no_data) add(name + ".count", "0");
    for (const auto aggregation : aggregations) {
      if (no_data || aggregation == Aggregation::Histogram) continue;
      const auto key = name + '.' + std::string(to_text(aggregation));
      add(key, number(over->values.of(aggregation)));
      Page::instance().put(Page::instance().series("torch.monitor", key),
                           over->values.of(aggregation));
    }
    if (!options.unit.empty()) add("stat.unit", worker::quoted(cut(options.unit, 64)));
    if (!options.help.empty()) add("stat.help", worker::quoted(cut(options.help, 1024)));
    worker::tell([&] { return packet + "}}"; });
    const bool drawn = std::find(aggregations.begin(), aggregations.end(),
                                 Aggregation::Histogram) != aggregations.end();
    if (drawn && over->values.count > 0) tell_histogram(over->values);
  }
  void tell_histogram(const Summary& over) const {
    worker::tell([&] {
      return R"({"kind":"metric","type":"histogram","group":"torch.monitor","name":)" +
             worker::quoted(name) + R"(,"value":)" + number(over.last) + sums_of(over) +
             over.sketch->members() + about_members({{}, options.unit, options.help}) + '}';
    });
  }

  std::vector<Callback> callbacks_;
  std::vector<StatWindow*> taps_;  // of collectors
  StatWindow open_;
  Over closed_ = std::make_shared<const StatWindow>();
  std::int64_t number_ = -1, asked_ = -1;  // of the open window; of the last one with callbacks
  bool full_ = false;
  std::uint64_t dropped_ = 0;
};

/// The Stats of this process, and who listens. The methods without a lock are for those who have
/// it.
class StatBook {
 public:
  constexpr StatBook() = default;

  std::shared_ptr<StatCore> open(const std::string& name, std::vector<Aggregation> aggregations,
                                 StatOptions options) {
    auto made = std::make_shared<StatCore>(name, std::move(aggregations), std::move(options));
    std::shared_ptr<StatCore> found;  // let go after the lock, which its end takes, too
    if (const Shared turn; turn) {
      StatCore*& place = own().cores[name];
      if (place != nullptr) found = place->weak_from_this().lock();
      if (found == nullptr) {
        place = made.get();
        for (Collector* const one : own().listeners) tell_of(*made, *one);
      }
    }
    if (found == nullptr) return made;
    if (!found->is_same(made->aggregations, made->options)) {
      throw std::invalid_argument("Stat '" + name +
                                  "': there is one of that name with other "
                                  "aggregations, window, max_samples or on_empty");
    }
    return found;
  }
  std::vector<std::shared_ptr<StatCore>> living(std::string_view pattern) {
    std::vector<std::shared_ptr<StatCore>> found;
    const Shared turn;
    if (!turn) return found;
    for (const auto& [name, core] : own().cores) {
      if (!fits(pattern, name)) continue;
      // None: it is about to end. The last owner of one must not be in here: its end takes the
      // lock.
      if (auto one = core->weak_from_this().lock()) found.push_back(std::move(one));
    }
    return found;
  }
  void remove(const StatCore& core) {
    const Shared turn;
    if (!turn) return;
    const auto found = own().cores.find(core.name);
    if (found != own().cores.end() && found->second == &core) own().cores.erase(found);
  }
  void add(Collector& listener) {
    const Shared turn;
    own().listeners.push_back(&listener);
    for (const auto& [name, core] : own().cores) tell_of(*core, listener);
  }
  void remove(Collector& listener) {
    const Shared turn;
    auto& all = own().listeners;
    all.erase(std::remove(all.begin(), all.end(), &listener), all.end());
  }

  bool has(const std::string& name) { return own().cores.count(name) > 0; }

 private:
  static void tell_of(StatCore& core, Collector& listener);
  struct Lists {
    std::map<std::string, StatCore*> cores;
    std::vector<Collector*> listeners;
  };
  Lists& own() {
    if (lists_ == nullptr) lists_ = new Lists;
    return *lists_;
  }
  Lists* lists_ = nullptr;  // never freed: a Stat may end after everything else
};
inline StatBook stat_book;

inline StatCore::~StatCore() {
  stat_book.remove(*this);
  settle();
  if (open_.values.count > 0) tell(turn_over());
}
}  // namespace detail

/// Values summarised in windows, as torch.monitor's Stat: a window that is over is the event
/// "torch.monitor.Stat" with NAME.mean and so on. It ends with the next value, with close_due(), or
/// with the last Stat of its name. A window with `max_samples` values ends at once, and takes no
/// more until its time is over; without a time each `max_samples` values are a window, and none is
/// dropped. Values that are not finite are dropped. For all threads; Stats of one name are one,
/// with the unit and help of the first, and std::invalid_argument is thrown if they differ
/// otherwise.
class Stat {
 public:
  using Clock = std::chrono::steady_clock;
  using Options = StatOptions;

  /// `window`: at least 1 ms, less is taken for that. `max_samples` 0: no limit.
  Stat(std::string name, std::initializer_list<Aggregation> aggregations,
       std::chrono::milliseconds window, std::uint64_t max_samples = 0)
      : Stat(std::move(name), aggregations,
             Options{std::max(window, std::chrono::milliseconds(1)), max_samples}) {}
  Stat(std::string name, std::initializer_list<Aggregation> aggregations, Options options)
      : core_(detail::stat_book.open(name, detail::chosen_for(name, aggregations),
                                     std::move(options))) {}

  void add(double value) { add(value, Clock::now()); }
  /// With a time of one's own, for tests.
  void add(double value, Clock::time_point now) { core_->add(value, now); }
  /// Ends the window if its time is over: where values may stay away.
  void close_due(Clock::time_point now = Clock::now()) { core_->close_due(now); }
  /// Its value is taken once for each window, when that ends, and whenever a Collector reports: for
  /// what costs something to measure, such as memory in use. One that raises is a dropped value.
  void observe(std::function<double()> callback) { core_->observe(std::move(callback)); }

  /// Values in the open window, and those that are in none.
  std::uint64_t count() const { return core_->count(); }
  std::uint64_t dropped() const { return core_->dropped(); }
  /// The aggregations of the last window that had values; zeros before the first. That of Histogram
  /// is how many values there were: histogram() has the buckets.
  std::map<Aggregation, double> get() const {
    const auto closed = core_->closed();
    std::map<Aggregation, double> found;
    for (const auto one : core_->aggregations) found[one] = closed->values.of(one);
    return found;
  }
  /// Of that window, if Histogram or a percentile was chosen: the end of each bucket (2.2 % wide)
  /// and how many values are in it, from the lowest.
  std::vector<std::pair<double, std::uint64_t>> histogram() const {
    return core_->closed()->buckets();
  }
  const std::string& name() const { return core_->name; }
  const std::string& unit() const { return core_->options.unit; }
  const std::string& help() const { return core_->options.help; }
  const std::vector<Aggregation>& aggregations() const { return core_->aggregations; }

  /// Adds the seconds from here to its end, however that comes.
  class Timing {
   public:
    explicit Timing(std::shared_ptr<detail::StatCore> core) : core_(std::move(core)) {}
    ~Timing() {
      const auto now = Clock::now();
      core_->add(std::chrono::duration<double>(now - begin_).count(), now);
    }
    Timing(const Timing&) = delete;
    Timing& operator=(const Timing&) = delete;

   private:
    const std::shared_ptr<detail::StatCore> core_;
    const Clock::time_point begin_ = Clock::now();
  };
  [[nodiscard]] Timing add_time() { return Timing(core_); }

 private:
  friend std::map<std::string, Stat> stats(std::string_view pattern);
  explicit Stat(std::shared_ptr<detail::StatCore> core) : core_(std::move(core)) {}

  std::shared_ptr<detail::StatCore> core_;
};

/// Those that exist and match `pattern` (with * and ?), by name.
inline std::map<std::string, Stat> stats(std::string_view pattern = "*") {
  std::map<std::string, Stat> found;
  for (auto& core : detail::stat_book.living(pattern)) {
    const auto name = core->name;
    found.emplace(name, Stat(std::move(core)));
  }
  return found;
}

/// Ends windows whose time is over, also when no value comes: the header starts no thread, so that
/// one of the program's, or its loop, may call this. Returns in how long the next one ends, if any
/// will tell something then.
inline std::optional<std::chrono::duration<double>> close_due(
    Stat::Clock::time_point now = Stat::Clock::now()) {
  std::optional<std::chrono::duration<double>> next;
  for (const auto& core : detail::stat_book.living("*")) {
    const auto wait = core->close_due(now);
    if (wait && (!next || *wait < *next)) next = wait;
  }
  return next;
}

/// What all Stats have seen since the last question, whatever their own windows are (RFC-0018):
///
///     elastrun::worker::Collector collector("train.*", {{"train.step", {Aggregation::P95}}});
///     for (const auto& [name, value] : collector.report()) writer.add_scalar(name, value);
///     collector.reset();
///
/// Of the Stats whose name matches `pattern`, those that exist and those that are made later.
/// `aggregations` by name or pattern take the place of a Stat's own; the first that matches counts.
/// Another thread may ask it.
class Collector {
 public:
  using Aggregations = std::vector<std::pair<std::string, std::vector<Aggregation>>>;

  explicit Collector(std::string pattern = "*", Aggregations aggregations = {})
      : pattern_(std::move(pattern)), instead_(std::move(aggregations)) {
    detail::stat_book.add(*this);
  }
  ~Collector() {
    detail::stat_book.remove(*this);
    for (const auto& core : detail::stat_book.living(pattern_)) {
      const detail::Shared turn;
      core->leave(seen_[core->name].window);
    }
  }
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

  /// NAME.AGGREGATION of what was added since reset(). NAME.count is always there, and 0 where
  /// nothing was added; then COUNT and SUM are all there is, as the others have no value.
  std::map<std::string, double> report() {
    for (const auto& core : detail::stat_book.living(pattern_)) core->observe();
    std::map<std::string, double> told;
    const detail::Shared turn;
    for (auto& [name, one] : seen_) {
      one.window.settle();
      const auto& values = one.window.values;
      told[name + ".count"] = static_cast<double>(values.count);
      for (const auto chosen : one.chosen) {
        if (values.count == 0 && chosen != Aggregation::Sum) continue;
        told[name + '.' + std::string(to_text(chosen))] = values.of(chosen);
      }
    }
    return told;
  }
  /// The buckets of one, as Stat::histogram(); none, if it has not been seen.
  std::vector<std::pair<double, std::uint64_t>> histogram(const std::string& name) {
    const detail::Shared turn;
    const auto found = seen_.find(name);
    if (found == seen_.end()) return {};
    found->second.window.settle();
    return found->second.window.buckets();
  }
  /// Forgets what was added, not which Stats there are.
  void reset() {
    const detail::Shared turn;
    for (auto one = seen_.begin(); one != seen_.end();) {
      one->second.window = detail::StatWindow(one->second.chosen);
      // One that has ended has been reported.
      one = !detail::stat_book.has(one->first) ? seen_.erase(one) : std::next(one);
    }
  }

 private:
  struct Seen {
    std::vector<Aggregation> chosen{};
    detail::StatWindow window{};
  };
  friend class detail::StatBook;
  /// Hears of each Stat that is made, under the lock.
  void notice(detail::StatCore& core) {
    if (!detail::fits(pattern_, core.name)) return;
    const auto [place, fresh] = seen_.try_emplace(core.name);
    if (fresh) {
      const auto instead = std::find_if(instead_.begin(), instead_.end(), [&](const auto& one) {
        return detail::fits(one.first, core.name);
      });
      auto& [chosen, window] = place->second;
      chosen = instead == instead_.end() ? core.aggregations : instead->second;
      window = detail::StatWindow(chosen);
    }
    core.tap(place->second.window);
  }

  const std::string pattern_;
  const Aggregations instead_;
  std::map<std::string, Seen> seen_;  // under the lock
};

inline void detail::StatBook::tell_of(StatCore& core, Collector& listener) {
  listener.notice(core);
}

}  // namespace elastrun::worker
