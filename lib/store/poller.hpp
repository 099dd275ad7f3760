// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <sys/epoll.h>

namespace elastrun::store {

/// Many descriptors behind one that Asio waits for: an epoll(7) set inside Asio's own. A thousand
/// ready connections cost one turn of the loop and not a thousand queued operations, and an idle
/// one costs the kernel's memory alone.
///
/// `events` are those of epoll_ctl(2), EPOLLET among them. Descriptors must be removed before
/// they are closed, since a child between vfork and exec may still hold a copy.
class Poller {
 public:
  using OnReady = std::function<void(std::span<const epoll_event>)>;

  /// `on_ready` runs on the loop with the events of one turn. It may add and remove; events of a
  /// descriptor removed in the same turn may still be in the span, so `tag` should tell.
  static Result<std::unique_ptr<Poller>> make(boost::asio::io_context& loop, OnReady on_ready);
  ~Poller();

  Status add(int fd, std::uint32_t events, std::uint64_t tag);
  /// Also asks once more: what is ready now is reported, although it was before.
  void modify(int fd, std::uint32_t events, std::uint64_t tag);
  void remove(int fd);

 private:
  struct State;
  explicit Poller(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace elastrun::store
