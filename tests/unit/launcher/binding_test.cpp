// SPDX-License-Identifier: Apache-2.0
#include "launcher/workers/binding.hpp"

#include "core/log.hpp"
#include "process/affinity.hpp"
#include "support/children.hpp"
#include "support/logged_text.hpp"

#include <algorithm>
#include <cstdlib>
#include <doctest/doctest.h>
#include <sched.h>

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

}  // namespace elastrun::agent
