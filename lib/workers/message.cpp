// SPDX-License-Identifier: Apache-2.0

#include "workers/message.hpp"

#include "core/codec.hpp"
#include "core/text.hpp"
#include "goodput/compat/goodput_calculator.hpp"
#include "worker/summary.hpp"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <csignal>
#include <fmt/format.h>
#include <limits>

namespace elastrun::workers {
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

constexpr std::size_t kMaxLabels = 16;
constexpr std::size_t kMaxMeaning = 1024;         // bytes of a help text
constexpr std::int64_t kMostCounted = 1ll << 53;  // of one bucket in one packet
constexpr double kLongest = 10 * 365.0 * 86400;   // years; a duration must fit into nanoseconds
constexpr std::int64_t kMaxDescriptor = 1 << 30;  // fs.nr_open allows no more

std::unexpected<Error> refuse_packet(std::string_view what) {
  return fail(Code::Protocol, fmt::format("a message of a worker {}", what));
}

/// A text of at most kMaxName bytes, as a terminal may show it (without_controls).
std::optional<std::string> short_text(const json::value* value) {
  const auto* text = value == nullptr ? nullptr : value->if_string();
  if (text == nullptr || text->size() > kMaxName) return std::nullopt;
  return without_controls(*text);
}

std::optional<std::int64_t> whole_of(const json::value* value) {
  return value != nullptr && value->is_int64() ? std::optional(value->get_int64()) : std::nullopt;
}

/// A number; JSON has none for NaN and infinity, so these come as text.
std::optional<double> number_of(const json::value* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is_int64()) return static_cast<double>(value->get_int64());
  if (value->is_uint64()) return static_cast<double>(value->get_uint64());
  if (value->is_double()) return value->get_double();
  if (value->is_string()) return parse_float(std::string_view(value->get_string()));
  return std::nullopt;
}

/// Seconds since the epoch. What the nanoseconds of the wall clock cannot hold, or is before the
/// epoch, is ignored.
std::optional<double> time_of(const json::value* value) {
  const auto seconds = number_of(value);
  // Nanoseconds of more would not fit into 64 bits.
  return seconds && *seconds > 0 && *seconds < 9e9 ? seconds : std::nullopt;
}

bool is_true(const json::value* value) {
  return value != nullptr && value->is_bool() && value->get_bool();
}

/// A member that has to be there.
void needed(Codec& codec, std::string_view name, auto& value, auto... limits) {
  if (!codec.has(name, false)) return codec.refuse(name);
  codec(name, value, limits...);
}

/// A text of 1 to kMaxName bytes.
void name_member(Codec& codec, std::string_view name, std::string& value) {
  codec(name, value, kMaxName);
  if (value.empty()) codec.refuse(name);
}

/// Seconds above 0; none: missing or null.
std::optional<Duration> time_member(Codec& codec, std::string_view name) {
  const auto* const value = codec.find(name);
  if (value == nullptr || value->is_null()) return std::nullopt;
  const auto seconds = number_of(value);
  // Written so that NaN is refused as well.
  if (seconds && *seconds > 0) return from_seconds(std::min(*seconds, kLongest));
  codec.refuse(name);
  return std::nullopt;
}

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

std::vector<std::pair<std::string, std::string>> labels_of(Codec& codec, const json::value* value) {
  std::vector<std::pair<std::string, std::string>> labels;
  if (value == nullptr || value->is_null()) return labels;
  const auto* const object = value->if_object();
  if (object == nullptr || object->size() > kMaxLabels) return codec.refuse("labels"), labels;
  for (const auto& [key, member] : *object) {
    std::string name(std::string_view(key).substr(0, kMaxName));
    auto text = label_text(member);
    if (key.size() > kMaxName || text.size() > kMaxName) codec.refuse("labels");
    if (name.empty()) continue;
    // Renamed as Prometheus does: left out, {"role": "actor"} and "critic" would become one series.
    if (is_ours(name)) name.insert(0, "exported_");
    labels.emplace_back(std::move(name), std::move(text));
  }
  // In one order, whatever that of the sender: these are what tells series apart.
  std::ranges::sort(labels);
  return labels;
}

