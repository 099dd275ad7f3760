// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <doctest/doctest.h>
#include <initializer_list>
#include <random>
#include <string>

/// What the property tests of random schedules share. ELASTRUN_TEST_SEEDS says how many are tried;
/// ELASTRUN_TEST_SEED tries a single one, the one that a failure has named.
namespace elastrun::rendezvous::test {

/// Random numbers of one seed.
class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  /// From 0 to below - 1.
  int operator()(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

 private:
  std::mt19937 random_;
};

/// As REQUIRE, but it costs nothing while it holds: it is asked millions of times.
inline void must(bool holds, const char* text) {
  if (!holds) FAIL(std::string(text));
}

// A seed costs thirty times as much in the build with sanitisers; the optimised one runs them all.
#ifdef __SANITIZE_ADDRESS__
constexpr unsigned kSeeds = 1'500;
#else
constexpr unsigned kSeeds = 10'000;
#endif

inline unsigned seed_setting(const char* name, unsigned otherwise) {
  const char* given = std::getenv(name);
  return given == nullptr ? otherwise : static_cast<unsigned>(std::atoi(given));
}

/// `regressions`: seeds beyond those, on which something has once gone wrong.
template <class Run>
void for_each_seed(Run run, std::initializer_list<unsigned> regressions = {}) {
  const auto play = [&run](unsigned seed) {
    CAPTURE(seed);
    run(seed);
  };
  if (const unsigned only = seed_setting("ELASTRUN_TEST_SEED", 0); only != 0) return play(only);
  const unsigned last = seed_setting("ELASTRUN_TEST_SEEDS", kSeeds);
  for (unsigned seed = 1; seed <= last; ++seed) play(seed);
  for (const unsigned seed : regressions) play(seed);
}

}  // namespace elastrun::rendezvous::test
