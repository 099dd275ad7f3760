// SPDX-License-Identifier: Apache-2.0
#include "files/blocking_calls.hpp"
#include "support/no_threads.hpp"

#include <doctest/doctest.h>
#include <semaphore>

using namespace elastrun;
using namespace std::chrono_literals;

TEST_CASE("bounded call: what is returned comes back, also where no thread can be made") {
  const auto seven = [] { return 7; };
  CHECK(files::result_within("a file", 60s, seven).value() == 7);
  const test::NoThreads none;
  CHECK(files::result_within("a file", 60s, seven).value() == 7);
}

TEST_CASE("bounded call: what does not answer in time is an error that names it") {
  const auto thawed = std::make_shared<std::binary_semaphore>(0);
  const auto stuck = [thawed] {
    thawed->acquire();
    return 7;
  };
  const auto answer = files::result_within("the directory /far/away", 1ms, stuck);
  REQUIRE_FALSE(answer);
  CHECK(answer.error().code == Code::Io);
  CHECK(answer.error().text.contains("the directory /far/away: "));
  thawed->release();
}
