// SPDX-License-Identifier: Apache-2.0
#include "process/spawn.hpp"
#include "support/children.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::process;
using namespace elastrun::test;

namespace {

struct Said {
  ExitStatus status;
  std::string text;
};

Said run(std::vector<std::string> argv) {
  Nursery nursery;
  Ear ear;
  LaunchRequest request;
  request.argv = std::move(argv);
  request.environment = {"PATH=/usr/bin:/bin"};
  request.stdout_fd = request.stderr_fd = ear.mouth();
  const auto child = nursery.start(request);
  REQUIRE(child);
  const auto status = nursery.wait(**child).status;
  return {status, ear.rest()};
}

}  // namespace

TEST_CASE("shell: a program gets its words as they are, looked up in PATH") {
  const auto said = run(shell_exec({"printf", "%s|", "a b", "$0", "*", "", "'", "\\n;"}));
  CHECK(said.status.success());
  CHECK(said.text == "a b|$0|*||'|\\n;|");
}

TEST_CASE("shell: a line is the shell's own") {
  CHECK(run(shell_line("echo a   b; exit 3")).text == "a b\n");
  CHECK(run(shell_line("echo a   b; exit 3")).status == ExitStatus::exited(3));
}

TEST_CASE("shell: a program that cannot be started is its end, with its name on stderr") {
  const auto missing = run(shell_exec({"/no/such/program", "x"}));
  CHECK(missing.status == ExitStatus::exited(127));
  CHECK(missing.text.find("/no/such/program") != std::string::npos);
  CHECK(run(shell_exec({"/"})).status == ExitStatus::exited(126));
}
