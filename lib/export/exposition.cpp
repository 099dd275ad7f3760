// SPDX-License-Identifier: Apache-2.0

#include "export/exposition.hpp"

#include "core/lifetime.hpp"
#include "core/text.hpp"
#include "files/whole_file.hpp"
#include "telemetry/record.hpp"
#include "telemetry/registry.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <fmt/format.h>
#include <iterator>
#include <map>
#include <set>
#include <type_traits>
#include <unordered_set>
#include <utility>

namespace elastrun::exporter {
namespace {

// For node_exporter's textfile collector, which runs as another user.
constexpr mode_t kMode = 0644;

using telemetry::Kind;
using telemetry::Point;
using telemetry::Snapshot;
using Label = std::pair<std::string, std::string>;

/// Appends; a page has ten thousand numbers and as many labels, so none is made as a text first.
/// As Go reads it: the shortest text that gives the number back.
template <class Number>
requires std::is_arithmetic_v<Number>
void put(std::string& text, Number value) {
  if constexpr (std::floating_point<Number>) {
    if (std::isnan(value)) return void(text += "NaN");
    if (std::isinf(value)) return void(text += value > 0 ? "+Inf" : "-Inf");
  }
  char digits[32];
  text.append(digits, std::to_chars(std::begin(digits), std::end(digits), value).ptr);
}

void put(std::string& text, const telemetry::Value& value) {
  if (const auto* const whole = std::get_if<std::int64_t>(&value)) return put(text, *whole);
  if (const auto* const flag = std::get_if<bool>(&value)) return put(text, int{*flag});
  const auto* const real = std::get_if<double>(&value);
  put(text, real == nullptr ? std::nan("") : *real);
}

void put_escaped(std::string& text, std::string_view plain, bool quotes) {
  const std::string_view special = quotes ? "\\\"\n" : "\\\n";
  for (auto at = plain.find_first_of(special); at != plain.npos;
       at = plain.find_first_of(special)) {
    text.append(plain.substr(0, at)).append("\\").append(1, plain[at] == '\n' ? 'n' : plain[at]);
    plain.remove_prefix(at + 1);
  }
  text.append(plain);
}

/// Most text is ASCII, which needs no second look.
std::string clean(std::string text) {
  const auto plain = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  return std::all_of(text.begin(), text.end(), plain) ? text : valid_utf8(text);
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

void read_labels(std::vector<Label>& labels, const std::vector<telemetry::Attribute>& attributes,
                 LabelNames& names) {
  labels.clear();
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    const auto& [key, value] = attributes[i];
    const auto& name = names.of(i, key);
    const auto known = std::ranges::find(labels, name, &Label::first);
    if (known == labels.end()) {
      labels.emplace_back(name, label_text(value));
    } else {
      // OpenTelemetry's rule for keys that become the same label.
      known->second += ";" + label_text(value);
    }
  }
  // One order for one set of labels: a series whose labels come in another order is the same.
  if (!std::is_sorted(labels.begin(), labels.end())) std::sort(labels.begin(), labels.end());
}

/// A metric family in OpenMetrics' terms: a block of the page.
struct Family {
  enum class Type { Counter, Gauge, Histogram, Summary, Info } type = Type::Gauge;
  std::string unit{};  // in words, and the end of the name: "seconds"
  std::string help{};
  std::string lines{};  // of its samples
};
using Type = Family::Type;

Type type_of(Kind kind) {
  switch (kind) {
    case Kind::Counter:
      return Type::Counter;
    case Kind::Stat:
      return Type::Summary;
    case Kind::Histogram:
      return Type::Histogram;
    default:
      return Type::Gauge;
  }
}

/// Valid in both formats, with the unit, without _total, which the page adds.
std::string family_name(const Point& point, std::string_view unit) {
  std::string name = prometheus_name(point.spec->name);
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

/// By Family::Type: its word, and the ends of the names of its samples in either format; the empty
/// one is always among them.
struct TypeRow {
  std::string_view word;
  std::array<std::string_view, 5> ends{};
};
constexpr std::array<TypeRow, 5> kTypes = {
    {{"counter", {"", "_total", "_created"}},
     {"gauge"},
     {"histogram", {"", "_bucket", "_count", "_sum", "_created"}},
     {"summary", {"", "_count", "_sum", "_created"}},
     {"info", {"", "_info"}}}};
const TypeRow& row_of(Type type) {
  return kTypes[static_cast<std::size_t>(type)];
}

bool has_value(const Point& point) {
  const double* const number = std::get_if<double>(&point.value);
  const bool odd = number != nullptr && !std::isfinite(*number);
  // A counter may not be NaN in OpenMetrics, and one that is infinite has no rise any more.
  return !point.no_data && !(point.kind == Kind::Counter && odd);
}

constexpr const char* kRefused = "elastrun_page_refused";
constexpr const char* kRefusedHelp =
    "Series that are not on this page, because the names of their samples are those of others.";

bool is_ours(const Point& point) {
  const std::string_view scope = point.spec->scope;
  return scope.empty() || telemetry::is_own_scope(scope);
}

/// Writes one of the two formats; they differ in details everywhere. Points of one instrument come
/// in a row: what its name and unit become is computed once.
class Page {
 public:
  Page(const Snapshot& snapshot, PageForm form, const PageOptions& options)
      : snapshot_(snapshot), options_(options), open_(form == PageForm::OpenMetrics) {
    series_.reserve(snapshot.points.size());
    if (options.tells_refused) take(kRefused, Type::Gauge);
    if (options.resource.empty()) return;
    read_labels(labels_, options.resource, label_names_);
    write_labels();
    take("target", Type::Info);
    begin("target", {Type::Info, "", "What the metrics are of."});
    line("_info", 1);
  }

  void add(const Point& point) {
    if (point.spec.get() != spec_ || point.kind != kind_) choose(point);
    if (family_ == nullptr) {
      refused_ += 1;
      return;
    }
    if (!has_value(point)) return;
    read_labels(labels_, point.labels, label_names_);
    // A label that stands twice in a line would cost the whole page.
    if (!point.spec->scope.empty()) {
      make_room(labels_, "otel_scope_name");
      labels_.emplace_back("otel_scope_name", clean(point.spec->scope));
    }
    if (point.kind == Kind::Histogram) make_room(labels_, "le");  // the buckets bring it
    if (point.kind == Kind::Stat) make_room(labels_, "quantile");
    write_labels();
    // Prometheus refuses a whole page for one series that is there twice. By the hash: of ten
    // thousand series two are taken for one once in 10^11 pages.
    const std::hash<std::string> hash;
    const auto mixed = (hash(*name_) * 0x9e3779b97f4a7c15) ^ hash(label_text_);
    if (series_.insert(mixed).second) {
      samples(point);
    } else {
      refused_ += 1;
    }
  }

  std::string text() && {
    if (options_.tells_refused && refused_ > 0) {
      label_text_.clear();
      begin(kRefused, {Type::Gauge, "", kRefusedHelp});
      line("", refused_);
    }
    std::string text;
    for (const auto& [name, family] : families_) {
      if (family.lines.empty()) continue;
      write_metadata(text, name, family);
      text += family.lines;
    }
    // OpenMetrics ends with it: a page without was cut off, and is refused.
    if (open_) text += "# EOF\n";
    return text;
  }

 private:
  /// False: another family writes samples of one of its names. All of them are taken or none: a
  /// family that is refused must not keep names from a later one.
  bool take(const std::string& name, Type type) {
    std::vector<std::string> names;
    for (const auto end : row_of(type).ends) names.push_back(name + std::string(end));
    const bool taken =
        std::ranges::any_of(names, [this](const std::string& one) { return taken_.contains(one); });
    if (!taken) taken_.insert(names.begin(), names.end());
    return !taken;
  }
  void begin(const std::string& name, Family family) {
    const auto place = families_.insert_or_assign(name, std::move(family)).first;
    name_ = &place->first;  // a map does not move what it holds
    family_ = &place->second;
  }
  /// None for an instrument whose samples would have the names of another one's.
  void choose(const Point& point) {
    spec_ = point.spec.get();
    kind_ = point.kind;
    family_ = nullptr;
    const Type type = type_of(point.kind);
    const auto unit = prometheus_unit(point.spec->unit, type == Type::Gauge);
    const auto name = family_name(point, unit);
    const auto found = families_.find(name);
    if (found == families_.end()) {
      if (take(name, type)) begin(name, {type, unit, valid_utf8(point.spec->help)});
    } else if (found->second.type == type && found->second.unit == unit) {
      name_ = &found->first;
      family_ = &found->second;
    }
  }

  void write_labels() {
    label_text_.clear();
    for (const auto& [name, value] : labels_) add_label(label_text_, name, value);
  }
  static void add_label(std::string& text, std::string_view name, std::string_view value) {
    if (!text.empty()) text += ',';
    text.append(name).append("=\"");
    put_escaped(text, value, true);
    text += '"';
  }
  /// NAME END {labels} value; `le`: one more label.
  template <class Number>
  void line(std::string_view end, const Number& value, std::string_view le = {}) {
    auto& text = family_->lines;
    text.append(*name_).append(end);
    if (!label_text_.empty() || !le.empty()) text.append("{").append(label_text_);
    if (!le.empty()) text.append(label_text_.empty() ? "le=\"" : ",le=\"").append(le).append("\"");
    if (text.back() == '"') text += '}';
    text += ' ';
    put(text, value);
    text += '\n';
  }
  void samples(const Point& point) {
    switch (family_->type) {
      case Type::Counter:
        line("_total", point.value);
        break;
      case Type::Histogram:
        histogram(point);
        break;
      case Type::Summary:
        sum_and_count(point, point.summary.count, true);
        break;
      default:
        return line("", point.value);
    }
    // Prometheus's text knows no _created: it would be one more metric without a type.
    if (!open_) return;
    auto& text = family_->lines;
    text.append(*name_).append("_created");
    if (!label_text_.empty()) text.append("{").append(label_text_).append("}");
    fmt::format_to(std::back_inserter(text), " {:.3f}\n", to_seconds(snapshot_.start_of(point)));
  }
  void histogram(const Point& point) {
    const auto& sketch = point.summary.sketch;
    const std::uint64_t count = sketch ? sketch->count() : 0;  // what the buckets add up to
    for (const double bound : options_.bounds) {
      // Cumulative, as the formats want them; never above the count, which a reader would take for
      // a broken histogram.
      line("_bucket", std::min(sketch ? sketch->count_up_to(bound) : 0, count), bound_text(bound));
    }
    // Both formats demand a bucket for +Inf, which has the count of all.
    line("_bucket", count, "+Inf");
    sum_and_count(point, count, false);
  }
  /// In OpenMetrics a sum must not fall, and a histogram has sum and count or neither.
  void sum_and_count(const Point& point, std::uint64_t count, bool counts_alone) {
    const bool has_negative = point.summary.count != 0 && point.summary.min < 0;
    const bool rises = !open_ || !has_negative;
    if (rises) line("_sum", point.summary.sum);
    if (rises || counts_alone) line("_count", count);
  }
  /// OpenMetrics wants it so that a series has one name: "1.0", "1e+06".
  std::string bound_text(double value) const {
    std::string text;
    put(text, value);
    if (open_ && text.find_first_of(".e") == text.npos) text += ".0";
    return text;
  }
  void write_metadata(std::string& text, std::string name, const Family& family) const {
    auto type = row_of(family.type).word;
    // Prometheus's text has the type of a sample's name, OpenMetrics that of the family.
    if (!open_ && family.type == Type::Counter) name += "_total";
    if (!open_ && family.type == Type::Info) {
      name += "_info";
      type = "gauge";
    }
    std::string help;
    if (!family.help.empty()) {
      help = "# HELP " + name + " ";
      put_escaped(help, family.help, open_);
      help += '\n';
    }
    if (!open_) text += help;
    text.append("# TYPE ").append(name).append(" ").append(type).append("\n");
    if (!open_) return;
    if (!family.unit.empty()) text += "# UNIT " + name + " " + family.unit + "\n";
    text += help;
  }

  const Snapshot& snapshot_;
  const PageOptions& options_;
  const bool open_;
  std::map<std::string, Family> families_;
  std::uint64_t refused_ = 0;
  std::set<std::string> taken_;  // names of samples
  std::unordered_set<std::uint64_t> series_;
  LabelNames label_names_;
  // Of the point in hand
  const telemetry::Spec* spec_ = nullptr;
  Kind kind_{};
  const std::string* name_ = nullptr;
  Family* family_ = nullptr;
  std::vector<Label> labels_;
  std::string label_text_;
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

std::string page_of(const Snapshot& snapshot, PageForm form, const PageOptions& options) {
  Page page(snapshot, form, options);
  // The agent's and the machine's first: a worker's metric of the same name must not take their
  // place.
  for (const bool ours : {true, false}) {
    for (const auto& point : snapshot.points) {
      if (is_ours(point) == ours) page.add(point);
    }
  }
  return std::move(page).text();
}

PageForm form_for(std::string_view accept) {
  // Their weights (q=) do not count: who names OpenMetrics can read it, and it says more.
  for (const auto& part : split(accept, ',')) {
    const auto words = split(part, ';');
    if (to_lower(trim(words[0])) != "application/openmetrics-text") continue;
    for (const auto& word : words) {
      const auto version = trim(word);
      // Readers of 0.0.1 expect other details, so they get Prometheus's text.
      if (version.starts_with("version=") && version != "version=1.0.0") {
        return PageForm::Prometheus;
      }
    }
    return PageForm::OpenMetrics;
  }
  return PageForm::Prometheus;
}

namespace {

class PageSink final : public MetricsSink {
 public:
  PageSink(files::BlockingCalls& calls, std::string name, std::string path, PageForm form,
           PageOptions options)
      : MetricsSink(std::move(name)),
        calls_(calls),
        path_(std::move(path)),
        form_(form),
        options_(std::move(options)) {}
  bool is_told() const override { return false; }
  bool pulls() const override { return true; }
  void pull(const telemetry::Snapshot& snapshot) override {
    page_ = page_of(snapshot, form_, options_);
    write_out();
  }
  void finish(Done done) override {
    finished_ = std::move(done);
    write_out();
  }

 private:
  void write_out() {
    // One at a time: the page that waits is replaced by each newer one, so a slow disk costs pages
    // and not memory.
    if (writing_) return;
    if (!page_) {
      const auto finished = std::exchange(finished_, {});
      if (finished) finished();
      return;
    }
    writing_ = true;
    calls_.make(
        path_,
        [path = path_, text = *std::exchange(page_, {})] {
          return files::put_file(path, text, kMode);
        },
        [this, alive = lifetime_.token()](const Status& put) {
          if (!alive) return;
          writing_ = false;
          (put ? delivered_ : lost_) += 1;
          if (!put && trouble_.empty()) trouble_ = put.error().text;
          write_out();
        });
  }
  std::uint64_t waiting() const override { return (page_ ? 1u : 0u) + (writing_ ? 1u : 0u); }

  files::BlockingCalls& calls_;
  const std::string path_;
  const PageForm form_;
  const PageOptions options_;
  std::optional<std::string> page_;  // to be written
  bool writing_ = false;
  Lifetime lifetime_;
};

}  // namespace

Status put_empty_page(const std::string& path, PageForm form) {
  return files::put_file(path, page_of(telemetry::Snapshot(), form), kMode);
}

std::shared_ptr<MetricsSink> make_page_sink(files::BlockingCalls& calls, std::string name,
                                            std::string path, PageForm form, PageOptions options) {
  return std::make_shared<PageSink>(calls, std::move(name), std::move(path), form,
                                    std::move(options));
}

}  // namespace elastrun::exporter
