// SPDX-License-Identifier: Apache-2.0
#include "process/job_processes.hpp"
#include "support/fake_files.hpp"

#include <doctest/doctest.h>
#include <filesystem>
#include <string>

namespace elastrun::process {
namespace {

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
