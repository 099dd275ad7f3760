// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun {

/// Without blanks, tabs and line ends at both sides.
std::string_view trim(std::string_view text);
/// The pieces between the separators; "" gives one empty piece.
std::vector<std::string> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& pieces, std::string_view separator);
bool starts_with_ignoring_case(std::string_view text, std::string_view prefix);
std::string to_lower(std::string_view text);
/// With a backslash before each character that is in `what`.
std::string escaped(std::string_view text, std::string_view what);
/// What a stranger has written, fit to be shown: at most 500 bytes, none that steers a terminal.
std::string printable(std::string text);

/// As Python's int(text): surrounding blanks, a sign and `_` between digits. Nothing if it is none.
std::optional<std::int64_t> parse_int(std::string_view text);
/// As Python's float(text): also `inf`, `nan`, `1e-3`.
std::optional<double> parse_float(std::string_view text);

/// "850 us", "1.3 ms", "12.4 s", "3 min 05 s", "2 h 07 min": for people.
std::string format_duration(Duration duration);
/// "2026-01-02_03:04:05" in local time, torchrun's form.
std::string format_local_time(WallTime when);
/// "1.5 GiB", for people.
std::string format_bytes(std::uint64_t bytes);
/// Seconds since the epoch with nanoseconds, for machines.
double to_seconds(WallTime when);
double to_seconds(Duration duration);
Duration from_seconds(double seconds);

/// Of `choices` the one nearest to `word` by edits, if near enough to be what was meant.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& choices);

/// `count` random characters of a-z 0-9, from the kernel (getrandom(2)).
std::string random_text(std::size_t count);
/// A random UUID, version 4, in its usual text.
std::string random_uuid();

}  // namespace elastrun
