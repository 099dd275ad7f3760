// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/host_environment.hpp"
#include "spec/sources.hpp"

#include <string>

namespace elastrun::spec {

/// Merges command line, PET_* variables, the TOML file, the scheduler's variables and the defaults,
/// in this order of strength, and checks the result. What torchrun's parser or launcher refuses is
/// refused with its texts and exit codes; what it silently drops is a warning.
/// Asks `around` alone; the same answers give the same job (but for random run ids).
Answer<Resolved> resolve(const CommandLine& line, const HostEnvironment& around);

/// For --explain: a line for each option, `name = value   source`, grouped as --help.
std::string explain_text(const Resolved& job);

}  // namespace elastrun::spec
