// SPDX-License-Identifier: Apache-2.0
#include "export/families.hpp"

#include "core/exported_name.hpp"
#include "core/text.hpp"
#include "telemetry/record.hpp"
#include "telemetry/value.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unordered_set>

namespace elastrun::exporter {
namespace {

using telemetry::Kind;
using telemetry::Point;
using telemetry::Snapshot;
using Type = Family::Type;

/// Most text is ASCII, which needs no second look.
std::string clean(std::string text) {
  const auto plain = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  return std::all_of(text.begin(), text.end(), plain) ? text : valid_utf8(text);
}

Type type_of(Kind kind) {
  switch (kind) {
    case Kind::Counter:
      return Type::Counter;
    case Kind::UpDown:
    case Kind::Gauge:
      return Type::Gauge;
    case Kind::Stat:
      return Type::Summary;
    case Kind::Histogram:
      return Type::Histogram;
  }
  return Type::Unknown;
}

std::string family_name(const Point& point, std::string_view unit) {
  std::string name = prometheus_name(point.spec->name);
  // The page adds it.
  if (point.kind == Kind::Counter && name.ends_with("_total")) name.resize(name.size() - 6);
  if (!unit.empty() && name != unit && !name.ends_with("_" + std::string(unit))) {
    name += "_" + std::string(unit);
  }
  // The end of a name by which readers know histograms and summaries.
  if (type_of(point.kind) == Type::Gauge && name.ends_with("_count")) {
    name.replace(name.size() - 6, 6, "_number");
  }
  return name;
}

/// The names of the samples that a family writes in either format.
std::vector<std::string> sample_names(const std::string& name, Type type) {
  switch (type) {
    case Type::Counter:
      return {name, name + "_total", name + "_created"};
    case Type::Histogram:
      return {name, name + "_bucket", name + "_count", name + "_sum", name + "_created"};
    case Type::Summary:
      return {name, name + "_count", name + "_sum", name + "_created"};
    case Type::Info:
      return {name, name + "_info"};
    default:
      return {name};
  }
}

std::vector<Sample::Bucket> buckets_of(const telemetry::Sketch& sketch, std::uint64_t count,
                                       const std::vector<double>& bounds) {
  std::vector<Sample::Bucket> buckets;
  for (const double bound : bounds) {
    // Cumulative, as the formats want them; never above the count, which a reader would take for a
    // broken histogram.
    buckets.push_back({bound, std::min(sketch.count_up_to(bound), count)});
  }
  // Both formats demand a bucket for +Inf, which has the count of all.
  buckets.push_back({HUGE_VAL, count});
  return buckets;
}

bool has_value(const Point& point) {
  const double* const number = std::get_if<double>(&point.value);
  const bool odd = number != nullptr && !std::isfinite(*number);
  // A counter may not be NaN in OpenMetrics, and one that is infinite has no rise any more.
  return !point.no_data && !(point.kind == Kind::Counter && odd);
}

/// What the keys of labels become, which are the same for all series of an instrument.
class LabelNames {
 public:
  const std::string& of(std::size_t place, const std::string& key) {
    if (known_.size() <= place) known_.resize(place + 1);
    auto& [known, name] = known_[place];
    if (known != key || name.empty()) {
      known = key;
      name = prometheus_name(key);
    }
    return name;
  }

