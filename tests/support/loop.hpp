// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/io_context.hpp>
#include <doctest/doctest.h>

namespace elastrun::test {

/// Runs the loop until something is true. There is no time limit: what never becomes true ends the
/// test by CTest's. A loop that runs dry before fails at once.
template <class Condition>
void run_until(boost::asio::io_context& loop, Condition condition) {
  loop.restart();
  while (!condition()) {
    const auto ran = loop.run_one();
    REQUIRE_MESSAGE(ran > 0, "the loop has nothing left to do");
  }
}

/// Runs what is ready, and waits for nothing.
inline void run_ready(boost::asio::io_context& loop) {
  loop.restart();
  loop.poll();
}

}  // namespace elastrun::test
