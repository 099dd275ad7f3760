// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Texts whose bytes come from programs, which may say anything. JSON and people take UTF-8 only.
namespace elastrun {

/// One code point from the front of `text`, which is not empty; U+FFFD and one byte if it is not
/// valid UTF-8.
char32_t take_code_point(std::string_view& text);
/// The text with U+FFFD in place of each byte that is not valid UTF-8.
std::string valid_utf8(std::string_view text);
/// Valid UTF-8 that a terminal shows as it stands: without control characters, those of Unicode
/// that turn the direction of what follows among them. Those of `kept`, such as '\n', stay.
std::string without_controls(std::string_view text, std::string_view kept = {});
/// Its beginning, of at most `size` bytes, that does not end inside a character.
std::string_view cut(std::string_view text, std::size_t size);

/// True if the first of LC_ALL, LC_CTYPE and LANG that is set names a UTF-8 locale, as the C
/// library decides.
bool locale_is_utf8();

/// Without blanks, tabs and line ends at both sides.
std::string_view trim(std::string_view text);
/// The pieces between the separators; "" gives one empty piece.
std::vector<std::string> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& pieces, std::string_view separator);
/// Value of a variable among "NAME=VALUE" entries; of several the first counts, as in getenv(3).
std::optional<std::string_view> find_variable(std::span<const std::string> entries,
                                              std::string_view name);
bool starts_with_ignoring_case(std::string_view text, std::string_view prefix);
std::string to_lower(std::string_view text);
/// With a backslash before each character that is in `what`.
std::string escaped(std::string_view text, std::string_view what);
/// Reads `text` like Python's Template.safe_substitute, by which torch fills such texts: `$name`
/// and
/// `${name}` become the value of that name, `$$` a dollar sign; every other `$` stays.
std::string fill_template(std::string_view text,
                          std::initializer_list<std::pair<std::string_view, std::string>> values);
/// Makes a stranger's text fit to be shown: at most 500 bytes, no control characters.
std::string printable(std::string text);

/// Parses like Python's int(text): surrounding blanks, a sign, `_` between digits.
std::optional<std::int64_t> parse_int(std::string_view text);
/// Parses like Python's float(text): also `inf`, `nan`, `1e-3`.
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
/// At most 291 years either way, which nanoseconds can tell; zero for NaN.
Duration from_seconds(double seconds);

/// Returns the choice with the fewest edits from `word`, if it is near enough to be what was meant.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& choices);

/// `count` random characters of a-z 0-9, from the kernel (getrandom(2)).
std::string random_text(std::size_t count);
/// A random UUID, version 4, in its usual text.
std::string random_uuid();

/// Returns the output of a program as the reader of a terminal sees it: valid UTF-8 without control
/// sequences (ECMA-48: colours, cursor, titles, links), and without_controls() but for those
/// `kept`. A sequence without an end takes the rest of its line with it, as on a terminal.
std::string without_escapes(std::string_view text, std::string_view kept = "\t");

}  // namespace elastrun
