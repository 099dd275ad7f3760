// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace elastrun::store {

/// Who listens on this TCP port of our network namespace: "process 4242 (python train.py)". Empty
/// if that cannot be seen: another user's process, another container. Reads /proc/net/tcp{,6} and
/// the descriptors of the processes we may look into; bounded to some 100 ms on a large machine.
std::string find_port_owner(std::uint16_t port);

}  // namespace elastrun::store
