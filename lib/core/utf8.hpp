// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

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

/// Whether the user's locale is of UTF-8, by the first of LC_ALL, LC_CTYPE and LANG that is set, as
/// the C library decides.
bool locale_is_utf8();

}  // namespace elastrun