/// Null: nothing is said.
std::shared_ptr<const telemetry::Meaning> meaning_of(Codec& codec, const json::value* labels,
                                                     const json::value* unit,
                                                     const json::value* help) {
  telemetry::Meaning meaning{short_text(unit).value_or(""), {}, labels_of(codec, labels)};
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
std::optional<worker::Sketch> sketch_of(const Codec& codec) {
  const auto scale = whole_of(codec.find("scale")).value_or(worker::kSketchScale);
  // At -8 one bucket spans 256 doublings already, and a finer scale than ours is not kept.
  if (scale < -8 || scale > worker::kSketchScale) return std::nullopt;
  worker::Sketch sketch;
  sketch.downscale(static_cast<int>(scale));
  const auto zeros = whole_of(codec.find("zeros")).value_or(0);
  if (zeros < 0 || zeros > kMostCounted) return std::nullopt;
  sketch.add_zeros(static_cast<std::uint64_t>(zeros));
  const bool read = read_buckets(codec.find("buckets"), false, sketch) &&
                    read_buckets(codec.find("negative"), true, sketch);
  return read ? std::optional(std::move(sketch)) : std::nullopt;
}

/// Of a worker that sums its samples up; null if it does not, or not in numbers.
std::shared_ptr<telemetry::Summary> batch_of(const Codec& codec, double last) {
  const auto count = whole_of(codec.find("count"));
  const auto sum = number_of(codec.find("sum"));
  const auto min = number_of(codec.find("min")), max = number_of(codec.find("max"));
  const bool whole_batch = count && *count > 0 && sum && min && max;
  if (!whole_batch || !std::isfinite(*sum) || !std::isfinite(*min) || !std::isfinite(*max)) {
    return nullptr;
  }
  // Quantiles are clamped between these two, which is undefined if they are the wrong way round.
  if (*min > *max) return nullptr;
  auto batch = std::make_shared<telemetry::Summary>();
  batch->count = static_cast<std::uint64_t>(*count);
  batch->last = last, batch->sum = *sum, batch->min = *min, batch->max = *max;
  return batch;
}

std::vector<telemetry::Attribute> event_attributes(const json::object& object) {
  std::vector<telemetry::Attribute> attributes;
  for (const auto& [key, value] : object) {
    attributes.emplace_back(
        key, value.is_structured() ? json::serialize(value) : telemetry::to_value(value));
  }
  return attributes;
}

/// Nothing for what the account does not read.
Result<std::optional<GoodputEntry>> entry_from(const json::value& value) {
  const auto* object = value.if_object();
  if (object == nullptr) return fail(Code::Protocol, "an entry is a JSON object");
  auto read = goodput::read_measurement(goodput::members_of(*object));
  if (!read) return std::unexpected(read.error());
  if (read->entry.kind == goodput::MeasurementKind::Other) return std::nullopt;
  if (object->size() > kMaxAttributes) return refuse_packet("has more than 64 attributes");
  return GoodputEntry{read->entry, std::move(read->detail.name), event_attributes(*object)};
}

}  // namespace

std::string with_whole_characters(std::string_view json) {
  const std::string text = valid_utf8(json);
  std::string mended;
  mended.reserve(text.size());
  for (std::string_view rest = text; !rest.empty();) {
    const unsigned unit = unit_of(rest);
    const unsigned next = unit >= kHigh && unit < kLow ? unit_of(rest.substr(kEscape)) : 0;
    const bool pair = next >= kLow && next < kEnd, half = !pair && unit >= kHigh && unit < kEnd;
    // Two bytes of any other escape: a quote or a backslash behind a backslash begins nothing.
    const auto size = pair ? 2 * kEscape : half ? kEscape : rest.front() == '\\' ? 2 : 1;
    mended += half ? std::string_view("\\ufffd") : rest.substr(0, size);
    rest.remove_prefix(std::min(size, rest.size()));
  }
  return mended;
}

