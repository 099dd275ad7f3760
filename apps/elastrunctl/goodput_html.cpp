// SPDX-License-Identifier: Apache-2.0
#include "goodput_html.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::ctl {
namespace {

constexpr std::string_view kOpen = "<!--", kClose = "-->";

std::string_view entity(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    default:
      return {};
  }
}

/// Marks that would turn round what stands beside a text, also beyond its end.
bool turns_direction(char32_t point) {
  return (point >= 0x202a && point <= 0x202e) || (point >= 0x2066 && point <= 0x2069) ||
         point == 0x200e || point == 0x200f || point == 0x061c;
}

}  // namespace

std::string html_text(std::string text) {
  const std::string clean = printable(std::move(text));
  std::string out;
  for (std::string_view rest = clean; !rest.empty();) {
    const std::string_view before = rest;
    // Names and causes come from workers, and the page is opened by others: each text goes through
    // here.
    if (turns_direction(take_code_point(rest))) continue;
    const auto character = before.substr(0, before.size() - rest.size());
    const auto instead = character.size() == 1 ? entity(character.front()) : std::string_view();
    out += instead.empty() ? character : instead;
  }
  return out;
}

std::string filled(std::string_view page,
                   const std::map<std::string, std::string, std::less<>>& pieces) {
  std::string out;
  while (true) {
    const auto open = page.find(kOpen);
    const auto close = page.find(kClose, open);
    if (open == std::string_view::npos || close == std::string_view::npos) break;
    const auto name = page.substr(open + kOpen.size(), close - open - kOpen.size());
    const auto piece = pieces.find(name);
    out += page.substr(0, open);
    // A piece is not looked through again: what stands in it comes from journals, and may look like
    // a mark.
    out += piece == pieces.end() ? page.substr(open, close + kClose.size() - open) : piece->second;
    page.remove_prefix(close + kClose.size());
  }
  return out.append(page);
}

std::string share_text(Duration part, Duration whole) {
  const double share = placed(part, whole, 1);
  if (share > 0 && share < 0.0005) return "<0.1 %";
  if (share < 1 && share > 0.9995) return ">99.9 %";
  return fmt::format("{:.1f} %", share * 100);
}

double placed(Duration part, Duration whole, double width) {
  if (whole <= Duration::zero()) return 0;
  return std::clamp(static_cast<double>(part.count()) / static_cast<double>(whole.count()), 0.0,
                    1.0) *
         width;
}

}  // namespace elastrun::ctl
