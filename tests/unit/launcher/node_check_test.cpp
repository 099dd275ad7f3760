// SPDX-License-Identifier: Apache-2.0
#include "launcher/restarts.hpp"
#include "net/listener.hpp"
#include "store/listening.hpp"

#include <doctest/doctest.h>
#include <filesystem>
#include <stdlib.h>
#include <string>
#include <unistd.h>

namespace elastrun::agent {
namespace {

system::GpuUse gpu(std::optional<std::uint64_t> used, std::uint64_t xids = 0) {
  system::GpuUse use;
  use.index = 3;
  use.uuid = "GPU-3";
  use.memory_used = used;
  use.xid_errors = xids;
  use.last_xid = xids > 0 ? 79 : 0;
  return use;
}

constexpr std::uint64_t kGiB = 1ull << 30;

}  // namespace

TEST_CASE("node check: memory that a GPU has not given back, and an Xid, are faults") {
  CHECK(gpu_fault({gpu(0)}, {gpu(kGiB)}, true) ==
        "GPU 3 still has 1024 MiB in use, 0 MiB before the job");
  CHECK(gpu_fault({gpu(kGiB)}, {gpu(kGiB + (100 << 20))}, true).empty());
  CHECK(gpu_fault({gpu(0)}, {gpu(0, 1)}, true) == "GPU 3 has had an Xid 79");
}

TEST_CASE("node check: what is not known, and what may be another job's, is no fault") {
  CHECK(gpu_fault({gpu(0)}, {gpu(kGiB)}, false).empty());
  CHECK(gpu_fault({gpu(0)}, {gpu(std::nullopt)}, true).empty());
  CHECK(gpu_fault({}, {gpu(kGiB, 1)}, true).empty());
}

struct CheckedNode final : NodeCheck {
  /// By the number of the look.
  explicit CheckedNode(bool (*holds_memory)(int look)) : NodeCheck({}, 1), holds(holds_memory) {}
  std::vector<system::GpuUse> sample() override { return {gpu(holds(looks++) ? kGiB : 0)}; }
  void wait() override { ++waits; }
  bool (*holds)(int);
  int looks = 0, waits = 0;
};

TEST_CASE("node check: memory may need a moment to come back") {
  CheckedNode check([](int look) { return look == 1; });
  check.begin();
  CHECK(check.fault().empty());
  CHECK(check.waits == 1);
  CheckedNode never([](int look) { return look > 0; });
  never.begin();
  CHECK(never.fault().contains("1024 MiB in use"));
}

TEST_CASE(
    "node check: ports that are all in use are a fault, with the process that listens there") {
  const auto held = store::open_listening("127.0.0.1", 0);
  REQUIRE(held.has_value());
  const auto port = net::bound_to(held->get()).port();
  const rendezvous::StorePlan plan{.bind_address = "127.0.0.1", .ports = {port, port}};
  const auto text = port_fault(plan);
  CHECK(text.contains("the port is in use by process " + std::to_string(::getpid())));
  CheckedNode check([](int) { return false; });
  CHECK(check.fault(plan) == text);
  CHECK(check.waits == NodeCheck::kLooks);
  CHECK(check.fault({}).empty());
  // Of a long range one is free; an address that is not ours could not be asked.
  CHECK(port_fault({"127.0.0.1", {1, 65535}}).empty());
  CHECK(port_fault({"192.0.2.1", {port, port}}).empty());
}

TEST_CASE("node check: a directory that cannot be written to; one that is not there is no fault") {
  std::string folder = "/tmp/check-XXXXXX";
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  CHECK(disk_fault(folder).empty());
  CHECK(std::filesystem::is_empty(folder));  // nothing is left
  std::filesystem::remove(folder);
  CHECK(disk_fault(folder).empty());
  CHECK(disk_fault("").empty());
  // A full file system, of which the kernel has one.
  CHECK(disk_fault("/proc/self").contains("nothing can be written in /proc/self"));
}

}  // namespace elastrun::agent
