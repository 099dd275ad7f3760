// SPDX-License-Identifier: Apache-2.0

#include "workers/message.hpp"

#include "core/text.hpp"
#include "goodput/compat/measurement_log.hpp"
#include "worker/summary.hpp"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <boost/json/object.hpp>
#include <charconv>
#include <cmath>
#include <csignal>
#include <fmt/format.h>
#include <limits>

namespace elastrun::workers::members {

namespace json = boost::json;

namespace {

constexpr std::size_t kEscape = 6;  // \uXXXX
constexpr unsigned kHigh = 0xd800, kLow = 0xdc00, kEnd = 0xe000;

/// The code unit of an escape `\uXXXX` at the front; 0 if there is none.
unsigned unit_of(std::string_view text) {
  if (text.size() < kEscape || text[0] != '\\' || text[1] != 'u') return 0;
  unsigned unit = 0;
  const char* const end = text.data() + kEscape;
  const auto read = std::from_chars(text.data() + 2, end, unit, 16);
  return read.ptr == end ? unit : 0;
}

/// How many bytes at the front, of which the first is a backslash, belong together; `whole` tells
/// whether they are more than half of a character.
std::size_t escape_at(std::string_view text, bool& whole) {
  const unsigned unit = unit_of(text);
  whole = unit < kHigh || unit >= kEnd;
  if (whole) return std::min<std::size_t>(text.size(), 2);
  const unsigned next = unit < kLow ? unit_of(text.substr(kEscape)) : 0;
  whole = next >= kLow && next < kEnd;
  return whole ? 2 * kEscape : kEscape;
}

}  // namespace

std::string with_whole_characters(std::string_view json) {
  const std::string text = valid_utf8(json);
  std::string mended;
  mended.reserve(text.size());
  for (std::string_view rest = text; !rest.empty();) {
    bool whole = true;
    const auto size = rest.front() == '\\' ? escape_at(rest, whole) : 1;
    mended += whole ? rest.substr(0, size) : std::string_view("\\ufffd");
    rest.remove_prefix(size);
  }
  return mended;
}

std::unexpected<Error> refuse(std::string_view what) {
  return fail(Code::Protocol, fmt::format("a message of a worker {}", what));
}

std::optional<std::string> name_of(const json::value* value) {
  const auto* text = value == nullptr ? nullptr : value->if_string();
  if (text == nullptr || text->size() > kMaxName) return std::nullopt;
  return without_controls(*text);
}

std::optional<std::string> text_in(const json::object& object, std::string_view key) {
  return name_of(object.if_contains(key));
}

std::optional<std::int64_t> whole(const json::object& object, std::string_view key) {
  const auto* value = object.if_contains(key);
  return value != nullptr && value->is_int64() ? std::optional(value->get_int64()) : std::nullopt;
}

std::optional<double> number_of(const json::value* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is_int64()) return static_cast<double>(value->get_int64());
  if (value->is_uint64()) return static_cast<double>(value->get_uint64());
  if (value->is_double()) return value->get_double();
  if (value->is_string()) return parse_float(std::string_view(value->get_string()));
  return std::nullopt;
}

std::optional<double> time_of(const json::value* value) {
  const auto seconds = number_of(value);
  // Nanoseconds of more would not fit into 64 bits.
  return seconds && *seconds > 0 && *seconds < 9e9 ? seconds : std::nullopt;
}

}  // namespace elastrun::workers::members

