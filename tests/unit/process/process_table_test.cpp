// SPDX-License-Identifier: Apache-2.0
#include "process/process_table.hpp"

#include "support/fake_files.hpp"

#include <algorithm>
#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <string>
#include <unistd.h>

using namespace elastrun::process;

namespace {

ProcessEntry entry(pid_t pid, pid_t parent, char state = 'S') {
  ProcessEntry made;
  made.pid = pid;
  made.parent = parent;
  made.state = state;
  return made;
}

std::vector<pid_t> pids(const ProcessTable& table) {
  std::vector<pid_t> result;
  for (const auto& each : table) result.push_back(each.pid);
  std::sort(result.begin(), result.end());
  return result;
}

const std::string kStat =
    "4242 (a) b (c) S 17 4240 4239 34816 -1 4194560 107 0 0 0 1 2 0 0 20 0 1 0 987654 2461696 0\n";

}  // namespace

TEST_CASE("process table: a name with blanks and parentheses hides no field") {
  const auto parsed = parse_process(kStat);
  REQUIRE(parsed);
  CHECK(parsed->pid == 4242);
  CHECK(parsed->name == "a) b (c");
  CHECK(parsed->state == 'S');
  CHECK(parsed->parent == 17);
  CHECK(parsed->group == 4240);
  CHECK(parsed->session == 4239);
  CHECK(parsed->start_time == 987654);
}

TEST_CASE("process table: fields of a line that ends early are empty, and none is read beyond") {
  const auto fields = stat_fields("4242 (a) b (c) S 17\n");
  REQUIRE(fields.size() == 22);
  CHECK(fields[0] == "S");
  CHECK(fields[1] == "17");
  CHECK(fields[21].empty());
  CHECK(stat_fields(kStat).back() == "0");
  CHECK(stat_fields("4242 (a").front().empty());
}

TEST_CASE("process table: a line cut anywhere before the start time is refused") {
  for (std::size_t length = 0; length <= kStat.find(" 987654"); ++length) {
    CAPTURE(length);
    CHECK_FALSE(parse_process(kStat.substr(0, length)));
  }
}

TEST_CASE("process table: this process is found as the kernel knows it") {
  const auto self = read_process(::getpid());
  REQUIRE(self);
  CHECK(self->parent == ::getppid());
  CHECK(self->group == ::getpgrp());
  CHECK(self->state == 'R');
  const auto all = read_all_processes();
  CHECK(std::find(all.begin(), all.end(), *self) != all.end());
}

TEST_CASE("process table: descendants are all below, whatever their order in the table") {
  const ProcessTable table{entry(9, 8), entry(1, 0),  entry(5, 1), entry(8, 5),
                           entry(6, 5), entry(20, 1), entry(7, 20)};
  CHECK(pids(descendants(table, 5)) == std::vector<pid_t>{6, 8, 9});
  CHECK(pids(descendants(table, 9)).empty());
}

TEST_CASE("process table: spared children protect everything below them") {
  const ProcessTable table{entry(5, 1), entry(10, 5), entry(11, 10), entry(12, 11), entry(13, 5)};
  CHECK(pids(descendants(table, 5, {10})) == std::vector<pid_t>{13});
}

TEST_CASE("process table: a loop in a table that changed while it was read does no harm") {
  const ProcessTable table{entry(5, 1), entry(6, 7), entry(7, 6), entry(6, 5), entry(5, 6)};
  CHECK(pids(descendants(table, 5)) == std::vector<pid_t>{6, 7});
}

TEST_CASE("process table: who waits for a child, and who for something else") {
  const elastrun::test::FakeFiles proc;
  const auto waits_in = [&](const std::string& where, char state = 'S') {
    proc.add("7/wchan", where);
    return waits_for_child(entry(7, 1, state), proc.root());
  };
  CHECK(waits_in("do_wait"));
  CHECK_FALSE(waits_in("futex_wait_queue"));
  CHECK_FALSE(waits_in("hrtimer_nanosleep"));
  CHECK_FALSE(waits_in("0", 'R'));
  CHECK_MESSAGE(waits_in("0"), "a kernel that does not tell");
  CHECK_FALSE(waits_for_child(entry(7, 1, 'S'), proc.root(), true));
}

TEST_CASE("process table: the kernel's lists of children are used where it keeps them") {
  const elastrun::test::FakeFiles proc;
  const auto add = [&](pid_t pid, pid_t thread, const std::string& children) {
    proc.add(fmt::format("{}/task/{}/children", pid, thread), children);
    proc.add(fmt::format("{}/stat", pid),
             fmt::format("{} (x) S 1 1 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 5 0\n", pid));
  };
  add(100, 100, "101 ");
  add(100, 105, "102 103 ");  // children of a second thread
  add(101, 101, "");
  add(102, 102, "104 ");
  add(104, 104, "");
  add(900, 900, "");                                 // a stranger
  CHECK(pids(read_descendants(100, proc.root())) ==  // 103 has gone in the meantime
        std::vector<pid_t>{101, 102, 104});
}

