// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <map>
#include <string>
#include <string_view>

/// What the page of `goodput report --html` is made of. Pure.
namespace elastrun::ctl {

/// A text of whatever origin as text of HTML, also within an attribute: nothing of it is markup,
/// and it neither steers a terminal nor turns the direction of what stands around it.
std::string html_text(std::string text);

/// `page` with each comment <!--NAME--> replaced by what `pieces` has for it, which is not looked
/// at again. Other comments stay.
std::string filled(std::string_view page,
                   const std::map<std::string, std::string, std::less<>>& pieces);

/// "45.2 %"; never 100.0 % or 0.0 % for what only nearly is.
std::string share_text(Duration part, Duration whole);
/// `part / whole` from 0 to `width`, for a place or a length; 0 of an empty whole.
double placed(Duration part, Duration whole, double width);

/// What the program has of goodput_page.html.
std::string_view goodput_page_html();

}  // namespace elastrun::ctl
