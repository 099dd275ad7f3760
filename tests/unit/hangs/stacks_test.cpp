// SPDX-License-Identifier: Apache-2.0
#include "hangs/stacks.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <numeric>

using namespace elastrun;
using hangs::JobStacks;
using hangs::StackGroup;
using Lines = std::vector<std::string>;

namespace {

// As faulthandler of Python 3.11 has written them in a job with gloo (torch 2.13), by rank.
Lines in_all_reduce(unsigned address) {
  return {
      fmt::format("Thread 0x{:016x} (most recent call first):", address),
      "  <no Python frame>",
      fmt::format("Current thread 0x{:016x} (most recent call first):", address + 0x1000),
      R"(  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce)",
      R"(  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper)",
      R"(  File "/home/ada/train.py", line 88 in main)",
      R"(  File "/home/ada/train.py", line 120 in <module>)"};
}
Lines in_data_loader() {
  return {
      "Current thread 0x00007f4d01c8ab80 (most recent call first):",
      R"(  File "/home/ada/data.py", line 41 in __getitem__)",
      R"(  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 54 in <listcomp>)",
      R"(  File "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 785 in _next_data)",
      R"(  File "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 725 in __next__)",
      R"(  File "/home/ada/train.py", line 80 in main)",
      R"(  File "/home/ada/train.py", line 120 in <module>)"};
}
/// Where a user's own function stands.
Lines in_step(int line) {
  return {"Current thread 0x00007f4d01c8ab80 (most recent call first):",
          fmt::format(R"(  File "/home/ada/train.py", line {} in step)", line)};
}
/// With a thread that writes checkpoints, say: the newest is the first.
Lines beside_thread(Lines main) {
  Lines lines{"Thread 0x00007f4c00000000 (most recent call first):",
              R"(  File "/usr/lib/python3.11/threading.py", line 327 in wait)",
              R"(  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap)"};
  lines.insert(lines.end(), main.begin(), main.end());
  return lines;
}
Lines of_py_spy() {
  return {
      "Process 4711: python train.py",
      "Python v3.11.7 (/usr/bin/python3.11)",
      "Thread 4712 (idle): \"pin_memory\"",
      "    wait (/usr/lib/python3.11/threading.py:327)",
      "Thread 4711 (idle): \"MainThread\"",
      "    barrier (/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:5260)",
      "    main (/home/ada/train.py:7)"};
}
Lines of_kernel(int id, const std::string& name) {
  return {
      fmt::format("thread {} ({}, main): sleeping, system call futex, waits in "
                  "futex_wait_queue",
                  id, name),
      "    futex_wait_queue",
      fmt::format("threads {}, {} ({}): sleeping, system call epoll_wait", id + 1, id + 2, name)};
}

JobStacks of(const std::vector<hangs::WorkerStack>& stacks) {
  return {hangs::group(stacks), {}, {}};
}

}  // namespace

TEST_CASE("stacks: the odd one out is named, and where the others wait for it") {
  const auto stacks = of({{3, in_data_loader()},
                          {0, in_all_reduce(0x1000)},
                          {4, in_all_reduce(0x2000)},
                          {1, in_all_reduce(0x7f10)},
                          {2, in_all_reduce(0x9990)},
                          {5, in_all_reduce(0x5550)},
                          {6, in_all_reduce(0x4550)},
                          {7, in_all_reduce(0x4550)}});
  REQUIRE(stacks.groups.size() == 2);
  CHECK(stacks.groups[0].ranks == std::vector{0, 1, 2, 4, 5, 6, 7});
  CHECK(stacks_text(stacks) ==
        "ranks 0-2, 4-7 wait in all_reduce (train.py:88); rank 3 in DataLoader (data.py:41)");
  CHECK(hangs::culprits_of(stacks) == std::vector{3});
  CHECK(hang_text(stacks) ==
        "rank 3 hangs in DataLoader (data.py:41) while ranks 0-2, 4-7 wait in all_reduce "
        "(train.py:88)");
}

TEST_CASE("stacks: the main thread is the one that is compared, and is shown first") {
  const auto groups = hangs::group({{0, in_all_reduce(0x1000)}, {1, of_py_spy()}});
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].lines[0].starts_with("Current thread"));
  CHECK(groups[0].lines.back() == "  <no Python frame>");
  CHECK(groups[1].lines[0] == "Thread 4711 (idle): \"MainThread\"");
  CHECK(group_text(groups[1]) == "rank 1 waits in barrier (train.py:7)");
}

TEST_CASE("stacks: of a process whose main thread alone was asked, that one is compared") {
  Lines lines{"Stack (most recent call first):"};
  const auto loads = in_data_loader();
  lines.insert(lines.end(), loads.begin() + 1, loads.end());
  CHECK(hangs::place_of(hangs::group({{0, lines}}).front().lines).what == "DataLoader");
}

TEST_CASE("stacks: threads beside the main one change nothing of where a worker stands") {
  JobStacks job;
  for (const int first : {0, 2}) {  // two nodes
    const auto groups = hangs::group(
        {{first, beside_thread(in_all_reduce(1))},
         {first + 1, beside_thread(first == 0 ? in_all_reduce(2) : in_data_loader())}});
    job.groups.insert(job.groups.end(), groups.begin(), groups.end());
  }
  job.groups = hangs::merge(job.groups);
  REQUIRE(job.groups.size() == 2);
  CHECK(job.groups[0].lines[0].starts_with("Current thread"));
  CHECK(hang_text(job) ==
        "rank 3 hangs in DataLoader (data.py:41) while ranks 0-2 wait in all_reduce "
        "(train.py:88)");
  CHECK(hangs::merge(job.groups) == job.groups);
}

