// SPDX-License-Identifier: Apache-2.0
#include "spec/option_table.hpp"

#include "core/text.hpp"
#include "spec/argument_words.hpp"
#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {

TEST_CASE("options: all spellings follow from the name") {
  const auto& option = row(Opt::NprocPerNode);
  CHECK(spelling(option) == "--nproc-per-node");
  CHECK(underscore_spelling(option) == "--nproc_per_node");
  CHECK(error_name(option) == "--nproc-per-node/--nproc_per_node");
  CHECK(pet_name(option) == "PET_NPROC_PER_NODE");
  CHECK(error_name(row(Opt::Redirects)) == "-r/--redirects");
  CHECK(underscore_spelling(row(Opt::Role)).empty());
  CHECK(pet_name(row(Opt::NumaBinding)).empty());
  CHECK(find_option("nproc_per_node") == &option);
  CHECK(find_option("nproc_per-node") == nullptr);
  CHECK(find_option("nproc-per") == nullptr);
  CHECK(find_toml_key("job.nproc_per_node") == &option);
  CHECK(find_toml_key("") == nullptr);
}

TEST_CASE("options: names, letters, variables and keys are unique") {
  std::set<std::string> seen;
  for (const auto& option : options()) {
    CHECK(seen.insert(spelling(option)).second);
    if (option.letter != 0) CHECK(seen.insert(std::string(1, option.letter)).second);
    if (!option.toml.empty()) CHECK(seen.insert(std::string(option.toml)).second);
  }
}

TEST_CASE("options: every row is whole") {
  for (const auto& option : options()) {
    CAPTURE(option.name);
    CHECK(!option.help.empty());
    CHECK(!option.help.ends_with('.'));
    CHECK((option.details.empty() || option.details.ends_with('.')));
    CHECK((option.kind == Kind::Flag) == option.metavar.empty());
    CHECK((option.kind == Kind::Choice) == !option.choices.empty());
    CHECK((option.toml.empty() || option.toml.find('.') != std::string_view::npos));
    if (!option.fallback.empty()) CHECK(!check_text(option, option.fallback));
  }
}

TEST_CASE("options: torchrun's have its PET_ variables, except three") {
  std::vector<std::string> without;
  for (const auto& option : options()) {
    if (option.torchrun && !option.pet) without.emplace_back(option.name);
  }
  CHECK(without == Words{"numa-binding", "logs-specs", "help"});
}

}  // namespace elastrun::spec
