// SPDX-License-Identifier: Apache-2.0
#include "workers/metric_message.hpp"

#include "telemetry/sketch.hpp"
#include "workers/message_members.hpp"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cmath>

namespace elastrun::workers {
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
bool read_buckets(const json::value* value, bool negative, telemetry::Sketch& sketch) {
  // Exponents of a double end at 1024 above and at -1074 below: an index beyond is a mistake.
  constexpr std::int64_t kMost = 1100ll << telemetry::kSketchScale, kWidest = 2048;
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
std::shared_ptr<const telemetry::Sketch> sketch_of(const json::object& object) {
  const auto scale = whole(object, "scale").value_or(telemetry::kSketchScale);
  // At -8 one bucket spans 256 doublings already, and a finer scale than ours is not kept.
  if (scale < -8 || scale > telemetry::kSketchScale) return nullptr;
  telemetry::Sketch sketch;
  sketch.downscale(static_cast<int>(scale));
  const auto zeros = whole(object, "zeros").value_or(0);
  if (zeros < 0 || zeros > kMostCounted) return nullptr;
  sketch.add_zeros(static_cast<std::uint64_t>(zeros));
  const bool read = read_buckets(object.if_contains("buckets"), false, sketch) &&
                    read_buckets(object.if_contains("negative"), true, sketch);
  return read ? std::make_shared<const telemetry::Sketch>(std::move(sketch)) : nullptr;
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

}  // namespace elastrun::workers
