// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "process/devices.hpp"
#include "spec/host_environment.hpp"

#include <string>

namespace elastrun::process {

/// True if there are device files of accelerators that only torch and its extensions can count:
/// Ascend, Gaudi, Moore Threads, Cambricon.
bool has_other_accelerators(const DeviceSources& sources = {});

/// Asks torch about the accelerator `name`, or about the current one for "auto": `interpreter`, a
/// path or a name in PATH, imports it with all extensions that are installed for it. Takes as long
/// as that import, two minutes at most; a signal ends it. Expects a single thread. Fails if the
/// interpreter has no torch, or its torch knows no such accelerator.
Result<spec::Accelerators> ask_torch(const std::string& interpreter, const std::string& name);

}  // namespace elastrun::process
