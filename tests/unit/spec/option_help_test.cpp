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

}  // namespace elastrun::spec
