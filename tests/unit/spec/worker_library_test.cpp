// SPDX-License-Identifier: Apache-2.0
#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {
namespace {

const std::string kInstalled = "/opt/elastrun/share/elastrun/python";

FakeMachine with_package(const std::string& folder = kInstalled) {
  FakeMachine machine;
  machine.existing.insert(folder + "/elastrun/channel.py");
  return machine;
}

std::string path_of(const FakeMachine& machine, const Words& words) {
  return machine.job(words).spec.worker_env.at("PYTHONPATH");
}

TEST_CASE("worker library: unasked, nothing of the environment changes") {
  const auto spec = with_package().job({"train.py"}).spec;
  CHECK(spec.worker_env.empty());
  CHECK_FALSE(spec.worker_lib);
}

TEST_CASE("worker library: it is found where it was installed with the program, or in the tree") {
  CHECK(path_of(with_package(), {"--worker-lib", "train.py"}) == kInstalled);
  CHECK(with_package().job({"--worker-lib", "train.py"}).spec.worker_lib);
  auto tree = with_package("/src/lib/python");
  tree.program = "/src/build/dev/apps/elastrun";
  CHECK(path_of(tree, {"--worker_lib", "train.py"}) == "/src/lib/python");
}

TEST_CASE("worker library: what is in PYTHONPATH comes first, that of [env] before our own") {
  auto machine = with_package();
  machine.variables["PYTHONPATH"] = "/a:/b";
  CHECK(path_of(machine, {"--worker-lib", "train.py"}) == "/a:/b:" + kInstalled);
  machine.files["job.toml"] =
      "[job]\nscript = \"train.py\"\nworker_lib = true\n[env]\nPYTHONPATH = \"/mine\"\n";
  CHECK(path_of(machine, {"--config", "job.toml"}) == "/mine:" + kInstalled);
  machine.variables["PYTHONPATH"] = "";
  machine.files.clear();
  CHECK(path_of(machine, {"--worker-lib", "train.py"}) == kInstalled);
}

TEST_CASE("worker library: --goodput auto brings it, and its start before all others") {
  auto machine = with_package();
  machine.variables["PYTHONPATH"] = "/a";
  const auto spec = machine.job({"--goodput=auto", "train.py"}).spec;
  CHECK(spec.goodput == Goodput::Auto);
  CHECK(spec.worker_lib);
  CHECK(spec.worker_env.at("PYTHONPATH") == kInstalled + "/elastrun/start:/a:" + kInstalled);
  for (const auto how : {"agent", "off"}) {
    const auto other = machine.job({"--goodput", how, "train.py"}).spec;
    CHECK(other.worker_env.empty());
    CHECK_FALSE(other.worker_lib);
  }
  const auto answer = FakeMachine().run({"--goodput=auto", "train.py"});
  REQUIRE_FALSE(answer);
  CHECK(answer.error().text ==
        "--goodput auto: the Python package elastrun is not beside this program");
}

TEST_CASE("worker library: a program alone says where it has looked") {
  const auto answer = FakeMachine().run({"--worker-lib", "train.py"});
  REQUIRE_FALSE(answer);
  CHECK(answer.error().exit_code == 2);
  CHECK(answer.error().text ==
        "--worker-lib: the Python package elastrun is not beside this program");
  CHECK(contains(answer.error().hint, "looked in /opt/elastrun/share/elastrun/python and "));
}

}  // namespace
}  // namespace elastrun::spec
