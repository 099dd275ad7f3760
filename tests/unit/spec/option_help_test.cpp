// SPDX-License-Identifier: Apache-2.0
#include "spec/option_help.hpp"

#include "core/text.hpp"
#include "spec/option_table.hpp"
#include "unit/spec/fakes.hpp"

#include <algorithm>
#include <doctest/doctest.h>

namespace elastrun::spec {
TEST_CASE("help: every option, its letter and its default are shown") {
  const std::string help = help_text("elastrun", 100);
  CHECK(help.contains("\nExamples:\n  elastrun --nproc-per-node gpu "));
  for (const auto& option : options()) {
    CAPTURE(option.name);
    CHECK(contains(help, spelling(option)));
    if (!option.fallback.empty()) CHECK(contains(help, option.fallback));
  }
  CHECK(contains(help, "-r, --redirects"));
  CHECK(contains(help, "training_script"));
  CHECK(help.ends_with(".\n"));
}

TEST_CASE("help: lines fit the terminal, from 60 to 100 columns") {
  const auto longest = [](int columns) {
    std::size_t most = 0;
    for (const auto& line : split(help_text("elastrun", columns), '\n')) {
      most = std::max(most, line.size());
    }
    return most;
  };
  CHECK(longest(100) <= 100);
  CHECK(longest(300) <= 100);
  CHECK(longest(0) <= 80);
  CHECK(longest(80) <= 80);
  // One default has no blank to break at; everything else fits.
  CHECK(longest(70) <= 70);
  CHECK(longest(20) == longest(60));
}

TEST_CASE("help: -h is one screen") {
  const auto lines = split(brief_help("elastrun"), '\n');
  CHECK(lines.size() <= 16);  // the last one is empty
  for (const auto& line : lines) CHECK(line.size() <= 80);
  CHECK(std::ranges::count_if(lines, [](const auto& line) { return line.starts_with("  --"); }) ==
        8);
  CHECK(contains(brief_help("elastrun"), "`elastrun --help`"));
}

TEST_CASE("help: text is broken between words only") {
  CHECK(wrapped("one two three", 7, "  ") == "one two\n  three");
  CHECK(wrapped("one", 1, "") == "one");
  CHECK(wrapped("", 10, "") == "");
}

TEST_CASE("completion: each shell learns every option and every choice") {
  for (const char* shell : {"bash", "zsh", "fish", "tcsh"}) {
    CAPTURE(shell);
    const std::string script = completion_script(shell, elastrun_commands());
    for (const auto& option : options()) {
      const std::string_view kind(shell);
      const auto name = kind == "fish"   ? "-l " + std::string(option.name)
                        : kind == "tcsh" ? std::string(option.name) + ' '
                                         : spelling(option);
      CAPTURE(name);
      CHECK(contains(script, name));
      if (option.kind == Kind::Choice) CHECK(contains(script, join(choices(option), " ")));
    }
    CHECK(script.ends_with('\n'));
  }
  CHECK(completion_script("csh", elastrun_commands()).empty());
}

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
    if (option.id() == "config"_opt || option.kind == Kind::Flag) continue;
    CHECK(job.values[option.id()].text == plain.values[option.id()].text);
  }
  CHECK(job.spec.standalone);
  CHECK(job.spec.stdout_filters == plain.spec.stdout_filters);
  CHECK(job.spec.signals_to_handle == plain.spec.signals_to_handle);
}

}  // namespace elastrun::spec
