// SPDX-License-Identifier: Apache-2.0
#include "store/poller.hpp"

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <unistd.h>
#include <utility>

namespace elastrun::store {

struct Poller::State : std::enable_shared_from_this<State> {
  State(boost::asio::io_context& loop, int fd, OnReady ready)
      : set(loop, fd), on_ready(std::move(ready)) {}

  void wait();
  void turn();

  boost::asio::posix::stream_descriptor set;
  OnReady on_ready;
  bool closed = false;
};

void Poller::State::wait() {
  // A completion may already be queued when the poller goes, so it holds the state weakly.
  set.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                 [weak = weak_from_this()](const boost::system::error_code& error) {
                   const auto self = weak.lock();
                   if (error || !self || self->closed) return;
                   self->turn();
                   if (!self->closed) self->wait();
                 });
}

void Poller::State::turn() {
  // Enough to serve a crowd in one turn, few enough to let the agent's other work in between.
  constexpr int kRounds = 4;
  std::array<epoll_event, 256> events;
  for (int round = 0; round < kRounds && !closed; ++round) {
    const int count =
        ::epoll_wait(set.native_handle(), events.data(), static_cast<int>(events.size()), 0);
    if (count <= 0) return;
    on_ready({events.data(), static_cast<std::size_t>(count)});
    // Fewer than asked for: these were all.
    if (static_cast<std::size_t>(count) < events.size()) return;
  }
}

Poller::Poller(std::shared_ptr<State> state) : state_(std::move(state)) {}

Poller::~Poller() {
  state_->closed = true;
  boost::system::error_code ignored;
  state_->set.close(ignored);
}

Result<std::unique_ptr<Poller>> Poller::make(boost::asio::io_context& loop, OnReady on_ready) {
  // An epoll set is itself readable when one of its members is ready (epoll(7)): the loop watches
  // one descriptor, however many workers are connected.
  const int fd = ::epoll_create1(EPOLL_CLOEXEC);
  if (fd < 0) return std::unexpected(errno_error(Code::Store, "cannot make an epoll set", errno));
  auto state = std::make_shared<State>(loop, fd, std::move(on_ready));
  state->wait();
  return std::unique_ptr<Poller>(new Poller(std::move(state)));
}

Status Poller::add(int fd, std::uint32_t events, std::uint64_t tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(state_->set.native_handle(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return std::unexpected(errno_error(Code::Store, "cannot watch a descriptor", errno));
}

void Poller::modify(int fd, std::uint32_t events, std::uint64_t tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  ::epoll_ctl(state_->set.native_handle(), EPOLL_CTL_MOD, fd, &event);
}

void Poller::remove(int fd) {
  ::epoll_ctl(state_->set.native_handle(), EPOLL_CTL_DEL, fd, nullptr);
}

}  // namespace elastrun::store
