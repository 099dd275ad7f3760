// SPDX-License-Identifier: Apache-2.0
#include "core/system_clock.hpp"
#include "net/dialer.hpp"
#include "support/loop.hpp"
#include "support/no_threads.hpp"

#include <doctest/doctest.h>
#include <optional>

using namespace elastrun;
using namespace std::chrono_literals;

TEST_CASE("resolver: where no thread can be made a name is not known, and that is all") {
  boost::asio::io_context loop;
  const auto clock = make_system_clock(loop.get_executor());
  net::Resolver resolver(loop, *clock);
  std::optional<Result<net::Addresses>> answer;
  const test::NoThreads none;
  resolver.resolve("some.host.invalid", 10s, [&](auto found) { answer = std::move(found); });
  CHECK(!answer);
  test::run_until(loop, [&] { return answer.has_value(); });
  REQUIRE(!answer->has_value());
  CHECK(answer->error().code == Code::Io);
  CHECK(answer->error().text.find("cannot make a thread") != std::string::npos);
}
