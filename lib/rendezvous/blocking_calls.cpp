// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/blocking_calls.hpp"

#include <boost/asio/post.hpp>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <signal.h>
#include <thread>

namespace elastrun::rendezvous {

struct BlockingCalls::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> jobs;
  boost::asio::io_context* loop = nullptr;  // null: nobody wants answers any more
};

BlockingCalls::~BlockingCalls() {
  if (!shared_) return;
  std::deque<Job> forgotten;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->loop = nullptr;
    forgotten.swap(shared_->jobs);
  }
  shared_->changed.notify_one();
}

void BlockingCalls::enqueue(Job job) {
  if (!shared_) {
    shared_ = std::make_shared<Shared>();
    shared_->loop = &loop_;
    // Signals are for the thread of the loop: it waits for them, or for the user's, who handles
    // them.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([shared = shared_] { work(shared); }).detach();
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->jobs.push_back(std::move(job));
  }
  shared_->changed.notify_one();
}

void BlockingCalls::work(const std::shared_ptr<Shared>& shared) {
  while (true) {
    Job job;
    {
      std::unique_lock lock(shared->mutex);
      shared->changed.wait(lock, [&] { return shared->loop == nullptr || !shared->jobs.empty(); });
      if (shared->loop == nullptr) return;
      job = std::move(shared->jobs.front());
      shared->jobs.pop_front();
    }
    auto answer = job();
    job = nullptr;
    const std::lock_guard lock(shared->mutex);
    if (shared->loop == nullptr) return;
    boost::asio::post(*shared->loop, [shared, answer = std::move(answer)] {
      {
        const std::lock_guard again(shared->mutex);
        if (shared->loop == nullptr) return;
      }
      answer();
    });
  }
}

}  // namespace elastrun::rendezvous
