// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace elastrun::net {

/// What a new connection to a shared port wants.
enum class Protocol {
  Undecided,  // too few bytes so far
  Agent,      // elastrun's own protocol (frame.hpp)
  Store,      // a TCPStore client, of either protocol
  Http,
  Unknown,
};

/// Tells by the first bytes. The three cannot be mistaken for each other: TCPStore queries begin
/// with a byte of 0 to 31, HTTP with a capital letter, ours with 0xE5 and the rest of its magic.
Protocol recognise(std::string_view first_bytes);

}  // namespace elastrun::net
