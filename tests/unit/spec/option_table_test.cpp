// SPDX-License-Identifier: Apache-2.0
#include "spec/option_table.hpp"

#include "core/text.hpp"
#include "spec/option_values.hpp"
#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>
#include <limits>
#include <type_traits>
#include <variant>

namespace elastrun::spec {

TEST_CASE("options: all spellings follow from the name") {
  const auto& option = row("nproc-per-node"_opt);
  CHECK(spelling(option) == "--nproc-per-node");
  CHECK(underscore_spelling(option) == "--nproc_per_node");
  CHECK(error_name(option) == "--nproc-per-node/--nproc_per_node");
  CHECK(pet_name(option) == "PET_NPROC_PER_NODE");
  CHECK(error_name(row("redirects"_opt)) == "-r/--redirects");
  CHECK(underscore_spelling(row("role"_opt)).empty());
  CHECK(pet_name(row("numa-binding"_opt)).empty());
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

TEST_CASE("options: a choice gives the enumerator of its name, and text what it says") {
  const auto job_with = [](Opt id, const std::string& text) {
    Values values;
    values.imply(id, text, "test");
    JobSpec job;
    CHECK_FALSE(fill_fields(job, values));
    return job;
  };
  CHECK(job_with("status"_opt, "auto").status == Switch::Auto);
  CHECK(job_with("status"_opt, "off").status == Switch::Off);
  CHECK(job_with("summary"_opt, "short").summary == Summary::Short);
  CHECK(job_with("goodput"_opt, "auto").goodput == Goodput::Auto);
  CHECK(job_with("goodput"_opt, "agent").goodput == Goodput::Agent);
  CHECK(job_with("on-hang"_opt, "fail").on_hang == OnHang::Fail);
  CHECK(job_with("numa-binding"_opt, "").numa == NumaBinding::None);
  CHECK(job_with("numa-binding"_opt, "node").numa == NumaBinding::Node);
  CHECK(job_with("numa-binding"_opt, "core-complex").numa == NumaBinding::CoreComplex);
  CHECK(job_with("exit-code"_opt, "worker").exit_code_of_worker);
  CHECK_FALSE(job_with("log-format"_opt, "text").json_log);
  CHECK(job_with("role"_opt, "trainer").role == "trainer");
  CHECK(job_with("max-restarts"_opt, "99999999999").max_restarts ==
        std::numeric_limits<int>::max());
}

TEST_CASE("options: a default in the table is the default of the member") {
  JobSpec filled;
  CHECK_FALSE(fill_fields(filled, Values()));
  const JobSpec plain;
  for (const auto& option : options()) {
    CAPTURE(option.name);
    std::visit(
        [&](auto field) {
          if constexpr (!std::is_same_v<decltype(field), std::monostate>) {
            CHECK(filled.*field == plain.*field);
          }
        },
        option.field);
  }
}

}  // namespace elastrun::spec
