// SPDX-License-Identifier: Apache-2.0
#include "spec/schedulers.hpp"
#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {

TEST_CASE("hostlist: short forms are written out") {
  CHECK(expand_hostlist("n1") == Words{"n1"});
  CHECK(expand_hostlist("n1,m2") == Words{"n1", "m2"});
  CHECK(expand_hostlist("n[01-03,7],m1") == Words{"n01", "n02", "n03", "n7", "m1"});
  CHECK(expand_hostlist("n[1-2]") == Words{"n1", "n2"});
  CHECK(expand_hostlist("n[098-101]") == Words{"n098", "n099", "n100", "n101"});
  CHECK(expand_hostlist("r[1-2]c[1-2].x") == Words{"r1c1.x", "r1c2.x", "r2c1.x", "r2c2.x"});
  CHECK(expand_hostlist("") == Words{});
}

TEST_CASE("hostlist: what is no list is refused, and none is too long") {
  for (const char* bad : {"n[1", "n1]", "n[[1]]", "n[a]", "n[1-]", "n[3-1]", "n[]", "n[1-9999999]",
                          "a[1-2000]b[1-2000]", "n[99999999999999999999]"}) {
    CAPTURE(bad);
    CHECK(!expand_hostlist(bad).has_value());
  }
}

TEST_CASE("hostlist: a list cut short anywhere is read or refused") {
  const std::string whole = "n[01-03,7],m1,r[1-2]c[1-2]";
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    const auto hosts = expand_hostlist(whole.substr(0, size));
    CHECK((hosts.has_value() || !hosts.error().text.empty()));
  }
}

}  // namespace elastrun::spec
