// SPDX-License-Identifier: Apache-2.0
#include "spec/journal_size.hpp"

#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {

TEST_CASE("journal size: bytes, or units of 1024; none unless it is given") {
  FakeMachine machine;
  CHECK(machine.job({"train.py"}).spec.journal_size == 0);
  CHECK(machine.job({"--journal-size", "65536", "train.py"}).spec.journal_size == 65536);
  machine.files["job.toml"] = "[logs]\njournal_size = \"64M\"\n";
  CHECK(machine.job({"--config=job.toml", "train.py"}).spec.journal_size == 64 << 20);
  CHECK(machine.job({"--config=job.toml", "--journal-size=2G", "train.py"}).spec.journal_size ==
        2u << 30);
  CHECK(machine.job({"--journal-size=0", "train.py"}).spec.journal_size == 0);
}

TEST_CASE("journal size: what is none is refused, with who said it") {
  FakeMachine machine;
  for (const char* bad : {"1M5", "x", "64m", "-1", "K", "65535", "1.5G", "9999999999999G"}) {
    CAPTURE(bad);
    const auto refusal = machine.refusal({std::string("--journal-size=") + bad, "train.py"});
    CHECK(refusal.starts_with("2: --journal-size on the command line: "));
    CHECK(contains(refusal, bad));
  }
}

}  // namespace elastrun::spec
