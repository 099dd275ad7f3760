// SPDX-License-Identifier: Apache-2.0
#include "files/parts.hpp"

#include "support/logged_place.hpp"

#include <doctest/doctest.h>
#include <fstream>
#include <string>
#include <vector>

using namespace elastrun;

TEST_CASE("parts: numbers between name and ending, but not dates, nor what others have put there") {
  const test::LoggedPlace folder;
  const auto path = [&](const std::string& name) { return folder.path + "/" + name; };
  for (const auto* name : {"metrics.jsonl", "metrics.1.jsonl", "metrics.12.jsonl",
                           "metrics.241122.jsonl", "metrics.01.jsonl", "metrics.x.jsonl",
                           "metrics.2.jsonl.gz", "metrics.-1.jsonl", "metrics..jsonl"}) {
    std::ofstream(path(name)) << "{}\n";
  }
  std::vector<std::string> found;
  for (const auto& part : files::parts_of(path("metrics.jsonl"))) found.push_back(part.path);
  CHECK(found ==
        std::vector{path("metrics.jsonl"), path("metrics.1.jsonl"), path("metrics.12.jsonl")});
}
