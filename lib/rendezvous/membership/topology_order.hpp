// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/membership/round.hpp"

#include <cstddef>
#include <vector>

/// Ranks by topology: where nodes are tells the order. The nodes of a domain, which is one
/// beginning of their addresses (a switch, a block, an NVLink domain), are neighbours. Pure: the
/// same nodes give the same order, in whichever order they came.
namespace elastrun::rendezvous {

/// By address, level for level, in the natural order of names: node2 before node10; then by host.
/// Within its domain a node keeps its `last_rank`, if that is a place of the domain still. So a
/// node that is replaced by one of its domain leaves all others where they are.
void sort_by_topology(std::vector<Node>& members);

/// The places in `spares` in the order in which they are to replace nodes that were at `lost`:
/// first one for each that is nearest to it, then the others; first come, first served.
std::vector<std::size_t> nearest_first(const std::vector<const Node*>& lost,
                                       const std::vector<const Node*>& spares);

}  // namespace elastrun::rendezvous
