// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace elastrun {

/// A coroutine on the agent's one loop.
///
/// GCC 12 miscompiles some `co_await` expressions, hence four rules, checked by .ci/check:
///   1. `co_await` gets a statement of its own: `const auto r = co_await f(...);`, or the init part
///      of an `if`, or `co_return co_await f(...)`. Never inside a condition, `?:`, `&&`, braces
///      or another call.
///   2. No braces after `co_await`: name the aggregate or lambda, then move it.
///   3. No capturing lambda coroutines: a coroutine is a named function, what it needs comes in as
///      parameters: values, or references to things that outlive the loop.
///   4. Coroutines are thin: at most 25 lines, no decisions. Those live in pure classes.
template <class T>
using Task = boost::asio::awaitable<T>;

/// Awaits an Asio operation and gets its error code as a value:
/// `const auto [error, size] = co_await socket.async_read_some(buffer, use_result);`
constexpr auto use_result = boost::asio::as_tuple(boost::asio::use_awaitable);

}  // namespace elastrun
