// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"
#include "goodput/compat/goodput_calculator.hpp"

#include <string>
#include <vector>

/// Our answers in the form of the recorded ones, and their comparison.
namespace elastrun::vectors {

json::object as_json(const goodput::JobGoodput& answer,
                     const std::vector<goodput::StepSeconds>& deviations);
json::object as_json(const goodput::WindowGoodput& answer);
json::object as_json(const goodput::ExcludedGoodput& answer);
json::object as_json(const std::vector<goodput::StepSeconds>& deviations);

/// One line for each number that differs by more than 1e-6 relative. A number that only one of both
/// has must be 0.
std::vector<std::string> differences(const std::string& path, const json::value& wanted,
                                     const json::value& got);

}  // namespace elastrun::vectors
