// SPDX-License-Identifier: Apache-2.0
#include "spec/host_environment.hpp"

#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {

TEST_CASE("host environment: the real machine answers") {
  const SystemEnvironment around;
  CHECK(around.count_cpus() >= 1);
  CHECK(around.variable("PATH").has_value());
  CHECK(!around.variable("ELASTRUN_NO_SUCH_VARIABLE"));
  CHECK(around.is_executable("/bin/sh"));
  CHECK(!around.is_executable("/"));
  CHECK(around.exists("/"));
  CHECK(around.make_uuid() != around.make_uuid());
  CHECK(*around.read_file(std::string(ELASTRUN_SOURCE_DIR) + "/LICENSE") == read_source("LICENSE"));
  const auto missing = around.read_file("/no/such/file");
  REQUIRE(!missing.has_value());
  CHECK(missing.error().text == "/no/such/file: No such file or directory");
  CHECK(!around.read_file("/").has_value());
}

}  // namespace elastrun::spec
