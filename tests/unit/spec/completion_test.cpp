// SPDX-License-Identifier: Apache-2.0
#include "spec/completion.hpp"

#include "core/text.hpp"
#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {

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

}  // namespace elastrun::spec
