// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// What the readers of the channel's packets share, and of error files.
namespace elastrun::workers::members {

/// JSON of a sloppy writer, with U+FFFD for each byte that is not UTF-8, and for each escape of
/// half a surrogate pair, which Python's json writes for names of files that are not.
std::string with_whole_characters(std::string_view json);
/// "a message of a worker WHAT".
std::unexpected<Error> refuse(std::string_view what);
/// A text of at most kMaxName bytes, as a terminal may show it (without_controls).
std::optional<std::string> name_of(const boost::json::value* value);
std::optional<std::string> text_in(const boost::json::object& object, std::string_view key);
std::optional<std::int64_t> whole(const boost::json::object& object, std::string_view key);
/// A number; JSON has none for NaN and infinity, so these come as text.
std::optional<double> number_of(const boost::json::value* value);
/// Seconds since the epoch. What the nanoseconds of the wall clock cannot hold, or is before the
/// epoch, is ignored.
std::optional<double> time_of(const boost::json::value* value);

}  // namespace elastrun::workers::members
