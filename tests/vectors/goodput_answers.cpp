// SPDX-License-Identifier: Apache-2.0
#include "goodput_answers.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace elastrun::vectors {
namespace {

void add_slices(json::object& object, const std::optional<goodput::SliceEfficiency>& slices) {
  if (!slices) return;
  object["stepping_slice_efficiency"] = slices->stepping;
  object["available_slice_efficiency"] = slices->available;
}

bool close_enough(double wanted, double got) {
  const double scale = std::max({std::abs(wanted), std::abs(got), 1e-3});
  return std::abs(wanted - got) <= 1e-6 * scale;
}

json::array pairs(const std::vector<goodput::StepSeconds>& deviations, std::size_t from,
                  std::size_t count) {
  json::array array;
  std::size_t place = 0;
  for (const auto& [step, value] : deviations) {
    if (place >= from && place < from + count) array.push_back(json::array{step, value});
    ++place;
  }
  return array;
}

void compare_objects(const std::string& path, const json::object& wanted, const json::object& got,
                     std::vector<std::string>& lines) {
  const auto take = [&](const std::string& name, const json::value& one, const json::value& other) {
    for (auto& line : differences(path + "." + name, one, other)) lines.push_back(std::move(line));
  };
  for (const auto& [name, value] : wanted) {
    const auto* ours = got.if_contains(name);
    const auto missing = value.is_double() ? json::value(0.0) : json::value();
    take(name, value, ours == nullptr ? missing : *ours);
  }
  for (const auto& [name, value] : got) {
    if (!wanted.contains(name) && value.is_double()) take(name, 0.0, value);
  }
}

}  // namespace

json::object as_json(const std::vector<goodput::StepSeconds>& deviations) {
  json::object object;
  if (deviations.empty()) return object;
  double sum = 0, most = 0;
  json::object all;
  for (const auto& [step, value] : deviations) {
    sum += value;
    most = std::max(most, value);
    all[std::to_string(step)] = value;
  }
  const auto count = deviations.size();
  object["count"] = static_cast<std::int64_t>(count);
  object["sum"] = sum;
  object["max"] = most;
  object["first"] = pairs(deviations, 0, 3);
  object["last"] = pairs(deviations, count < 2 ? 0 : count - 2, 2);
  object["all"] = std::move(all);
  return object;
}

json::object as_json(const goodput::JobGoodput& answer,
                     const std::vector<goodput::StepSeconds>& deviations) {
  json::object details;
  details["goodput_time"] = json::object{{"TOTAL", answer.productive_seconds}};
  details["badput_time"] = goodput::badput_json(answer.badput_seconds);
  details["max_productive_step"] = answer.max_productive_step;
  details["total_elapsed_time"] = answer.total_seconds;
  details["disruption_count"] = answer.disruptions;
  details["ideal_step_time"] = answer.ideal_step_time.value_or(0);
  details["total_excluded_time"] = 0.0;
  details["step_time_deviation"] = as_json(deviations);
  details["step_deviation_metric"] = answer.step_deviation_metric;
  add_slices(details, answer.slices);
  return {{"goodput_pct", answer.percent},
          {"badput_pct", goodput::badput_json(answer.badput_percent)},
          {"max_productive_step", answer.max_productive_step},
          {"details", std::move(details)}};
}

json::object as_json(const goodput::WindowGoodput& answer) {
  json::object object{{"goodput_pct", answer.percent},
                      {"badput_pct", goodput::badput_json(answer.badput_percent)},
                      {"max_productive_step", answer.max_productive_step},
                      {"total_job_time", answer.total_seconds},
                      {"disruptions", answer.disruptions}};
  if (answer.slices) {
    json::object slices;
    add_slices(slices, answer.slices);
    object["slice_efficiency"] = std::move(slices);
  }
  return object;
}

json::object as_json(const goodput::ExcludedGoodput& answer) {
  return {{"goodput_pct", answer.percent},
          {"badput_pct", goodput::badput_json(answer.badput_percent)},
          {"max_productive_step", answer.max_productive_step},
          {"excluded_time", answer.excluded_seconds}};
}

std::vector<std::string> differences(const std::string& path, const json::value& wanted,
                                     const json::value& got) {
  std::vector<std::string> lines;
  if (wanted.is_object() && got.is_object()) {
    compare_objects(path, wanted.get_object(), got.get_object(), lines);
  } else if (wanted.is_array() && got.is_array() &&
             wanted.get_array().size() == got.get_array().size()) {
    for (std::size_t i = 0; i < wanted.get_array().size(); ++i) {
      auto inner = differences(fmt::format("{}[{}]", path, i), wanted.at(i), got.at(i));
      lines.insert(lines.end(), inner.begin(), inner.end());
    }
  } else if (wanted.is_number() && got.is_number()) {
    const double one = wanted.to_number<double>(), other = got.to_number<double>();
    if (!close_enough(one, other)) lines.push_back(fmt::format("{}: {}, not {}", path, other, one));
  } else if (wanted != got) {
    lines.push_back(
        fmt::format("{}: {}, not {}", path, json::serialize(got), json::serialize(wanted)));
  }
  return lines;
}

}  // namespace elastrun::vectors
