// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace elastrun::rendezvous {

/// The addresses of this machine, a few at most, from which its workers may come to the store
/// instead of `address`: theirs is that of the route to the store, which need not be the one by
/// which their agent came to the coordinator. Without loopback, which is every machine's own.
std::vector<std::string> other_addresses(const std::string& address);

}  // namespace elastrun::rendezvous
