// SPDX-License-Identifier: Apache-2.0
#include "system/proc_files.hpp"

#include <doctest/doctest.h>
#include <string>

using namespace elastrun::system;

namespace {

// Linux 6.1, shortened.
constexpr std::string_view kStat =
    "cpu  102 2 33 9000 44 5 6 7 8 9\ncpu0 51 1 16 4500 22 2 3 3 4 4\n"
    "cpu1 51 1 17 4500 22 3 3 4 4 5\nintr 5 0 9\nctxt 12345\nbtime 1763690000\n";
constexpr std::string_view kMeminfo =
    "MemTotal:       24684084 kB\nMemFree:        20000000 kB\nMemAvailable:   21000000 kB\n"
    "Buffers:          100000 kB\nCached:          1500000 kB\nSwapCached:            0 kB\n";
constexpr std::string_view kDisks =
    "   7       0 loop0 10 0 20 1 0 0 0 0 0 1 1 0 0 0 0 0 0\n"
    " 259       0 nvme0n1 1000 20 3000 400 500 60 7000 80 0 90 100 0 0 0 0 0 0\n"
    " 259       1 nvme0n1p1 900 20 2900 400 500 60 7000 80 0 90 100 0 0 0 0 0 0\n"
    " 253       0 dm-0 1 0 8 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
    "   8       0 sda 1 0 8 0 2 0 16 0 0 0 0 0 0 0 0 0 0\n"
    "   8      16 sdaa 1 0 24 0 2 0 32 0 0 0 0\n   8       1 sda1 1 0 8 0 2 0 16 0 0 0 0\n";
constexpr std::string_view kNetworks =
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n"
    "    lo:  999 9 0 0 0 0 0 0 999 9 0 0 0 0 0 0\n"
    "  eth0:123456 100 2 0 0 0 0 0 654321 90 3 0 0 0 0 0\n";
constexpr std::string_view kProcess =
    "4242 (py) thon (3)) S 1 4242 4242 0 -1 4194304 1500 20 7 1 250 50 30 20 20 0 9 0 8887 "
    "123456789 2048 18446744073709551615 1 1 0 0 0 0 0 0 0\n";

}  // namespace

TEST_CASE("proc files: CPU time is that of all CPUs, and interrupts are one") {
  const auto times = cpu_times_in(kStat, 100);
  REQUIRE(times);
  CHECK(*times == CpuTimes{1.02, 0.02, 0.33, 90.0, 0.44, 0.11, 0.07, 2});
  CHECK_FALSE(cpu_times_in("", 100));
  CHECK_FALSE(cpu_times_in("cpu  1 2\n", 100));
  CHECK_FALSE(cpu_times_in("cpu x\nctxt 9\n", 100));
  CHECK(cpu_times_in("cpu  1 2 3 4", 1)->idle == 4);  // an old kernel, and no line end
}

TEST_CASE("proc files: memory in bytes") {
  const auto memory = memory_in(kMeminfo);
  REQUIRE(memory);
  CHECK(memory->total == 24684084ull << 10);
  CHECK(memory->used() == 3684084ull << 10);
  CHECK(memory->cached == 1500000ull << 10);  // not that of SwapCached
  CHECK_FALSE(memory_in("MemFree: 3 kB\n"));
  // What cannot be true does no harm.
  CHECK(memory_in("MemTotal: 10 kB\nMemAvailable: 99999999999999999999 kB")->used() == 10 << 10);
  CHECK(memory_in("MemTotal: 10 kB\nMemAvailable: 11 kB")->used() == 0);
}

TEST_CASE("proc files: disks, without what is made of them") {
  const auto disks = disks_in(kDisks);
  REQUIRE(disks.size() == 3);
  CHECK(disks[0] == DeviceIo{"nvme0n1", 3000 * 512, 7000 * 512});
  CHECK(disks[1] == DeviceIo{"sda", 8 * 512, 16 * 512});
  CHECK(disks[2] == DeviceIo{"sdaa", 24 * 512, 32 * 512});
  CHECK(disks_in("8 0\n8 0 sda 1 2 x\n\n").empty());
}

