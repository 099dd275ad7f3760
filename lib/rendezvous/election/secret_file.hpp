// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <string>

namespace elastrun::rendezvous {

/// The job's secret: the trimmed text of the file, or `given`. Fails with Usage if the file cannot
/// be read or is empty; warns in the log if others on this machine may read it.
Result<std::string> read_secret(const std::string& file, const std::string& given);

}  // namespace elastrun::rendezvous
