// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/record.hpp"

#include <string>

namespace elastrun::exporter {

/// The name of a sample's or window's series in formats without labels: its name and each
/// attribute that is a text, "system.cpu.time/cpu.mode_user". Ranks are for the caller, who may
/// have another place for them. What is the same for all of a worker (its role) or a GPU that has
/// an index (model, serial) is left out.
std::string series_name(const telemetry::Record& record);

}  // namespace elastrun::exporter
