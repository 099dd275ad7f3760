// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace elastrun::net {

/// RFC 4648, section 4, with padding.
std::string encode_base64(std::string_view bytes);
/// Nothing if the text is not base64 as above, without line ends.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace elastrun::net
