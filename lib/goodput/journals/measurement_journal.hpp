// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"
#include "telemetry/record.hpp"

#include <cstdint>
#include <string>

/// A log of ml-goodput-measurement as a journal (elastrun-protocol(7)): a record that begins the
/// job and names where it comes from, one for each entry, and one that counts what was left out. No
/// agent saw that job, so its books stay those of the log (measurement_books.hpp). Pure.
namespace elastrun::goodput {

/// What begins such a journal. `wall`: of the first entry.
telemetry::Record begin_of_log(const std::string& job, WallTime wall);
/// Whether a record is that; any other start of a job is an agent's.
bool is_begin_of_log(const telemetry::Record& record);

/// One entry, without members that are arrays or objects, which no calculation reads. `log_time` in
/// POSIX seconds, NaN where the log does not say, is a separate member.
telemetry::Record record_of_entry(const json::object& entry, double log_time);

/// So many lines of the log were no entries.
telemetry::Record lines_left_out(std::uint64_t count, WallTime wall);
/// Their number; zero of every other record.
std::uint64_t count_left_out(const telemetry::Record& record);

}  // namespace elastrun::goodput