void members(Codec& codec, StepDone& done) {
  needed(codec, "step", done.step);
}
void members(Codec& codec, CheckpointDone& done) {
  needed(codec, "step", done.step, -2);
}

void members(Codec& codec, MetricSample& sample) {
  name_member(codec, "name", sample.name);
  const auto value = number_of(codec.find("value"));
  if (!value) return codec.refuse("value");
  sample.value = *value;
  sample.group = short_text(codec.find("group")).value_or("worker");
  sample.meaning = meaning_of(codec, codec.find("labels"), codec.find("unit"), codec.find("help"));
  const auto type = short_text(codec.find("type")).value_or("");
  if (type == "counter") {
    // Written so that NaN is refused, too. Readers take a counter that falls for one that began
    // again, as rate() of Prometheus does.
    if (!(*value >= 0) || std::isinf(*value)) codec.refuse("value");
    sample.counts = true;
    return;
  }
  sample.batch = batch_of(codec, sample.value);
  sample.step = whole_of(codec.find("step"));
  if (sample.step && *sample.step < 0) sample.step.reset();
  sample.time = time_of(codec.find("time"));
  sample.each = is_true(codec.find("each"));
  if (type != "histogram") return;
  auto sketch = sketch_of(codec);
  if (!sample.batch || !sketch || sketch->count() != sample.batch->count)
    return codec.refuse("buckets");
  sample.batch->sketch = std::move(sketch);
}

void members(Codec& codec, SamplesTold& told) {
  if (!codec.has("series", false)) codec.refuse("series");
  if (!codec.has("samples", false)) codec.refuse("samples");
  for (const auto& value : codec.elements("series")) {
    // [group, name, labels, unit, help]
    const auto* const row = value.if_array();
    const auto member = [&](std::size_t place) {
      return row != nullptr && row->size() > place ? &(*row)[place] : nullptr;
    };
    auto group = short_text(member(0)), name = short_text(member(1));
    if (!group || !name || name->empty()) return codec.refuse("series");
    auto meaning = meaning_of(codec, member(2), member(3), member(4));
    told.series.push_back({std::move(*group), std::move(*name), std::move(meaning)});
  }
  for (const auto& value : codec.elements("samples")) {
    // [series, time, value, step]
    const auto* const row = value.if_array();
    if (row == nullptr || row->size() < 3 || row->size() > 4) return codec.refuse("samples");
    const auto series = whole_of(&(*row)[0]);
    const auto time = time_of(&(*row)[1]), number = number_of(&(*row)[2]);
    if (!series || *series < 0 || std::cmp_greater_equal(*series, told.series.size()) || !time ||
        !number) {
      return codec.refuse("samples");
    }
    SamplesTold::Sample one{static_cast<std::size_t>(*series), *time, *number};
    const auto step = row->size() == 4 ? whole_of(&(*row)[3]) : std::nullopt;
    if (step && *step >= 0) one.step = *step;
    told.samples.push_back(one);
  }
  const auto* const suppressed = codec.find("suppressed");
  if (suppressed == nullptr || !suppressed->is_object()) return;
  for (const auto& [group, count] : suppressed->get_object()) {
    const auto number = whole_of(&count);
    if (!number || *number < 1 || group.size() > kMaxName) continue;
    told.suppressed.emplace_back(std::string_view(group), static_cast<std::uint64_t>(*number));
  }
}

void members(Codec& codec, WorkerEvent& event) {
  name_member(codec, "name", event.name);
  event.time = time_of(codec.find("time"));
  const auto* const attributes = codec.find("attributes");
  if (attributes == nullptr) return;
  const auto* const object = attributes->if_object();
  if (object == nullptr || object->size() > kMaxAttributes) return codec.refuse("attributes");
  event.attributes = event_attributes(*object);
}

