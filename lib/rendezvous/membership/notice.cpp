// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/notice.hpp"

namespace elastrun::rendezvous {

Push to_push(const Notice& notice) {
  if (const auto* assigned = std::get_if<Assigned>(&notice)) {
    return RoundReady{round_of(*assigned->world, assigned->group_rank)};
  }
  return *std::get<std::shared_ptr<const Push>>(notice);
}

}  // namespace elastrun::rendezvous
