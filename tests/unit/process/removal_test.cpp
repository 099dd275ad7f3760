// SPDX-License-Identifier: Apache-2.0
#include "process/guardian.hpp"
#include "support/children.hpp"
#include "support/scratch.hpp"

#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace elastrun;
using namespace elastrun::process;
using namespace elastrun::test;

namespace {

using Paths = std::vector<std::string>;

/// In a process of its own that has these signals blocked, as the guardian has; its output.
std::string apart(const std::function<Paths()>& removal) {
  Ear ear;
  const pid_t pid = ::fork();
  if (pid == 0) {
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
    std::string text;
    for (const auto& path : removal()) text += path + "\n";
    (void)!::write(ear.mouth(), text.data(), text.size());
    ::_exit(0);
  }
  const auto text = ear.rest();  // also the end of all that have the pipe
  ::waitpid(pid, nullptr, 0);
  return text;
}

void hang_at_stuck(const std::string& path) {
  while (path.ends_with("stuck")) ::pause();
}

}  // namespace

TEST_CASE("removal: what answers is removed with all below, and links are not followed") {
  const Scratch scratch;
  const std::filesystem::path root = scratch.path;
  for (const char* folder : {"gone", "gone/deep", "linked"}) {
    std::filesystem::create_directory(root / folder);
  }
  std::filesystem::create_directory_symlink(root / "linked", root / "gone" / "link");
  std::ofstream(root / "file") << "text";
  CHECK(apart([&] {
          return remove_within_bound({root / "gone", root / "none", root / "file"});
        }).empty());
  CHECK_FALSE(std::filesystem::exists(root / "gone"));
  CHECK_FALSE(std::filesystem::exists(root / "file"));
  CHECK(std::filesystem::exists(root / "linked"));
}

TEST_CASE("removal: one that hangs is waited for so long, and named with those behind it") {
  CHECK(apart([] {
          return remove_within_bound({"/none", "/stuck", "/behind"}, hang_at_stuck);
        }) == "/stuck\n/behind\n");
}

TEST_CASE(
    "removal: a signal shortens the wait for one that hangs, and costs nobody else anything") {
  CHECK(apart([] {
          ::kill(::getpid(), SIGTERM);
          return remove_within_bound({"/none", "/stuck"}, hang_at_stuck);
        }) == "/stuck\n");
}

TEST_CASE("removal: what a killed child has left, the next one removes") {
  const Scratch scratch;
  const std::filesystem::path root = scratch.path;
  std::ofstream(root / "file") << "text";
  const auto killed_at_the_first_file = [](const std::string& path) {
    const bool first = std::filesystem::exists(path);
    remove_path(path);
    if (first) ::raise(SIGKILL);
  };
  CHECK(apart([&] {
          return remove_within_bound({root / "file", root}, killed_at_the_first_file);
        }).empty());
  CHECK_FALSE(std::filesystem::exists(root));
}
