// SPDX-License-Identifier: Apache-2.0
#include "files/blocking_calls.hpp"

#include "support/loop.hpp"
#include "support/no_threads.hpp"

#include <doctest/doctest.h>
#include <optional>
#include <semaphore>

using namespace elastrun;
using elastrun::files::BlockingCalls;
using namespace std::chrono_literals;

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