TEST_CASE("process table: the command line of a process that hangs in the kernel is not read") {
  const elastrun::test::FakeFiles proc;
  const auto thread = [&](pid_t tid, char state) {
    proc.add("7/task/" + std::to_string(tid) + "/stat",
             fmt::format("{} (t) {} 1 1 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 5 0\n", tid, state));
  };
  proc.add("7/cmdline", std::string("python3\0train.py\0", 17));
  thread(7, 'S');
  thread(8, 'R');
  ProcessEntry trainer;
  trainer.pid = 7;
  trainer.name = "trainer";
  CHECK(command_of(trainer, proc.root()) == "python3 train.py");
  thread(8, 'D');
  CHECK(command_of(trainer, proc.root()) == "trainer");
}

namespace elastrun::process {
namespace {

TEST_CASE("process status: tracer, user and signals, whatever the process is called") {
  const test::FakeFiles proc;
  proc.add("7/status",
           "Name:\tx\\nTracerPid:\\t9\nPid:\t7\nTracerPid:\t4711\nUid:\t1000\t0\t0\t0\n"
           "SigPnd:\t0000000000000200\nSigBlk:\t8000000000000000\nSigIgn:\t0000000000001000\n"
           "SigCgt:\t0000000100000002\n");
  const auto status = read_status(7, proc.root());
  CHECK(status.tracer == 4711);
  CHECK(status.user == 1000);
  for (const int signal : {2, 13, 33, 64}) CHECK(status.survives(signal));
  for (const int signal : {1, 10, 12, 63}) CHECK_FALSE(status.survives(signal));
}

TEST_CASE("process status: of a process that has gone nothing is known") {
  const test::FakeFiles proc;
  const auto status = read_status(7, proc.root());
  CHECK(status.tracer == 0);
  CHECK_FALSE(status.user.has_value());
  CHECK_FALSE(status.survives(SIGTERM));
}

TEST_CASE("process status: as the kernel has it of this process") {
  CHECK(read_status(::getpid()).user == ::getuid());
  CHECK_FALSE(read_status(::getpid()).survives(SIGUSR2));
  const auto before = std::signal(SIGUSR2, [](int) {});
  CHECK(read_status(::getpid()).survives(SIGUSR2));
  std::signal(SIGUSR2, before);
}

/// What a process is that runs `program` and sleeps.
Wrapper wrapper_by(const std::string& program, const std::string& where = "futex_wait_queue",
                   const std::string& deaf = "") {
  const test::FakeFiles proc;
  proc.add("7/wchan", where);
  proc.add("7/status", "Name:\tx\nSigPnd:\t0000000000004000\n" + deaf);
  std::filesystem::create_symlink(program, proc.root() + "/7/exe");
  ProcessEntry process;
  process.pid = 7;
  process.state = 'S';
  process.name = "train.sh";
  return wrapper_of(process, proc.root());
}

TEST_CASE("wrapper: shells and timeout(1) are known by their program") {
  CHECK(wrapper_by("/usr/bin/bash") == Wrapper::Shell);
  CHECK(wrapper_by("/usr/bin/timeout") == Wrapper::Relay);
  CHECK(wrapper_by("/usr/bin/python3.12") == Wrapper::None);
  CHECK_MESSAGE(wrapper_by("/usr/bin/dash (deleted)") == Wrapper::Shell, "updated since");
}

TEST_CASE("wrapper: so is a process that waits for a child and does not hear SIGTERM") {
  const std::string blocked = "SigBlk:\t0000000000004002\nSigIgn:\t0000000000000000\n";
  const std::string ignored = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000004000\n";
  const std::string caught =
      "SigBlk:\t0000000000000000\nSigIgn:\t0000000001001000\n"
      "SigCgt:\t0000000000004002\n";
  CHECK(wrapper_by("/usr/bin/unshare", "do_wait", blocked) == Wrapper::Shell);
  CHECK(wrapper_by("/usr/bin/python3", "do_wait", ignored) == Wrapper::Shell);
  CHECK(wrapper_by("/usr/bin/python3", "do_wait", caught) == Wrapper::None);
  CHECK(wrapper_by("/usr/bin/python3", "futex_wait_queue", ignored) == Wrapper::None);
}

TEST_CASE("wrapper: who waits for a child that hears SIGTERM leaves the signal to it") {
  const auto leaves = [](const std::string& where, const std::string& caught) {
    const test::FakeFiles proc;
    proc.add("7/wchan", where);
    proc.add("8/status", "Name:\tx\nSigCgt:\t" + caught + "\n");
    ProcessEntry parent, child;
    parent.pid = 7, child.pid = 8;
    parent.state = 'S';
    return leaves_to(parent, child, proc.root());
  };
  CHECK(leaves("do_wait", "0000000000004000"));
  CHECK_FALSE(leaves("do_wait", "0000000000000002"));
  CHECK_FALSE(leaves("futex_wait_queue", "0000000000004000"));
  CHECK_FALSE_MESSAGE(leaves("0", "0000000000004000"), "any trainer may sleep for another reason");
}

}  // namespace
}  // namespace elastrun::process
