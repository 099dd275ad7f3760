// SPDX-License-Identifier: Apache-2.0
#include "export/series_name.hpp"

#include <string_view>
#include <variant>

namespace elastrun::exporter {

std::string series_name(const telemetry::Record& record) {
  const bool of_worker = record.find("rank") != nullptr;
  const bool of_device = record.find("hw.id") != nullptr && record.find("index") != nullptr;
  std::string name = record.name;
  for (const auto& [key, value] : record.attributes) {
    const auto* const text = std::get_if<std::string>(&value);
    // All workers of an agent have one role: in the name it would tell nothing.
    if (text == nullptr || (of_worker && key == "role")) continue;
    // The index tells the GPUs of a machine apart; with the id of 40 characters and the model, the
    // name of a curve would fill the screen.
    if (of_device && (key == "hw.id" || key == "hw.type" || key == "hw.model")) continue;
    name.append("/").append(key).append("_").append(*text);
  }
  return name;
}

}  // namespace elastrun::exporter
