// SPDX-License-Identifier: Apache-2.0
#include "process/descriptor_limit.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

namespace elastrun::process {

Status enough_descriptors() {
  constexpr rlim_t kLeast = 24;  // loop, guardian, threads, store, and one worker with its pipes
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max >= kLeast) return {};
  return fail(Code::Io, fmt::format("the limit of open files is {}, and a job of one worker takes "
                                    "{}: raise it (ulimit -n)",
                                    limit.rlim_max, kLeast));
}

DescriptorLimit::DescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  const auto given = limit.rlim_cur;
  // The soft limit may be raised up to the hard one without a privilege (getrlimit(2)).
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
