// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "elastrunctl/goodput_files.hpp"

#include <string>
#include <string_view>

namespace elastrun::ctl {

/// One HTML file that shows the account with a timeline and the times of the steps, and asks for
/// nothing else: its script draws what stands in it as JSON. `input` was read with its history.
std::string goodput_page(const GoodputInput& input, const GoodputAnswer& answer);

/// Writes it there, "-" being standard output. A file that is there is replaced only if it is a
/// page, too: what was meant may be the journal. Fails with Usage then, else with Io.
Status write_goodput_page(const std::string& path, const std::string& text);

/// goodput_page.html, which the program has as text.
std::string_view goodput_page_html();

}  // namespace elastrun::ctl
