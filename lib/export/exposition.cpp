// SPDX-License-Identifier: Apache-2.0
#include "export/exposition.hpp"

#include "core/text.hpp"

#include <charconv>
#include <cmath>
#include <concepts>
#include <fmt/format.h>
#include <iterator>

namespace elastrun::exporter {
namespace {

using SeriesType = Family::Type;

/// Appends; a page has ten thousand numbers and as many labels, so none is made as a text first.
/// As Go reads it: the shortest text that gives the number back.
void put(std::string& text, double value) {
  if (std::isnan(value)) {
    text += "NaN";
  } else if (std::isinf(value)) {
    text += value > 0 ? "+Inf" : "-Inf";
  } else {
    char digits[32];
    const auto end = std::to_chars(std::begin(digits), std::end(digits), value).ptr;
    text.append(digits, end);
  }
}

template <std::integral T>
void put(std::string& text, T value) {
  char digits[24];
  const auto end = std::to_chars(std::begin(digits), std::end(digits), value).ptr;
  text.append(digits, end);
}

void put(std::string& text, const telemetry::Value& value) {
  if (const auto* const whole = std::get_if<std::int64_t>(&value)) return put(text, *whole);
  if (const auto* const flag = std::get_if<bool>(&value)) return put(text, int{*flag});
  const auto* const real = std::get_if<double>(&value);
  put(text, real == nullptr ? std::nan("") : *real);
}

std::string number(double value) {
  std::string text;
  put(text, value);
  return text;
}

/// A bound or quantile as OpenMetrics wants it, so that a series has one name: "1.0", "1e+06".
std::string canonical(double value) {
  std::string text = number(value);
  if (std::isfinite(value) && text.find_first_of(".e") == text.npos) text += ".0";
  return text;
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

std::string escaped_text(std::string_view text, bool quotes) {
  std::string result;
  put_escaped(result, text, quotes);
  return result;
}

void put_label(std::string& text, char before, std::string_view key, std::string_view value) {
  text.append(1, before).append(key).append("=\"");
  put_escaped(text, value, true);
  text += '"';
}

/// With one more label behind the others, if it has a name.
void put_braces(std::string& text, const std::vector<Label>& labels, std::string_view key = {},
                std::string_view value = {}) {
  char before = '{';
  for (const auto& [name, one] : labels) {
    put_label(text, before, name, one);
    before = ',';
  }
  if (!key.empty()) put_label(text, before, key, value);
  if (!labels.empty() || !key.empty()) text += '}';
}

std::string braces(const std::vector<Label>& labels) {
  std::string text;
  put_braces(text, labels);
  return text;
}

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    // OpenMetrics counts characters: a byte 10xxxxxx goes on with one.
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string exemplar_text(const std::optional<Exemplar>& exemplar) {
  if (!exemplar) return "";
  std::size_t size = 0;
  for (const auto& [key, value] : exemplar->labels) size += characters(key) + characters(value);
  // OpenMetrics allows 128 characters of labels; a longer exemplar makes the page invalid.
  if (size > 128) return "";
  const std::string labels = exemplar->labels.empty() ? "{}" : braces(exemplar->labels);
  std::string text = fmt::format(" # {} {}", labels, number(exemplar->value));
  if (exemplar->when) text += fmt::format(" {:.3f}", to_seconds(*exemplar->when));
  return text;
}

/// Writes one of the two formats; they differ in details everywhere.
class Page {
 public:
  explicit Page(bool open) : open_(open) {}

  void add(const Family& family) {
    if (family.samples.empty()) return;
    metadata(family);
    for (const auto& sample : family.samples) samples(family, sample);
  }
  std::string text() && {
    // OpenMetrics ends with it: a page without was cut off, and is refused.
    if (open_) text_ += "# EOF\n";
    return std::move(text_);
  }

 private:
  /// NAME SUFFIX {labels} value: one more label if it has a name.
  template <class Number>
  void line(const Sample& sample, std::string_view name, std::string_view suffix,
            const Number& value, const std::optional<Exemplar>& exemplar = std::nullopt,
            std::string_view key = {}, std::string_view of_key = {}) {
    text_.append(name).append(suffix);
    put_braces(text_, sample.labels, key, of_key);
    text_ += ' ';
    put(text_, value);
    // After the value the older format has a timestamp, so it cannot read an exemplar.
    if (open_ && exemplar) text_ += exemplar_text(exemplar);
    text_ += '\n';
  }
  std::string bound(double value) const { return open_ ? canonical(value) : number(value); }
  static std::string_view type_name(SeriesType type, bool open) {
    constexpr std::string_view kOpen[] = {"counter", "gauge", "histogram",
                                          "summary", "info",  "unknown"};
    constexpr std::string_view kText[] = {"counter", "gauge", "histogram",
                                          "summary", "gauge", "untyped"};
    return (open ? kOpen : kText)[static_cast<std::size_t>(type)];
  }
  void metadata(const Family& family) {
    std::string name = family.name;
    // Prometheus's text has the type of a sample's name, OpenMetrics that of the family.
    if (!open_ && family.type == SeriesType::Counter) name += "_total";
    if (!open_ && family.type == SeriesType::Info) name += "_info";
    const auto out = std::back_inserter(text_);
    const auto help = [&] {
      if (!family.help.empty()) {
        fmt::format_to(out, "# HELP {} {}\n", name, escaped_text(family.help, open_));
      }
    };
    if (!open_) help();
    fmt::format_to(out, "# TYPE {} {}\n", name, type_name(family.type, open_));
    if (open_ && !family.unit.empty()) fmt::format_to(out, "# UNIT {} {}\n", name, family.unit);
    if (open_) help();
  }
  void samples(const Family& family, const Sample& sample) {
    const std::string& name = family.name;
    switch (family.type) {
      case SeriesType::Counter:
        line(sample, name, "_total", sample.value, sample.exemplar);
        break;
      case SeriesType::Info:
        return line(sample, name, "_info", sample.value);
      case SeriesType::Histogram:
      case SeriesType::Summary:
        distribution(name, sample);
        break;
      default:
        return line(sample, name, "", sample.value);
    }
    // Prometheus's text knows no _created: it would be one more metric without a type.
    if (!open_ || !sample.created) return;
    text_.append(name).append("_created");
    put_braces(text_, sample.labels);
    fmt::format_to(std::back_inserter(text_), " {:.3f}\n", to_seconds(*sample.created));
  }
  void distribution(const std::string& name, const Sample& sample) {
    for (const auto& bucket : sample.buckets) {
      line(sample, name, "_bucket", bucket.count, bucket.exemplar, "le", bound(bucket.bound));
    }
    for (const auto& [quantile, value] : sample.quantiles) {
      line(sample, name, "", value, std::nullopt, "quantile", bound(quantile));
    }
    // In OpenMetrics a sum must not fall, and a histogram has sum and count or neither.
    const bool rises = !open_ || !sample.has_negative;
    if (rises) line(sample, name, "_sum", sample.sum);
    if (rises || sample.buckets.empty()) line(sample, name, "_count", sample.count);
  }

  const bool open_;
  std::string text_;
};

std::string page(const std::vector<Family>& families, bool open) {
  Page page(open);
  for (const auto& family : families) page.add(family);
  return std::move(page).text();
}

}  // namespace

std::string prometheus_text(const std::vector<Family>& families) {
  return page(families, false);
}

std::string openmetrics_text(const std::vector<Family>& families) {
  return page(families, true);
}

bool wants_openmetrics(std::string_view accept) {
  // Their weights (q=) do not count: who names OpenMetrics can read it, and it says more.
  for (const auto& part : split(accept, ',')) {
    const auto words = split(part, ';');
    if (to_lower(trim(words[0])) != "application/openmetrics-text") continue;
    for (const auto& word : words) {
      const auto version = trim(word);
      // Of 0.0.1 readers expect other details, so they get Prometheus's text.
      if (version.starts_with("version=") && version != "version=1.0.0") return false;
    }
    return true;
  }
  return false;
}

}  // namespace elastrun::exporter
