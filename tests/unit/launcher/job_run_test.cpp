// SPDX-License-Identifier: Apache-2.0
#include "launcher/job_run.hpp"

#include "core/log.hpp"
#include "launcher/restarts.hpp"
#include "net/listener.hpp"
#include "process/affinity.hpp"
#include "store/server.hpp"
#include "support/children.hpp"
#include "support/fake_run.hpp"
#include "support/logged_text.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <sched.h>
#include <stdlib.h>
#include <string>
#include <unistd.h>
#include <vector>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;

/// What is logged while this exists. The machine is one without GPUs: their number is set to none.
struct LogLines : test::LoggedText {
  LogLines() {
    ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
    log::set_level(log::Level::Info);
  }
  ~LogLines() {
    log::set_level(log::Level::Warning);
    ::unsetenv("CUDA_VISIBLE_DEVICES");
  }
};

spec::JobSpec bound(spec::NumaBinding numa, int workers) {
  spec::JobSpec spec;
  spec.numa = numa;
  spec.nproc_per_node = workers;
  return spec;
}

/// A real process that stays, as worker 0 of a group.
struct Stayer {
  test::Nursery nursery;
  std::vector<workers::Worker> group{1};
  explicit Stayer(std::vector<int> cpus) {
    auto request = nursery.stub({"stay"});
    request.cpus = std::move(cpus);
    auto child = nursery.launcher->start(request, [](const process::Exit&) {});
    REQUIRE(child);
    group[0].pid = (*child)->pid();
    group[0].child = std::move(*child);
  }
};

}  // namespace

TEST_CASE("binding: without the option nobody is bound, and nothing is looked at") {
  const LogLines lines;
  const auto spec = bound(spec::NumaBinding::None, 2);
  Binding binding(spec);
  const auto cpus = binding.cpus(1);
  REQUIRE(cpus);
  CHECK(cpus->empty());
  binding.on(moment::Started{{}, std::vector<workers::Worker>(2), 0s});
  CHECK(lines.text.empty());
}

TEST_CASE("binding: without devices the workers are spread, and one note says so") {
  const LogLines lines;
  const auto own = process::affinity_of(0);
  REQUIRE(own);
  const auto spec = bound(spec::NumaBinding::Node, 3);
  Binding binding(spec);
  for (int local_rank = 0; local_rank < 3; ++local_rank) {
    const auto cpus = binding.cpus(local_rank);
    REQUIRE(cpus);
    CHECK_FALSE(cpus->empty());
    CHECK(std::ranges::includes(*own, *cpus));
  }
  CHECK(std::ranges::count(lines.text, '\n') == 1);
}

TEST_CASE("binding: what the kernel made of it is read back at every start") {
  LogLines lines;
  const auto spec = bound(spec::NumaBinding::Node, 1);
  Binding binding(spec);
  const auto cpus = binding.cpus(0);
  REQUIRE(cpus);
  Stayer worker(*cpus);
  lines.text.clear();
  binding.on(moment::Started{{}, worker.group, 0s});
  CHECK(lines.text.contains("Local rank 0 runs on CPUs " + process::format_cpus(*cpus) + "\n"));
  if (cpus->size() < 2) return;  // on one CPU there is nothing to differ
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(cpus->front()), &one);
  REQUIRE(::sched_setaffinity(worker.group[0].pid, sizeof one, &one) == 0);
  lines.text.clear();
  binding.on(moment::Started{{}, worker.group, 0s});
  CHECK(lines.text.starts_with("W"));
  CHECK_FALSE(lines.text.contains("Local rank 0 runs on"));
  worker.group[0].exit = process::Exit{};  // has ended meanwhile: nothing to read
  lines.text.clear();
  binding.on(moment::Started{{}, worker.group, 0s});
  CHECK(lines.text.empty());
}

namespace {

/// A job in an allocation of which so much time is left.
struct SlurmJob : test::FakeRun {
  explicit SlurmJob(Duration left, std::optional<Duration> timeout = {}) {
    job.preempt_signals = {"SIGTERM"};
    job.preempt_timeout = timeout;
    const WallTime end = clock.wall() + left;
    const auto seconds = std::chrono::floor<std::chrono::seconds>(end).time_since_epoch().count();
    sources.emplace(*this, std::to_string(seconds));
  }
  void post(Fact fact) override { asked.push_back(std::get<PreemptCame>(fact).deadline); }
  test::FakeClock& clock = time;
  std::vector<Duration> asked;
  std::optional<PreemptionSources> sources;
};

TEST_CASE("preemption sources: a job begins to save a minute before its end, or twice a save") {
  SlurmJob unknown(1h);
  unknown.clock.advance(59min - 1s);
  CHECK(unknown.asked.empty());
  unknown.clock.advance(1s);
  CHECK(unknown.asked == std::vector<Duration>{1min});
  SlurmJob known(1h);
  known.sources->save_takes(50s);
  known.clock.advance(1h - 100s);
  CHECK(known.asked == std::vector<Duration>{100s});
  SlurmJob quick(1h);
  quick.sources->save_takes(1ms);
  quick.clock.advance(1h - PreemptionSources::kLeast);
  CHECK(quick.asked == std::vector<Duration>{PreemptionSources::kLeast});
}

TEST_CASE("preemption sources: an end that is over, or is none, is ignored with a warning") {
  const test::LoggedText log;
  SlurmJob over(-3h);
  over.clock.advance(24h);
  over.sources->save_takes(1s);
  over.sources.emplace(over, "soon");
  over.clock.advance(24h);
  CHECK(over.asked.empty());
  CHECK(log.text.contains(": in the past, ignored; "));
  CHECK(
      log.text.contains("SLURM_JOB_END_TIME=soon: no time in seconds since the epoch, ignored; "));
}

TEST_CASE("preemption sources: a save that seemed long does not end the job early") {
  SlurmJob job(2h);
  job.sources->save_takes(1h);
  job.clock.advance(2h - PreemptionSources::kMost);
  CHECK(job.asked == std::vector<Duration>{PreemptionSources::kMost});
  SlurmJob limited(2h, 20min);
  limited.sources->save_takes(1h);
  limited.clock.advance(100min);
  CHECK(limited.asked == std::vector<Duration>{20min});
  // Each start of a short job does half of what it could, and not the work up to its first save.
  SlurmJob brief(40s);
  brief.clock.advance(5s);
  brief.sources->save_takes(1min);
  CHECK(brief.asked.empty());
  brief.clock.advance(14s);
  CHECK(brief.asked.empty());
  brief.clock.advance(1s);
  CHECK(brief.asked == std::vector<Duration>{20s});
}

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