 private:
  std::vector<Label> known_;
};

std::string label_text(const telemetry::Value& value) {
  if (const auto* const flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  return clean(telemetry::to_text(value));
}

std::vector<Label> labels_of(const std::vector<telemetry::Attribute>& attributes,
                             LabelNames& names) {
  std::vector<Label> labels;
  labels.reserve(attributes.size() + 1);  // and the scope
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    const auto& [key, value] = attributes[i];
    const auto& name = names.of(i, key);
    const auto known = std::find_if(labels.begin(), labels.end(),
                                    [&](const Label& label) { return label.first == name; });
    if (known == labels.end()) {
      labels.emplace_back(name, label_text(value));
    } else {
      // OpenTelemetry's rule for keys that become the same label.
      known->second += ";" + label_text(value);
    }
  }
  // One order for one set of labels: take_series() hashes them in a row, and a series whose labels
  // come in another order is the same series.
  if (!std::is_sorted(labels.begin(), labels.end())) std::sort(labels.begin(), labels.end());
  return labels;
}

void fill(Sample& sample, const Point& point, const Snapshot& snapshot,
          const FamilyOptions& options, LabelNames& names) {
  sample.labels = labels_of(point.labels, names);
  // A label that stands twice in a line would cost the whole page.
  if (options.scope_labels && !point.spec->scope.empty()) {
    make_room(sample.labels, "otel_scope_name");
    sample.labels.emplace_back("otel_scope_name", clean(point.spec->scope));
  }
  sample.value = point.value;
  sample.sum = point.summary.sum;
  sample.count = point.summary.count;
  sample.has_negative = point.summary.count != 0 && point.summary.min < 0;
  if (point.kind == Kind::Histogram) {
    const auto sketch = point.summary.sketch.value_or(telemetry::Sketch());
    sample.count = sketch.count();  // so that it is what the buckets add up to
    sample.buckets = buckets_of(sketch, sample.count, options.bounds);
    make_room(sample.labels, "le");  // the buckets bring it
  }
  if (point.kind == Kind::Stat) make_room(sample.labels, "quantile");
  sample.created = snapshot.start_of(point);
}

/// Keeps two families from writing samples of one name.
class Names {
 public:
  explicit Names(std::size_t series) { series_.reserve(series); }
  bool take(const std::string& name, Type type) {
    const auto names = sample_names(name, type);
    const bool taken = std::any_of(names.begin(), names.end(),
                                   [this](const auto& one) { return taken_.contains(one); });
    // All of them or none: a family that is refused must not keep names from a later one.
    if (!taken) taken_.insert(names.begin(), names.end());
    return !taken;
  }
  bool take_series(const std::string& name, const std::vector<Label>& labels) {
    // By their hash: of ten thousand series two are taken for one once in 10^11 pages.
    const std::hash<std::string> hash;
    std::uint64_t all = hash(name);
    for (const auto& [label, value] : labels) {
      all = (all ^ hash(label)) * 0x9e3779b97f4a7c15;
      all = (all ^ (all >> 29) ^ hash(value)) * 0xbf58476d1ce4e5b9;
    }
    return series_.insert(all).second;
  }

 private:
  std::set<std::string> taken_;
  std::unordered_set<std::uint64_t> series_;
};

}  // namespace

std::string prometheus_name(std::string_view name) {
  std::string valid;
  for (const char c : name) {
    const bool digit = c >= '0' && c <= '9';
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || digit) {
      // A name may hold digits but not begin with one.
      if (valid.empty() && digit) valid += '_';
      valid += c;
    } else if (!valid.ends_with('_')) {
      valid += '_';
    }
  }
  return valid.empty() ? "_" : valid;
}

std::string prometheus_unit(std::string_view ucum, bool is_gauge) {
  static const std::map<std::string_view, std::string_view> kWords = {
      {"s", "seconds"},      {"ms", "milliseconds"}, {"us", "microseconds"}, {"ns", "nanoseconds"},
      {"min", "minutes"},    {"h", "hours"},         {"d", "days"},          {"By", "bytes"},
      {"KiBy", "kibibytes"}, {"MiBy", "mebibytes"},  {"GiBy", "gibibytes"},  {"J", "joules"},
      {"W", "watts"},        {"Cel", "celsius"},     {"Hz", "hertz"},        {"V", "volts"},
      {"A", "amperes"},      {"m", "meters"},        {"g", "grams"},         {"%", "percent"}};
  // As OpenTelemetry's rules for Prometheus have it, so that a metric keeps its name when it comes
  // through a collector instead.
  if (ucum == "1") return is_gauge ? "ratio" : "";
  if (const auto slash = ucum.find('/'); slash != ucum.npos) {
    std::string over = prometheus_unit(ucum.substr(slash + 1), false);
    if (over.ends_with('s')) over.pop_back();  // per second
    const std::string unit = prometheus_unit(ucum.substr(0, slash), false);
    if (over.empty()) return unit;
    return (unit.empty() ? "" : unit + "_") + "per_" + over;
  }
  if (ucum.starts_with('{') || ucum.empty()) return "";
  const auto found = kWords.find(ucum);
  return found != kWords.end() ? std::string(found->second) : prometheus_name(ucum);
}

