// SPDX-License-Identifier: Apache-2.0
#include "process/descriptor_limit.hpp"

#include <sys/resource.h>

namespace elastrun::process {

DescriptorLimit::DescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  const auto given = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) given_ = given;
}

DescriptorLimit::~DescriptorLimit() {
  rlimit limit{};
  if (!given_ || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = *given_;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace elastrun::process
