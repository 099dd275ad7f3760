// SPDX-License-Identifier: Apache-2.0
#include "agent/goodput_account.hpp"

#include <algorithm>

namespace elastrun::agent {

void GoodputAccount::stopped(const std::vector<workers::Worker>& group, Duration) {
  account_.stopped(std::ranges::any_of(group, &workers::Worker::failed), clock_.now());
}

void GoodputAccount::ended(const JobResult& result, const std::vector<workers::Worker>*) {
  account_.ended(result.succeeded(), clock_.now());
}

}  // namespace elastrun::agent
