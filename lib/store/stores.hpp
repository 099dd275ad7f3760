// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace elastrun::store {

class Server;

/// The stores of a node, where it has any, for the acceptor of their connections. Borrowed.
struct Stores {
  Server* current = nullptr;  // of a round whose members may be at work
  Server* next = nullptr;     // of the one that is being formed
};

}  // namespace elastrun::store
