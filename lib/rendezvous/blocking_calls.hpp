// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <utility>

namespace elastrun::rendezvous {

/// Makes calls that may wait, one after the other, on a thread of its own, and brings what they
/// return back to the loop. The thread is there from the first call on; no signal is delivered to
/// it.
///
/// Destroying this waits for nothing: a call in progress is left to itself and its answer dropped,
/// calls not begun are forgotten. So a call must own all that it uses.
class BlockingCalls {
 public:
  explicit BlockingCalls(boost::asio::io_context& loop) : loop_(loop) {}
  ~BlockingCalls();
  BlockingCalls(const BlockingCalls&) = delete;
  BlockingCalls& operator=(const BlockingCalls&) = delete;

  /// `then` gets what `call` has returned, a Result, on the loop, never inside this function; or
  /// the error Io, if no thread can be made (pids.max).
  template <class Call, class Then>
  void make(Call call, Then then) {
    using Returned = decltype(call());
    auto told = std::make_shared<Then>(std::move(then));
    enqueue(
        [call = std::move(call), told]() mutable -> std::function<void()> {
          auto answer = std::make_shared<Returned>(call());
          return [told, answer]() mutable { (*told)(std::move(*answer)); };
        },
        [told](const Error& error) { (*told)(Returned(std::unexpected(error))); });
  }

 private:
  /// Runs on the thread; what it returns, on the loop.
  using Job = std::function<std::function<void()>()>;
  struct Shared;
  void enqueue(Job job, std::function<void(const Error&)> refuse);
  Status start();
  static void work(const std::shared_ptr<Shared>& shared);

  boost::asio::io_context& loop_;
  std::shared_ptr<Shared> shared_;  // with the thread, which may outlive us and the loop
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace elastrun::rendezvous
