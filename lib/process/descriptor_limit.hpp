// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <cstdint>
#include <optional>

namespace elastrun::process {

/// Fails with Io, in words for the user, where not even a job of one worker can be run: an agent
/// would fail in the middle of its start, and leave what it cannot open for its removal.
Status enough_descriptors();

/// The soft limit of open files (RLIMIT_NOFILE) is the hard one while this lives. The soft limit is
/// low (1024) for the sake of programs that use select(2); an agent needs a descriptor or more for
/// each worker, member and client of its store. Children that are not ours want theirs back.
class DescriptorLimit {
 public:
  DescriptorLimit();
  ~DescriptorLimit();
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

  /// The soft limit that there was, for LaunchRequest::open_files; nothing if it was not changed.
  std::optional<std::uint64_t> given() const { return given_; }

 private:
  std::optional<std::uint64_t> given_;
};

}  // namespace elastrun::process
