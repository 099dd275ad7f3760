// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/resolve.hpp"

#include <string>

namespace elastrun::spec {

/// For --explain: a line for each option, `name = value   source`, grouped as --help.
std::string explain_text(const Resolved& job);

}  // namespace elastrun::spec
