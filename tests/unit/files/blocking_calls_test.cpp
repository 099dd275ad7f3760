// SPDX-License-Identifier: Apache-2.0
#include "files/blocking_calls.hpp"

#include "support/loop.hpp"
#include "support/no_threads.hpp"

#include <doctest/doctest.h>
#include <optional>

using namespace elastrun;
using elastrun::files::BlockingCalls;

TEST_CASE("blocking calls: where no thread can be made the answer is an error, until one can") {
  boost::asio::io_context loop;
  BlockingCalls calls(loop.get_executor(), BlockingCalls::WithoutThread::Refuse);
  std::optional<Result<int>> answer;
  const auto ask = [&] {
    answer.reset();
    calls.make(
        "seven", []() -> Result<int> { return 7; },
        [&](Result<int> got) { answer = std::move(got); });
    CHECK(!answer);
    test::run_until(loop, [&] { return answer.has_value(); });
  };
  {
    const test::NoThreads none;
    ask();
    REQUIRE(!answer->has_value());
    CHECK(answer->error().code == Code::Io);
  }
  ask();
  CHECK(**answer == 7);
}

TEST_CASE("blocking calls: nobody hears of a thread that could not be made once they have gone") {
  boost::asio::io_context loop;
  bool told = false;
  {
    const test::NoThreads none;
    BlockingCalls calls(loop.get_executor(), BlockingCalls::WithoutThread::Refuse);
    calls.make(
        "seven", []() -> Result<int> { return 7; }, [&](const Result<int>&) { told = true; });
  }
  loop.run();
  CHECK(!told);
}