std::vector<Label> prometheus_labels(const std::vector<telemetry::Attribute>& attributes) {
  LabelNames names;
  return labels_of(attributes, names);
}

namespace {

constexpr const char* kRefused = "elastrun_page_refused";
constexpr const char* kRefusedHelp =
    "Series that are not on this page, because the names of their samples are those of others.";

bool is_ours(const Point& point) {
  const std::string_view scope = point.spec->scope;
  return scope.empty() || telemetry::is_own_scope(scope);
}

/// Puts points into families. Those of one instrument come in a row: what its name and unit become
/// is computed once.
class Sorter {
 public:
  Sorter(const Snapshot& snapshot, const FamilyOptions& options)
      : snapshot_(snapshot), options_(options), names_(snapshot.points.size()) {
    if (options.tells_refused) names_.take(kRefused, Type::Gauge);
    if (options.resource.empty()) return;
    Sample info{.labels = prometheus_labels(options.resource), .value = std::int64_t{1}};
    names_.take("target", Type::Info);
    by_name_["target"] = {"target", Type::Info, "", "What the metrics are of.", {std::move(info)}};
  }

  void add(const Point& point) {
    if (point.spec.get() != spec_ || point.kind != kind_) choose(point);
    if (family_ == nullptr) {
      families_.refused += 1;
      return;
    }
    if (!has_value(point)) return;
    auto& sample = family_->samples.emplace_back();  // in its place: it is large
    fill(sample, point, snapshot_, options_, label_names_);
    // Prometheus refuses a whole page for one series that is there twice.
    if (names_.take_series(family_->name, sample.labels)) return;
    family_->samples.pop_back();
    families_.refused += 1;
  }
  Families all() && {
    if (options_.tells_refused && families_.refused > 0) {
      Sample sample{.value = static_cast<std::int64_t>(families_.refused)};
      by_name_[kRefused] = {kRefused, Type::Gauge, "", kRefusedHelp, {std::move(sample)}};
    }
    for (auto& [name, family] : by_name_) families_.all.push_back(std::move(family));
    return std::move(families_);
  }

 private:
  /// None for an instrument whose samples would have the names of another one's.
  void choose(const Point& point) {
    spec_ = point.spec.get();
    kind_ = point.kind;
    family_ = nullptr;
    const Type type = type_of(point.kind);
    // While no family is found below, null stays the answer for all points of this instrument:
    // add() counts them as refused.
    const std::string unit = prometheus_unit(point.spec->unit, type == Type::Gauge);
    const std::string name = family_name(point, unit);
    const auto found = by_name_.find(name);
    if (found != by_name_.end()) {
      if (found->second.type == type && found->second.unit == unit) family_ = &found->second;
    } else if (names_.take(name, type)) {
      family_ = &by_name_[name];  // a map does not move what it holds
      *family_ = {name, type, unit, valid_utf8(point.spec->help), {}};
      family_->samples.reserve(points_of_instrument(point));
    }
  }

  /// How many there are in a row from this one on.
  std::size_t points_of_instrument(const Point& point) const {
    const auto first = snapshot_.points.begin() + (&point - snapshot_.points.data());
    const auto other = [&](const Point& one) { return one.spec != point.spec; };
    return static_cast<std::size_t>(std::find_if(first, snapshot_.points.end(), other) - first);
  }

  const Snapshot& snapshot_;
  const FamilyOptions& options_;
  Families families_;
  std::map<std::string, Family> by_name_;
  Names names_;
  LabelNames label_names_;
  const telemetry::Spec* spec_ = nullptr;
  telemetry::Kind kind_{};
  Family* family_ = nullptr;
};

}  // namespace

Families families_of(const Snapshot& snapshot, const FamilyOptions& options) {
  Sorter sorter(snapshot, options);
  // The agent's and the machine's first: a worker's metric of the same name must not take their
  // place.
  for (const bool ours : {true, false}) {
    for (const auto& point : snapshot.points) {
      if (is_ours(point) == ours) sorter.add(point);
    }
  }
  return std::move(sorter).all();
}

}  // namespace elastrun::exporter