TEST_CASE("proc files: interfaces, without loopback") {
  const auto networks = networks_in(kNetworks);
  REQUIRE(networks.size() == 1);
  CHECK(networks[0] == DeviceIo{"eth0", 123456, 654321, 2, 3});
  CHECK(networks_in("eth0: 1 2 3\n:\nno colon\n").empty());
}

TEST_CASE("proc files: a process with an ugly name, and the children that it waited for") {
  const auto use = process_use_in(kProcess, 100, 4096);
  REQUIRE(use);
  CHECK(use->minor_faults == 1520);
  CHECK(use->major_faults == 8);
  CHECK(use->user == 2.8);
  CHECK(use->system == 0.7);
  CHECK(use->threads == 9);
  CHECK(use->start_ticks == 8887);
  CHECK(use->virtual_bytes == 123456789);
  CHECK(use->resident_bytes == 2048 * 4096);
}

TEST_CASE("proc files: text that is cut anywhere is understood or left out, never misread") {
  for (const auto text : {kStat, kMeminfo, kDisks, kNetworks, kProcess}) {
    for (std::size_t size = 0; size <= text.size(); ++size) {
      const auto part = text.substr(0, size);
      static_cast<void>(cpu_times_in(part, 100));
      static_cast<void>(memory_in(part));
      for (const auto& disk : disks_in(part)) CHECK(disk.in <= 3000 * 512);
      for (const auto& network : networks_in(part)) CHECK(network.in == 123456);
      if (const auto use = process_use_in(part, 100, 1)) CHECK(use->minor_faults == 1520);
    }
  }
}

TEST_CASE("proc files: I/O of a process is told only where it may be read") {
  CHECK(process_io_in("rchar: 9\nwchar: 8\nread_bytes: 4096\nwrite_bytes: 8192\n"
                      "cancelled_write_bytes: 0\n") == DeviceIo{"", 4096, 8192});
  CHECK_FALSE(process_io_in(""));
}

TEST_CASE("proc files: a value is found by its whole key") {
  CHECK(value_in("pgfaults 1\npgfault 2\n", "pgfault") == 2);
  CHECK(value_in("a: 5", "a") == 5);
  CHECK(value_in("a=5", "a") == 5);
  CHECK(value_in("voluntary_ctxt_switches:\t12\n", "voluntary_ctxt_switches") == 12);
  CHECK_FALSE(value_in("a -1\n", "a"));
  CHECK_FALSE(value_in("a", "a"));
  CHECK_FALSE(value_in("a 99999999999999999999999", "a"));
}

TEST_CASE("proc files: a cgroup with all of its controllers, and one with none") {
  const auto use = cgroup_use_in(
      {"usage_usec 5000000\nuser_usec 3000000\nsystem_usec 2000000\nnr_periods 10\n"
       "nr_throttled 4\nthrottled_usec 1500000\n",
       "1048576\n", "max\n", "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n",
       "8:0 rbytes=100 wbytes=200 rios=1 wios=2 dbytes=0 dios=0\n259:0 rbytes=1 wbytes=2\n"});
  CHECK(use.cpu_user == 3.0);
  CHECK(use.cpu_system == 2.0);
  CHECK(use.throttled == 1.5);
  CHECK(use.throttled_periods == 4);
  CHECK(use.memory == 1 << 20);
  CHECK_FALSE(use.memory_limit);
  CHECK(use.oom_kills == 2);
  CHECK(use.read == 101);
  CHECK(use.written == 202);
  CHECK(cgroup_use_in({}) == CgroupUse());
  CHECK(cgroup_use_in({"", "", "536870912\n", "", ""}).memory_limit == 512u << 20);
}
