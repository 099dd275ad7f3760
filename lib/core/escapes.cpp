// SPDX-License-Identifier: Apache-2.0
#include "core/escapes.hpp"

#include "core/text.hpp"

#include <algorithm>

namespace elastrun {
namespace {

constexpr char kEscape = '\x1b', kBell = '\a';

bool is_within(char c, char first, char last) {
  return first <= c && c <= last;
}

/// Removes characters of that range from the front.
void skip(std::string_view& text, char first, char last) {
  const auto other = std::ranges::find_if(text, [&](char c) { return !is_within(c, first, last); });
  text.remove_prefix(static_cast<std::size_t>(other - text.begin()));
}

void skip_one(std::string_view& text, char first, char last) {
  if (!text.empty() && is_within(text.front(), first, last)) text.remove_prefix(1);
}

/// To BEL, which ends a title in xterm, or ST; or to the end of the line.
void skip_string(std::string_view& text) {
  while (!text.empty() && text.front() != kBell && text.front() != '\n' &&
         !text.starts_with("\x1b\\")) {
    text.remove_prefix(1);
  }
  if (text.starts_with('\n')) return;
  text.remove_prefix(std::min<std::size_t>(text.size(), text.starts_with(kBell) ? 1 : 2));
}

/// A whole sequence whose ESC has been removed from the front of `text`.
void skip_sequence(std::string_view& text) {
  constexpr std::string_view kStrings = "]PX^_";  // OSC, DCS, SOS, PM, APC
  if (text.starts_with('[')) {
    text.remove_prefix(1);
    skip(text, '0', '?');      // parameters
    skip(text, ' ', '/');      // intermediates
    skip_one(text, '@', '~');  // the final
  } else if (!text.empty() && kStrings.contains(text.front())) {
    text.remove_prefix(1);
    skip_string(text);
  } else {
    skip(text, ' ', '/');
    skip_one(text, '0', '~');
  }
}

}  // namespace

std::string without_escapes(std::string_view text, std::string_view kept) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto plain = text.substr(0, text.find(kEscape));
    out += plain;
    text.remove_prefix(plain.size());
    if (text.empty()) break;
    text.remove_prefix(1);
    skip_sequence(text);
  }
  // Last: what stood on both sides of a sequence may be one character now.
  return without_controls(out, kept);
}

}  // namespace elastrun
