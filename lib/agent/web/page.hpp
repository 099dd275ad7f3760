// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace elastrun::agent {

/// lib/agent/web/page.html: one file with style and script, which asks for nothing else.
std::string_view page_html();

}  // namespace elastrun::agent
