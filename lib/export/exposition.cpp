// SPDX-License-Identifier: Apache-2.0
#include "export/exposition.hpp"

#include "core/text.hpp"

#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <iterator>

namespace elastrun::exporter {
namespace {

using Type = Family::Type;

/// As Go reads it: the shortest text that gives the number back.
std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  const auto end = std::to_chars(std::begin(text), std::end(text), value).ptr;
  return {text, end};
}

std::string number(const telemetry::Value& value) {
  if (const auto* const whole = std::get_if<std::int64_t>(&value)) return fmt::to_string(*whole);
  if (const auto* const flag = std::get_if<bool>(&value)) return *flag ? "1" : "0";
  const auto* const real = std::get_if<double>(&value);
  return number(real == nullptr ? std::nan("") : *real);
}

/// A bound or quantile as OpenMetrics wants it, so that a series has one name: "1.0", "1e+06".
std::string canonical(double value) {
  std::string text = number(value);
  if (std::isfinite(value) && text.find_first_of(".e") == text.npos) text += ".0";
  return text;
}

std::string escaped_text(std::string_view text, bool quotes) {
  if (text.find_first_of(quotes ? "\\\"\n" : "\\\n") == text.npos) return std::string(text);
  std::string result;
  for (const char c : text) {
    if (c == '\\' || (quotes && c == '"')) result += '\\';
    if (c == '\n') {
      result += "\\n";
    } else {
      result += c;
    }
  }
  return result;
}

std::string braces(const std::vector<Label>& labels) {
  std::string text;
  for (const auto& [key, value] : labels) {
    text.append(text.empty() ? "{" : ",").append(key).append("=\"");
    text.append(escaped_text(value, true)).append("\"");
  }
  return text.empty() ? text : text + "}";
}

std::string braces(std::vector<Label> labels, const char* key, std::string value) {
  labels.emplace_back(key, std::move(value));
  return braces(labels);
}

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string exemplar_text(const std::optional<Exemplar>& exemplar) {
  if (!exemplar) return "";
  std::size_t size = 0;
  for (const auto& [key, value] : exemplar->labels) size += characters(key) + characters(value);
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
    if (open_) text_ += "# EOF\n";
    return std::move(text_);
  }

 private:
  void line(std::string_view name, std::string_view labels, std::string_view value,
            std::string_view exemplar = "") {
    text_.append(name).append(labels).append(" ").append(value);
    text_.append(open_ ? exemplar : "").append("\n");
  }
  std::string bound(double value) const { return open_ ? canonical(value) : number(value); }
  static std::string_view type_name(Type type, bool open) {
    constexpr std::string_view kOpen[] = {"counter", "gauge",    "histogram", "summary",
                                          "info",    "stateset", "unknown"};
    constexpr std::string_view kText[] = {"counter", "gauge", "histogram", "summary",
                                          "gauge",   "gauge", "untyped"};
    return (open ? kOpen : kText)[static_cast<std::size_t>(type)];
  }
  void metadata(const Family& family) {
    std::string name = family.name;
    if (!open_ && family.type == Type::Counter) name += "_total";
    if (!open_ && family.type == Type::Info) name += "_info";
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
      case Type::Counter:
        line(name + "_total", braces(sample.labels), number(sample.value),
             exemplar_text(sample.exemplar));
        break;
      case Type::Info:
        line(name + "_info", braces(sample.labels), number(sample.value));
        return;
      case Type::Histogram:
      case Type::Summary:
        distribution(name, sample);
        break;
      default:
        line(name, braces(sample.labels), number(sample.value));
        return;
    }
    if (open_ && sample.created) {
      line(name + "_created", braces(sample.labels),
           fmt::format("{:.3f}", to_seconds(*sample.created)));
    }
  }
  void distribution(const std::string& name, const Sample& sample) {
    for (const auto& bucket : sample.buckets) {
      line(name + "_bucket", braces(sample.labels, "le", bound(bucket.bound)),
           fmt::to_string(bucket.count), exemplar_text(bucket.exemplar));
    }
    for (const auto& [quantile, value] : sample.quantiles) {
      line(name, braces(sample.labels, "quantile", bound(quantile)), number(value));
    }
    const std::string labels = braces(sample.labels);
    // In OpenMetrics a sum must not fall, and a histogram has sum and count or neither.
    const bool rises = !open_ || !sample.has_negative;
    if (rises) line(name + "_sum", labels, number(sample.sum));
    if (rises || sample.buckets.empty()) {
      line(name + "_count", labels, fmt::to_string(sample.count));
    }
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
  for (const auto& part : split(accept, ',')) {
    const auto words = split(part, ';');
    if (to_lower(trim(words[0])) != "application/openmetrics-text") continue;
    for (const auto& word : words) {
      const auto version = trim(word);
      if (version.starts_with("version=") && version != "version=1.0.0") return false;
    }
    return true;
  }
  return false;
}

}  // namespace elastrun::exporter
