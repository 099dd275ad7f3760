// SPDX-License-Identifier: Apache-2.0
#include "spec/default_config.hpp"

#include "core/text.hpp"
#include "spec/toml.hpp"
#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {
namespace {

// The file with every `# key = value` made real.
std::string uncommented() {
  std::string text;
  for (auto line : split(default_config(), '\n')) {
    const auto equals = line.find(" = ");
    const bool is_key = line.starts_with("# ") && equals != std::string::npos &&
                        line.substr(2, equals - 2).find(' ') == std::string::npos;
    text += (is_key ? line.substr(2) : line) + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("default file: config/elastrun.toml is what --print-config prints") {
  // If this fails: elastrun --print-config > config/elastrun.toml
  CHECK(read_source("config/elastrun.toml") == default_config());
}

TEST_CASE("default file: it has every key, and says nothing as it stands") {
  const auto empty = parse_toml(default_config(), "f");
  REQUIRE(empty.has_value());
  CHECK(empty->given.empty());
  for (const auto& option : options()) {
    const auto key = option.toml.substr(option.toml.find('.') + 1);
    if (!option.toml.empty()) CHECK(contains(default_config(), "\n# " + std::string(key) + " = "));
  }
}

TEST_CASE("default file: with every key made real it is the job of the defaults") {
  FakeMachine machine;
  machine.files["job.toml"] = uncommented();
  const auto parsed = parse_toml(uncommented(), "f");
  if (!parsed) FAIL(parsed.error().text);
  CHECK(parsed->given.size() > 25);
  const auto job = machine.job({"--config", "job.toml"});
  const auto plain = machine.job({"train.py"});
  CHECK(job.spec.script == "train.py");
  CHECK(job.spec.worker_env == std::map<std::string, std::string>{{"OMP_NUM_THREADS", "4"}});
  CHECK(job.warnings.empty());
  for (const auto& option : options()) {
    CAPTURE(option.name);
    if (option.id == Opt::Config || option.kind == Kind::Flag) continue;
    CHECK(job.values[option.id].text == plain.values[option.id].text);
  }
  CHECK(job.spec.standalone);
  CHECK(job.spec.stdout_filters == plain.spec.stdout_filters);
  CHECK(job.spec.signals_to_handle == plain.spec.signals_to_handle);
}

}  // namespace elastrun::spec
