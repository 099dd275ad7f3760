// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace elastrun {

/// Whether the user's locale is of UTF-8, by the first of LC_ALL, LC_CTYPE and LANG that is set, as
/// the C library decides.
bool locale_is_utf8();

}  // namespace elastrun