TEST_CASE("stacks: whoever waits is no culprit, not even of two") {
  const auto two = of({{0, in_all_reduce(1)}, {1, in_step(9)}});
  CHECK(hangs::culprits_of(two) == std::vector{1});
  CHECK(hang_text(two) ==
        "rank 1 hangs in step (train.py:9) while rank 0 waits in all_reduce (train.py:88)");
  CHECK(hangs::culprits_of(of({{0, in_step(8)}, {1, in_step(9)}})).empty());
  CHECK(hangs::culprits_of(of({{0, in_step(8)}, {1, in_step(9)}, {2, in_step(8)}})) ==
        std::vector{1});
  const auto all = of({{0, in_all_reduce(1)}, {1, in_all_reduce(2)}});
  CHECK(hangs::culprits_of(all).empty());
  CHECK(hang_text(all) == "the job hangs: ranks 0, 1 wait in all_reduce (train.py:88)");
}

TEST_CASE("stacks: who stands at the same line is told apart by who has called") {
  const auto called_by = [](const std::string& caller) {
    auto lines = in_step(9);
    lines.push_back(R"(  File "/home/)" + caller + R"(/train.py", line 12 in )" + caller);
    return lines;
  };
  const auto stacks = of({{0, called_by("save")}, {1, called_by("load")}, {2, called_by("save")}});
  CHECK(hang_text(stacks) ==
        "rank 1 hangs in step (train.py:9) of load (train.py:12) while "
        "ranks 0, 2 in step (train.py:9) of save (train.py:12)");
}

TEST_CASE("stacks: several odd ones are all named") {
  const auto stacks =
      of({{0, in_all_reduce(1)}, {1, in_step(9)}, {2, in_data_loader()}, {3, in_all_reduce(2)}});
  CHECK(hangs::culprits_of(stacks) == std::vector{1, 2});
  CHECK(hang_text(stacks) ==
        "rank 1 in step (train.py:9); rank 2 in DataLoader (data.py:41) while ranks 0, 3 wait in "
        "all_reduce (train.py:88)");
}

TEST_CASE("stacks: without Python the kernel tells") {
  const auto groups =
      hangs::group({{0, of_kernel(100, "python")}, {1, of_kernel(200, "pt_main_thread")}});
  REQUIRE(groups.size() == 1);
  CHECK(group_text(groups[0]) == "ranks 0, 1 in system call futex (futex_wait_queue)");
  auto both = in_step(9);
  for (const auto& line : of_kernel(100, "python")) both.push_back(line);
  CHECK(hangs::place_of(both).what == "step");  // Python's own is nearer to people
}

TEST_CASE("stacks: what the kernel tells is left out beside Python frames, unless a thread hangs") {
  auto lines = in_step(7);
  const auto python = lines;
  const auto kernel = of_kernel(1, "python");
  lines.insert(lines.end(), kernel.begin(), kernel.end());
  CHECK(hangs::without_kernel(lines) == python);
  CHECK(hangs::without_kernel(kernel) == kernel);
  lines.push_back("thread 9 (python): in uninterruptible sleep, system call read");
  CHECK(hangs::without_kernel(lines) == lines);
}

TEST_CASE("stacks: a node that does not answer is named, and suspected if nobody else is") {
  auto stacks = of({{0, in_all_reduce(1)}, {1, in_all_reduce(2)}});
  stacks.silent = {{"n7", {2, 3}}};
  CHECK(hangs::culprits_of(stacks) == std::vector{2, 3});
  CHECK(hang_text(stacks) ==
        "node n7 does not answer (ranks 2, 3) while ranks 0, 1 wait in all_reduce (train.py:88)");
  CHECK(hangs::hang_text({}) == "the job hangs: no stack could be taken");
}

TEST_CASE("stacks: nodes group for themselves, and are merged") {
  auto groups = hangs::group({{0, in_all_reduce(1)}, {1, in_step(9)}});
  for (auto& group : hangs::group({{2, in_all_reduce(7)}, {3, in_all_reduce(8)}, {4, {}}})) {
    groups.push_back(std::move(group));
  }
  const auto merged = hangs::merge(groups);
  REQUIRE(merged.size() == 3);
  CHECK(merged[0].ranks == std::vector{0, 2, 3});
  CHECK(merged[1].ranks == std::vector{1});
  CHECK(group_text(merged[2]) == "rank 4 without a stack");
}

TEST_CASE("stacks: what is hostile or huge is cut, and costs nobody else") {
  Lines many{"Current thread 0x1 (most recent call first):"};
  for (int i = 0; i < 5000; ++i) many.push_back("  File \"x.py\", line 1 in f");
  const auto groups = hangs::group({{0, many}, {1, {"Thread ", "(", "", "\"\"\""}}});
  CHECK(groups[0].lines.size() == hangs::kMostLines);
  CHECK(groups[1].lines.size() == 4);
  for (const auto& lines : {in_all_reduce(1), in_data_loader(), of_py_spy(), of_kernel(1, "x")}) {
    for (const auto& line : lines) {
      for (std::size_t size = 0; size <= line.size(); ++size) {
        (void)hangs::place_of({line.substr(0, size)});
        (void)hangs::place_of({lines[0], line.substr(size)});
      }
    }
  }
}

TEST_CASE("stacks: ranks are ranges where they are three or more") {
  CHECK(hangs::ranks_text({3}) == "rank 3");
  CHECK(hangs::ranks_text({0, 1, 3, 4, 5, 9}) == "ranks 0, 1, 3-5, 9");
  std::vector<int> even(100);
  std::iota(even.begin(), even.end(), 0);
  for (int& rank : even) rank *= 2;
  CHECK(hangs::ranks_text(even).ends_with("30 and 84 more"));
}
