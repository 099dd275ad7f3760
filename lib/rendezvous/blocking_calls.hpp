// SPDX-License-Identifier: Apache-2.0
#pragma once

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

  /// `then` gets what `call` has returned, on the loop, never inside this function.
  template <class Call, class Then>
  void make(Call call, Then then) {
    enqueue([call = std::move(call), then = std::move(then)]() mutable -> std::function<void()> {
      auto answer = std::make_shared<decltype(call())>(call());
      return [then = std::move(then), answer]() mutable { then(std::move(*answer)); };
    });
  }

 private:
  /// Runs on the thread; what it returns, on the loop.
  using Job = std::function<std::function<void()>()>;
  struct Shared;
  void enqueue(Job job);
  static void work(const std::shared_ptr<Shared>& shared);

  boost::asio::io_context& loop_;
  std::shared_ptr<Shared> shared_;  // with the thread, which may outlive us and the loop
};

}  // namespace elastrun::rendezvous
