// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace elastrun::runs {

/// What the name of an entry's file tells, so that most entries need not be read to know whether
/// they matter here: "PID-START_TIME-PID_NAMESPACE-BOOT.json".
struct FileName {
  pid_t pid = 0;
  std::uint64_t start_time = 0;
  std::uint64_t pid_namespace = 0;  // where those numbers hold
  std::string boot;                 // boot_prefix() of the machine's boot_id
  bool operator==(const FileName&) const = default;
};

/// The first word of a boot id: enough to tell one boot from others.
std::string boot_prefix(std::string_view boot_id);
std::string format_file_name(const FileName& name);
/// Nothing for any other name. Pure, as all of these.
std::optional<FileName> parse_file_name(std::string_view name);

}  // namespace elastrun::runs