void members(Codec& codec, TimerSet& timer) {
  needed(codec, "id", timer.id);
  needed(codec, "scope", timer.scope, kMaxName);
  const auto* const deadline = codec.find("deadline");
  if (deadline == nullptr || deadline->is_null()) return;
  timer.deadline = number_of(deadline);
  timer.after = number_of(codec.find("after")).value_or(0);
  if (!timer.deadline || !std::isfinite(*timer.deadline) || !std::isfinite(timer.after))
    codec.refuse("deadline");
  codec("signal", timer.signal, 0, SIGRTMAX);
}

void members(Codec& codec, StacksOffered& offer) {
  needed(codec, "signal", offer.signal, 1, SIGRTMAX);
  // Neither can have a handler (signal(7)).
  if (offer.signal == SIGKILL || offer.signal == SIGSTOP) codec.refuse("signal");
  needed(codec, "descriptor", offer.descriptor, 0, kMaxDescriptor);
  codec("thread", offer.thread, 0, std::numeric_limits<pid_t>::max());
}

void members(Codec& codec, PhaseEntered& phase) {
  name_member(codec, "phase", phase.name);
  phase.at_most = time_member(codec, "at_most");
}

/// An entry that cannot be read costs only itself.
void members(Codec& codec, GoodputEntries& said) {
  said.job = short_text(codec.find("job")).value_or("");
  said.by_hooks = is_true(codec.find("hooks"));
  // A negative number would become a huge one.
  said.lost = static_cast<std::uint64_t>(
      std::max<std::int64_t>(whole_of(codec.find("lost")).value_or(0), 0));
  if (!codec.has("entries", false)) codec.refuse("entries");
  for (const auto& one : codec.elements("entries")) {
    auto entry = entry_from(one);
    if (!entry) {
      if (++said.refused == 1) said.refusal = std::move(entry.error().text);
    } else if (*entry) {
      said.entries.push_back(std::move(**entry));
    }
  }
  // To the account an entry that was refused is missing just as one that was lost.
  said.lost += said.refused;
}

void members(Codec& codec, PreemptAsked& ask) {
  ask.deadline = time_member(codec, "deadline").value_or(Duration::zero());
}

void members(Codec& codec, SentFrom& from) {
  // A path may have any bytes.
  const auto* const directory = codec.find("directory");
  if (directory == nullptr || !directory->is_string()) return codec.refuse("directory");
  from.directory = std::string_view(directory->get_string());
}

void members(Codec& codec, NotTold& lost) {
  needed(codec, "count", lost.count, 1);
}

Result<Message> parse_message(std::string_view packet) {
  // By their place in the variant.
  constexpr std::array<std::string_view, std::variant_size_v<Message>> kKinds = {
      "step",  "checkpoint", "metric",     "event",   "returned", "timer", "stacks",
      "phase", "goodput",    "ask_stacks", "preempt", "from",     "lost",  "samples"};
  if (packet.size() > kMaxPacket) return refuse_packet("is longer than 16 KiB");
  json::error_code error;
  json::parse_options options;
  options.max_depth = 8;
  auto value = json::parse(packet, error, {}, options);
  // Only then, because the mending costs a copy and nearly all packets are sound.
  if (error) value = json::parse(with_whole_characters(packet), error, {}, options);
  if (error || !value.is_object()) return refuse_packet("is not a JSON object");
  std::string unsound, kind;
  Codec codec(value, unsound);
  codec("kind", kind, kMaxName);
  if (kind.empty()) return refuse_packet("has no `kind`");
  Message message;
  if (!read_alternative(codec, kind, kKinds, message))
    return refuse_packet(fmt::format("has the unknown kind '{}'", kind));
  if (!unsound.empty())
    return refuse_packet(fmt::format("of kind {} has no valid `{}`", kind, unsound));
  return message;
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
