// SPDX-License-Identifier: Apache-2.0
#include "spec/surroundings.hpp"

#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {

TEST_CASE("devices: CUDA_VISIBLE_DEVICES limits what is seen as the runtime reads it") {
  CHECK(count_visible_devices(8, std::nullopt) == 8);
  CHECK(count_visible_devices(8, "") == 0);
  CHECK(count_visible_devices(8, "0,3, 5 ") == 3);
  CHECK(count_visible_devices(8, "0,1,x,2") == 2);
  CHECK(count_visible_devices(8, "-1") == 0);
  CHECK(count_visible_devices(8, "1,-1,2") == 1);
  CHECK(count_visible_devices(2, "0,7") == 1);
  CHECK(count_visible_devices(8, "1,1") == 0);
  CHECK(count_visible_devices(8, "GPU-1a,GPU-2b") == 2);
  CHECK(count_visible_devices(0, "0,1") == 0);
}

TEST_CASE("surroundings: the real machine answers") {
  const auto around = system_surroundings();
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