namespace elastrun::workers {

/// Packets of kind metric and samples. Both fail with Protocol and one sentence. Pure.
Result<Message> metric_from(const boost::json::object& object);
Result<Message> samples_from(const boost::json::object& object);

namespace {
namespace json = boost::json;
using members::number_of;
using members::refuse;
using members::text_in;
using members::whole;

constexpr std::size_t kMaxLabels = 16;
constexpr std::size_t kMaxMeaning = 1024;         // bytes of a help text
constexpr std::int64_t kMostCounted = 1ll << 53;  // of one bucket in one packet

/// Who a worker is, and what else the agent says of a sample, is for the agent to say.
bool is_ours(std::string_view label) {
  constexpr std::array<std::string_view, 6> kOurs = {"rank",    "local_rank", "role",
                                                     "attempt", "step",       "total"};
  return std::ranges::find(kOurs, label) != kOurs.end();
}

std::string label_text(const json::value& value) {
  if (value.is_string()) return std::string(std::string_view(value.get_string()));
  return json::serialize(value);
}

Result<std::vector<std::pair<std::string, std::string>>> labels_from(const json::value* value) {
  std::vector<std::pair<std::string, std::string>> labels;
  if (value == nullptr || value->is_null()) return labels;
  if (!value->is_object()) return refuse("has `labels` that are not an object");
  for (const auto& [key, member] : value->get_object()) {
    if (labels.size() == kMaxLabels) return refuse("has more than 16 labels");
    std::string name(std::string_view(key).substr(0, kMaxName));
    auto text = label_text(member);
    if (key.size() > kMaxName || text.size() > kMaxName) {
      return refuse("has a label of more than 256 bytes");
    }
    if (name.empty()) continue;
    // Renamed as Prometheus does: left out, {"role": "actor"} and "critic" would become one series.
    if (is_ours(name)) name.insert(0, "exported_");
    labels.emplace_back(std::move(name), std::move(text));
  }
  // In one order, whatever that of the sender: these are what tells series apart.
  std::ranges::sort(labels);
  return labels;
}

using MeaningPointer = std::shared_ptr<const telemetry::Meaning>;

/// Null: nothing is said.
Result<MeaningPointer> meaning_from(const json::value* labels, std::optional<std::string> unit,
                                    const json::value* help) {
  auto said = labels_from(labels);
  if (!said) return std::unexpected(said.error());
  telemetry::Meaning meaning{unit.value_or(""), {}, std::move(*said)};
  if (help != nullptr && help->is_string() && help->get_string().size() <= kMaxMeaning) {
    meaning.help = std::string_view(help->get_string());
  }
  if (meaning == telemetry::Meaning()) return nullptr;
  return std::make_shared<const telemetry::Meaning>(std::move(meaning));
}

/// [[index, count], ...]; false: it is something else. An index beyond the numbers of a double is
/// none, and a wide range would take memory for what lies between.
bool read_buckets(const json::value* value, bool negative, worker::Sketch& sketch) {
  // Exponents of a double end at 1024 above and at -1074 below: an index beyond is a mistake.
  constexpr std::int64_t kMost = 1100ll << worker::kSketchScale, kWidest = 2048;
  if (value == nullptr) return true;
  if (!value->is_array()) return false;
  auto first = kMost, last = -kMost;
  for (const auto& one : value->get_array()) {
    const auto* const pair = one.if_array();
    if (pair == nullptr || pair->size() != 2) return false;
    const auto* const index = (*pair)[0].if_int64();
    const auto* const count = (*pair)[1].if_int64();
    if (index == nullptr || count == nullptr || *index < -kMost || *index > kMost) return false;
    first = std::min(first, *index);
    last = std::max(last, *index);
    // A sketch keeps all counts between its two ends, so two far ones could take as much memory as
    // a worker likes.
    if (last - first >= kWidest || *count < 1 || *count > kMostCounted) return false;
    sketch.add_bucket(static_cast<int>(*index), static_cast<std::uint64_t>(*count), negative);
  }
  return true;
}

/// Of a metric of type histogram; nothing if it is not one that can be read.
std::shared_ptr<const worker::Sketch> sketch_of(const json::object& object) {
  const auto scale = whole(object, "scale").value_or(worker::kSketchScale);
  // At -8 one bucket spans 256 doublings already, and a finer scale than ours is not kept.
  if (scale < -8 || scale > worker::kSketchScale) return nullptr;
  worker::Sketch sketch;
  sketch.downscale(static_cast<int>(scale));
  const auto zeros = whole(object, "zeros").value_or(0);
  if (zeros < 0 || zeros > kMostCounted) return nullptr;
  sketch.add_zeros(static_cast<std::uint64_t>(zeros));
  const bool read = read_buckets(object.if_contains("buckets"), false, sketch) &&
                    read_buckets(object.if_contains("negative"), true, sketch);
  return read ? std::make_shared<const worker::Sketch>(std::move(sketch)) : nullptr;
}

/// Of a worker that sums its samples up; nothing if it does not, or not in numbers.
std::optional<MetricSample::Batch> batch_of(const json::object& object) {
  const auto count = whole(object, "count");
  const auto sum = number_of(object.if_contains("sum"));
  const auto min = number_of(object.if_contains("min")), max = number_of(object.if_contains("max"));
  const bool whole_batch = count && *count > 0 && sum && min && max;
  if (!whole_batch || !std::isfinite(*sum) || !std::isfinite(*min) || !std::isfinite(*max)) {
    return std::nullopt;
  }
  // Quantiles are clamped between these two, which is undefined if they are the wrong way round.
  if (*min > *max) return std::nullopt;
  return MetricSample::Batch{static_cast<std::uint64_t>(*count), *sum, *min, *max};
}

Status make_histogram(MetricSample& sample, const json::object& object) {
  auto sketch = sketch_of(object);
  if (!sample.batch || !sketch || sketch->count() != sample.batch->count) {
    return refuse(
        "of type histogram needs `count`, `sum`, `min`, `max` and `buckets` with as many values");
  }
  sample.batch->sketch = std::move(sketch);
  return {};
}

struct Columns {
  SamplesTold told;
  Status read_series(const json::value& value) {
    const auto* const row = value.if_array();
    const auto member = [&](std::size_t place) {
      return row != nullptr && row->size() > place ? &(*row)[place] : nullptr;
    };
    auto group = members::name_of(member(0)), name = members::name_of(member(1));
    if (!group || !name || name->empty())
      return refuse("of kind samples has a series without name");
    auto meaning = meaning_from(member(2), members::name_of(member(3)), member(4));
    if (!meaning) return std::unexpected(meaning.error());
    told.series.push_back({std::move(*group), std::move(*name), std::move(*meaning)});
    return {};
  }
  Status read_sample(const json::value& value) {
    const auto* const row = value.if_array();
    if (row == nullptr || row->size() < 3 || row->size() > 4) {
      return refuse("of kind samples has a sample that is not [series, time, value, step]");
    }
    const auto* const series = (*row)[0].if_int64();
    const auto time = members::time_of(&(*row)[1]);
    const auto number = number_of(&(*row)[2]);
    if (series == nullptr || *series < 0 || std::cmp_greater_equal(*series, told.series.size()) ||
        !time || !number) {
      return refuse("of kind samples has a sample that is not [series, time, value, step]");
    }
    SamplesTold::Sample one{static_cast<std::size_t>(*series), *time, *number};
    const auto* const step = row->size() == 4 ? (*row)[3].if_int64() : nullptr;
    if (step != nullptr && *step >= 0) one.step = *step;
    told.samples.push_back(one);
    return {};
  }
  void read_suppressed(const json::object& object) {
    for (const auto& [group, count] : object) {
      const auto* const number = count.if_int64();
      if (number == nullptr || *number < 1 || group.size() > kMaxName) continue;
      told.suppressed.emplace_back(std::string_view(group), static_cast<std::uint64_t>(*number));
    }
  }
};

}  // namespace

Result<Message> metric_from(const json::object& object) {
  auto name = text_in(object, "name");
  const auto value = number_of(object.if_contains("value"));
  if (!name || name->empty()) return refuse("of kind metric needs a `name`");
  if (!value) return refuse("of kind metric needs a number `value`");
  MetricSample sample{std::move(*name), *value, text_in(object, "group").value_or("worker")};
  auto meaning = meaning_from(object.if_contains("labels"), text_in(object, "unit"),
                              object.if_contains("help"));
  if (!meaning) return std::unexpected(meaning.error());
  sample.meaning = std::move(*meaning);
  const auto type = text_in(object, "type").value_or("");
  if (type == "counter") {
    // Written so that NaN is refused, too. Readers take a counter that falls for one that began
    // again, as rate() of Prometheus does.
    if (!(*value >= 0) || std::isinf(*value)) {
      return refuse("of type counter needs a `value` that is finite and not below 0");
    }
    sample.counts = true;
    return sample;
  }
  sample.batch = batch_of(object);
  sample.step = whole(object, "step");
  if (sample.step && *sample.step < 0) sample.step.reset();
  sample.time = members::time_of(object.if_contains("time"));
  const auto* const each = object.if_contains("each");
  sample.each = each != nullptr && each->is_bool() && each->get_bool();
  if (type == "histogram") {
    if (auto done = make_histogram(sample, object); !done) return std::unexpected(done.error());
  }
  return sample;
}

Result<Message> samples_from(const json::object& object) {
  Columns read;
  const auto* const series = object.if_contains("series");
  const auto* const samples = object.if_contains("samples");
  if (series == nullptr || !series->is_array() || samples == nullptr || !samples->is_array()) {
    return refuse("of kind samples needs lists `series` and `samples`");
  }
  for (const auto& one : series->get_array()) {
    if (auto done = read.read_series(one); !done) return std::unexpected(done.error());
  }
  for (const auto& one : samples->get_array()) {
    if (auto done = read.read_sample(one); !done) return std::unexpected(done.error());
  }
  const auto* const suppressed = object.if_contains("suppressed");
  if (suppressed != nullptr && suppressed->is_object()) {
    read.read_suppressed(suppressed->get_object());
  }
  return std::move(read.told);
}

namespace {

constexpr double kLongest = 10 * 365.0 * 86400;   // years; a duration must fit into nanoseconds
constexpr std::int64_t kMaxDescriptor = 1 << 30;  // fs.nr_open allows no more

AttributeValue attribute_of(const json::value& value) {
  if (value.is_bool()) return value.get_bool();
  if (value.is_int64()) return value.get_int64();
  if (value.is_uint64()) return static_cast<double>(value.get_uint64());
  if (value.is_double()) return value.get_double();
  if (value.is_string()) return std::string(std::string_view(value.get_string()));
  if (value.is_null()) return std::monostate{};
  return json::serialize(value);
}

Result<Message> step_from(const json::object& object) {
  const auto step = whole(object, "step");
  if (!step || *step < 0) return refuse("of kind step needs a whole number `step` of at least 0");
  return StepDone{*step};
}

Result<Message> checkpoint_from(const json::object& object) {
  const auto step = whole(object, "step");
  if (!step || *step < -2) return refuse("of kind checkpoint needs a whole number `step`");
  return CheckpointDone{*step};
}

using Members = std::vector<std::pair<std::string, AttributeValue>>;

/// Fails with the end of a sentence.
Result<Members> members_from(const json::object& object) {
  Members members;
  for (const auto& [key, value] : object) {
    if (members.size() == kMaxAttributes) return refuse("has more than 64 attributes");
    members.emplace_back(std::string(std::string_view(key)), attribute_of(value));
  }
  return members;
}

Result<Message> event_from(const json::object& object) {
  auto name = text_in(object, "name");
  if (!name || name->empty()) return refuse("of kind event needs a `name`");
  WorkerEvent event{std::move(*name), {}, {}};
  event.time = members::time_of(object.if_contains("time"));
  const auto* attributes = object.if_contains("attributes");
  if (attributes == nullptr) return event;
  if (!attributes->is_object()) return refuse("has `attributes` that are not an object");
  auto members = members_from(attributes->get_object());
  if (!members) return std::unexpected(members.error());
  event.attributes = std::move(*members);
  return event;
}

Result<Message> timer_from(const json::object& object) {
  const auto id = whole(object, "id");
  auto scope = text_in(object, "scope");
  if (!id || *id < 0) return refuse("of kind timer needs a whole number `id` of at least 0");
  if (!scope) return refuse("of kind timer needs a text `scope` of at most 256 bytes");
  TimerSet timer{static_cast<std::uint64_t>(*id), std::move(*scope)};
  const auto* deadline = object.if_contains("deadline");
  if (deadline == nullptr || deadline->is_null()) return timer;
  timer.deadline = number_of(deadline);
  timer.after = number_of(object.if_contains("after")).value_or(0);
  const auto signal = object.contains("signal") ? whole(object, "signal") : timer.signal;
  if (!timer.deadline || !std::isfinite(*timer.deadline) || !std::isfinite(timer.after)) {
    return refuse("of kind timer has a `deadline` that is not a number of seconds");
  }
  if (!signal || *signal < 0 || *signal > SIGRTMAX) {
    return refuse("of kind timer has a `signal` that does not exist");
  }
  timer.signal = static_cast<int>(*signal);
  return timer;
}

Result<Message> stacks_from(const json::object& object) {
  const auto signal = whole(object, "signal");
  const auto descriptor = whole(object, "descriptor");
  const bool exists = signal && *signal > 0 && *signal <= SIGRTMAX;
  // Neither can have a handler (signal(7)).
  if (!exists || *signal == SIGKILL || *signal == SIGSTOP) {
    return refuse("of kind stacks needs a `signal` that can be handled");
  }
  if (!descriptor || *descriptor < 0 || *descriptor > kMaxDescriptor) {
    return refuse("of kind stacks needs a `descriptor`");
  }
  const auto thread = object.contains("thread") ? whole(object, "thread") : 0;
  if (!thread || *thread < 0 || *thread > std::numeric_limits<pid_t>::max()) {
    return refuse("of kind stacks has a `thread` that does not exist");
  }
  return StacksOffered{static_cast<int>(*signal), static_cast<int>(*descriptor),
                       static_cast<pid_t>(*thread)};
}

/// Nothing for what the account does not read.
Result<std::optional<GoodputEntry>> entry_from(const json::value& value) {
  auto read = goodput::read_measurement(value);
  if (!read) return std::unexpected(read.error());
  if (read->entry.kind == goodput::MeasurementKind::Other) return std::nullopt;
  auto members = members_from(value.get_object());
  if (!members) return std::unexpected(members.error());
  return GoodputEntry{read->entry, std::move(read->name), std::move(*members)};
}

/// An entry that cannot be read costs only itself.
Result<Message> goodput_from(const json::object& object) {
  GoodputEntries said{text_in(object, "job").value_or(""), {}, 0};
  const auto* hooks = object.if_contains("hooks");
  said.by_hooks = hooks != nullptr && hooks->is_bool() && hooks->get_bool();
  said.lost =
      // A negative number would become a huge one.
      static_cast<std::uint64_t>(std::max<std::int64_t>(whole(object, "lost").value_or(0), 0));
  const auto* entries = object.if_contains("entries");
  if (entries == nullptr || !entries->is_array()) return refuse("of kind goodput needs `entries`");
  for (const auto& one : entries->get_array()) {
    auto entry = entry_from(one);
    if (!entry) {
      if (++said.refused == 1) said.refusal = std::move(entry.error().text);
    } else if (*entry) {
      said.entries.push_back(std::move(**entry));
    }
  }
  // To the account an entry that was refused is missing just as one that was lost.
  said.lost += said.refused;
  return said;
}

Result<Message> sender_from(const json::object& object) {
  const auto* directory = object.if_contains("directory");
  if (directory == nullptr || !directory->is_string()) {
    return refuse("of kind from needs a text `directory`");
  }
  return SentFrom{std::string(std::string_view(directory->get_string()))};
}

Result<Message> lost_from(const json::object& object) {
  const auto count = whole(object, "count").value_or(0);
  if (count < 1) return refuse("of kind lost needs a whole `count` of at least 1");
  return NotTold{static_cast<std::uint64_t>(count)};
}

Result<Message> phase_from(const json::object& object) {
  auto name = text_in(object, "phase");
  if (!name || name->empty()) return refuse("of kind phase needs a text `phase` of 1 to 256 bytes");
  PhaseEntered phase{std::move(*name)};
  const auto* at_most = object.if_contains("at_most");
  if (at_most == nullptr || at_most->is_null()) return phase;
  const auto seconds = number_of(at_most);
  // Written so that NaN is refused as well.
  if (!seconds || !(*seconds > 0)) {
    return refuse("of kind phase has an `at_most` that is not a number of seconds above 0");
  }
  phase.at_most = from_seconds(std::min(*seconds, kLongest));
  return phase;
}

Result<Message> preempt_from(const json::object& object) {
  const auto* deadline = object.if_contains("deadline");
  if (deadline == nullptr || deadline->is_null()) return PreemptAsked{};
  const auto seconds = number_of(deadline);
  // Refuses NaN as well, as above.
  if (!seconds || !(*seconds > 0)) {
    return refuse("of kind preempt has a `deadline` that is not a number of seconds above 0");
  }
  return PreemptAsked{from_seconds(std::min(*seconds, kLongest))};
}

}  // namespace

Result<Message> parse_message(std::string_view packet) {
  if (packet.size() > kMaxPacket) return refuse("is longer than 16 KiB");
  json::error_code error;
  json::parse_options options;
  options.max_depth = 8;
  auto value = json::parse(packet, error, {}, options);
  // Only then, because the mending costs a copy and nearly all packets are sound.
  if (error) value = json::parse(members::with_whole_characters(packet), error, {}, options);
  if (error || !value.is_object()) return refuse("is not a JSON object");
  const auto& object = value.get_object();
  const auto kind = text_in(object, "kind");
  if (!kind) return refuse("has no `kind`");
  if (*kind == "step") return step_from(object);
  if (*kind == "checkpoint") return checkpoint_from(object);
  if (*kind == "metric") return metric_from(object);
  if (*kind == "samples") return samples_from(object);
  if (*kind == "event") return event_from(object);
  if (*kind == "timer") return timer_from(object);
  if (*kind == "stacks") return stacks_from(object);
  if (*kind == "phase") return phase_from(object);
  if (*kind == "goodput") return goodput_from(object);
  if (*kind == "from") return sender_from(object);
  if (*kind == "lost") return lost_from(object);
  if (*kind == "ask_stacks") return StacksAsked{};
  if (*kind == "preempt") return preempt_from(object);
  if (*kind == "returned") return Returned{};
  return refuse(fmt::format("has the unknown kind '{}'", *kind));
}

std::optional<std::int64_t> step_of(const Message& message) {
  if (const auto* step = std::get_if<StepDone>(&message)) return step->step;
  const auto* said = std::get_if<GoodputEntries>(&message);
  if (said == nullptr) return std::nullopt;
  std::optional<std::int64_t> last;
  for (const auto& [entry, name, members] : said->entries) {
    using Kind = goodput::MeasurementKind;
    if (entry.kind == Kind::Step || entry.kind == Kind::StepEnd) last = entry.step;
  }
  return last;
}

}  // namespace elastrun::workers
