// SPDX-License-Identifier: Apache-2.0
#include "spec/resolve.hpp"
#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {

TEST_CASE("job name: by --name, PET_NAME or the job file, else by --rdzv-id, else by the script") {
  FakeMachine machine;
  const auto name = [&](Words words) { return machine.job(std::move(words)).spec.name; };
  CHECK(name({"--name=night", "--rdzv-id=x", "dir/train.py"}) == "night");
  CHECK(name({"--rdzv-id=x", "dir/train.py"}) == "x");
  CHECK(name({"dir/train.py"}) == "train");
  CHECK(name({"-m", "lab.train"}) == "lab.train");
  CHECK(name({"--no-python", "/usr/bin/python3", "x.py"}) == "python3");
  CHECK(name({"--name=", "train.py"}) == "train");
  CHECK(name({"lab/"}) == "lab");
  CHECK(name({"--rdzv-id=", "/"}) == "job");
  machine.variables["PET_NAME"] = "day";
  CHECK(name({"train.py"}) == "day");
}

TEST_CASE("job name: log directories have the one that is given, else the run id") {
  FakeMachine machine;
  CHECK(machine.job({"--name=night", "train.py"}).spec.directory_name() == "night");
  const auto job = machine.job({"train.py"}).spec;
  CHECK(job.directory_name() == job.run_id);
}

TEST_CASE("job name: it fits a line and a file name") {
  FakeMachine machine;
  for (const std::string& name : {std::string("a/b"), std::string("a\nb"), std::string("\xff"),
                                  std::string("\xc2\x9b"), std::string(101, 'x')}) {
    CHECK(machine.refusal({"--name=" + name, "train.py"}).starts_with("2: --name on the command"));
  }
  CHECK(machine.job({"--name=" + std::string(100, 'x'), "train.py"}).spec.name.size() == 100);
  CHECK(machine.job({"--name=Nächte 3", "train.py"}).spec.name == "Nächte 3");
}

}  // namespace elastrun::spec
