// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "vectors/recording.hpp"

namespace elastrun::vectors {

/// Plays the client's side of the steps to a fresh server over real sockets; fails with Protocol
/// and says at which step the server did something else. Silence is checked by what is there once
/// server and network are at rest, not by waiting.
Status replay_over_sockets(const Recording& recording);

/// The same through an Exchange without sockets, each send in pieces of `piece` bytes.
Status replay_in_pieces(const Recording& recording, std::size_t piece);

}  // namespace elastrun::vectors
