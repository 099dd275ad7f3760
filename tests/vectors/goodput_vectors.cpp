// SPDX-License-Identifier: Apache-2.0
// Replays the scenarios of a file of goodput vectors against our calculator:
//
//   goodput_vectors FILE
//
// Prints each answer that differs, then "N passed, N failed"; exit status 1 if one failed. A file
// that cannot be read or understood is an error, exit status 2.
#include "goodput_replay.hpp"

#include <cstdio>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <string>

int main(int argc, char** argv) {
  using namespace elastrun;
  if (argc != 2) {
    fmt::print(stderr, "usage: goodput_vectors FILE\n");
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  if (!file) {
    fmt::print(stderr, "goodput_vectors: cannot read {}\n", argv[1]);
    return 2;
  }
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto vectors = parse_json(text);
  if (!vectors) {
    fmt::print(stderr, "goodput_vectors: {}: {}\n", argv[1], vectors.error().text);
    return 2;
  }
  const auto tally = vectors::replay_goodput(*vectors);
  if (!tally) {
    fmt::print(stderr, "goodput_vectors: {}: {}\n", argv[1], tally.error().text);
    return 2;
  }
  fmt::print("{} passed, {} failed\n", tally->passed, tally->failed);
  return tally->failed == 0 && tally->passed > 0 ? 0 : 1;
}
