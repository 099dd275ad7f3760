// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"

#include <string>

namespace elastrun::ctl {

/// What a coordinator says of its jobs (rendezvous/wire/status.hpp) as a person reads it: per job a
/// line on the whole, a table of its nodes, and who is missing. Control characters in names that
/// came from outside are left out. Pure.
std::string status_text(const json::value& status, const std::string& endpoint);

}  // namespace elastrun::ctl
