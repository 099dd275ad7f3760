// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "core/error.hpp"
#include "spec/job_spec.hpp"

#include <optional>
#include <vector>

namespace elastrun::agent {

/// Which CPUs each worker of this node may use (--numa-binding). The machine is looked at when the
/// first worker needs it, so jobs that are not bound pay nothing. After each start it reads back
/// what the kernel made of it, and warns where that differs.
class Binding final : public Observer {
 public:
  /// Borrows the spec.
  explicit Binding(const spec::JobSpec& spec) : spec_(spec) {}

  /// Empty: not bound. Fails with Usage when not every worker can have such a share.
  Result<std::vector<int>> cpus(int local_rank);

  void heard(const Moment& one) override { dispatch(one, *this); }
  void on(const moment::Started& seen);

 private:
  const spec::JobSpec& spec_;
  std::optional<std::vector<std::vector<int>>> plan_;  // by local rank
};

}  // namespace elastrun::agent
