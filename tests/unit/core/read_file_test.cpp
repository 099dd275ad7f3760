// SPDX-License-Identifier: Apache-2.0
#include "core/file_io.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

using namespace elastrun;

TEST_CASE("read file: of one that has no size all is read, of one that is too long its beginning") {
  const auto whole = read_file("/proc/self/smaps");
  REQUIRE(whole);
  CHECK(whole->size() > 4096);
  CHECK(whole->ends_with('\n'));
  CHECK(read_file("/proc/self/smaps", 5000)->size() == 5000);
  CHECK(read_file("/proc/self/smaps", 0)->empty());
}

TEST_CASE("read file: why it cannot be read is told with its path") {
  const auto missing = read_file("/nowhere/at/all");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().text == "/nowhere/at/all: No such file or directory");
  CHECK(read_file("/proc").error().text == "/proc: Is a directory");
}

TEST_CASE("read file: of the kernel's files what can be read counts") {
  CHECK(read_kernel_file("/nowhere/at/all").empty());
  CHECK(read_kernel_file("/proc/self/stat").starts_with(std::to_string(::getpid()) + " ("));
}
