// SPDX-License-Identifier: Apache-2.0
#include "spec/goodput_options.hpp"

#include "core/text.hpp"
#include "spec/argument_words.hpp"
#include "spec/merge.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::spec {
namespace {

// Each adds a series for every bucket to the page.
constexpr std::size_t kMostWindows = 8;
constexpr std::size_t kLongestPrefix = 100;
constexpr std::int64_t kMostSeconds = 366 * 86'400;
constexpr std::string_view kWindowForm = "a time is a number of seconds, or 90s, 10m, 1h, 1d";

std::unexpected<Refusal> refuse(const Override& given, std::string_view what, std::string hint) {
  return std::unexpected(Refusal{fmt::format("{}: {}", given.source, what), 2, false, hint});
}

std::vector<std::string> items_of(const Override& given) {
  if (given.listed) return given.items;
  return given.text.empty() ? std::vector<std::string>() : split(given.text, ',');
}

Answer<std::vector<Duration>> windows_of(const Override& given) {
  std::vector<Duration> windows;
  for (const auto& item : items_of(given)) {
    const auto window = parse_window(item);
    if (!window) {
      return refuse(given, in_quotes(item) + " is not a window of time", std::string(kWindowForm));
    }
    windows.push_back(*window);
  }
  std::ranges::sort(windows);
  // 60s and 1m are one window: two series of one name would make a page of Prometheus invalid.
  windows.erase(std::ranges::unique(windows).begin(), windows.end());
  if (windows.size() <= kMostWindows) return windows;
  return refuse(given, fmt::format("{} windows of goodput", windows.size()),
                fmt::format("there may be {} at most", kMostWindows));
}

/// As names of metrics are.
bool is_prefix(std::string_view text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return !text.empty() && text.size() <= kLongestPrefix && letter(text.front()) &&
         std::ranges::all_of(text, [&](char c) {
           return letter(c) || (c >= '0' && c <= '9') || std::string_view("_.-/").contains(c);
         });
}

Answer<GoodputOptions::Alert> alert_of(const Values& values) {
  const auto& share = values[Opt::AlertBelow];
  GoodputOptions::Alert alert{*parse_float(share.text), {}, items_of(values[Opt::AlertCommand])};
  if (!(alert.below > 0 && alert.below <= 1)) {
    return refuse(share, share.text + " is not a share of the time",
                  "expected a number above 0 and at most 1, such as 0.8");
  }
  const auto& given = values[Opt::AlertWindow];
  const auto window = parse_window(given.text);
  if (!window) {
    return refuse(given, in_quotes(given.text) + " is not a window of time",
                  std::string(kWindowForm));
  }
  alert.window = *window;
  return alert;
}

}  // namespace

std::optional<Duration> parse_window(std::string_view text) {
  text = trim(text);
  std::int64_t unit = 1;
  if (!text.empty()) {
    const char last = text.back();
    unit = last == 'm' ? 60 : last == 'h' ? 3600 : last == 'd' ? 86'400 : 1;
    if (unit > 1 || last == 's') text.remove_suffix(1);
  }
  const auto count = parse_int(text);
  // Divided, because the product could overflow.
  if (!count || *count < 1 || *count > kMostSeconds / unit) return std::nullopt;
  return std::chrono::seconds(*count * unit);
}

Answer<GoodputOptions> goodput_options(const Values& values) {
  GoodputOptions options;
  const auto& interval = values[Opt::GoodputInterval];
  const double seconds = *parse_float(interval.text);
  if (!(seconds >= 0.1 && seconds <= static_cast<double>(kMostSeconds))) {
    return refuse(interval, interval.text + " is not an interval",
                  "expected a number of seconds, at least 0.1");
  }
  options.interval = from_seconds(seconds);
  auto windows = windows_of(values[Opt::GoodputWindows]);
  if (!windows) return std::unexpected(windows.error());
  options.windows = std::move(*windows);
  const auto& prefix = values[Opt::GoodputPrefix];
  if (!is_prefix(prefix.text)) {
    return refuse(prefix, in_quotes(prefix.text) + " cannot begin the name of a metric",
                  "expected a letter, then letters, digits and _ . - /, 100 at most");
  }
  options.prefix = prefix.text;
  if (parse_float(values[Opt::AlertBelow].text).value_or(0) == 0) {
    if (items_of(values[Opt::AlertCommand]).empty()) return options;
    return refuse(values[Opt::AlertCommand], "no alert is set that could run a command",
                  "set one with goodput.alert_below");
  }
  auto alert = alert_of(values);
  if (!alert) return std::unexpected(alert.error());
  options.alert = std::move(*alert);
  return options;
}

}  // namespace elastrun::spec
