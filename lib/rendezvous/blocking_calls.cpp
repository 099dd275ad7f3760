// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/blocking_calls.hpp"

#include "core/thread.hpp"

#include <boost/asio/post.hpp>
#include <condition_variable>
#include <deque>
#include <mutex>

namespace elastrun::rendezvous {

struct BlockingCalls::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> jobs;
  boost::asio::io_context* loop = nullptr;  // null: nobody wants answers any more
};

BlockingCalls::~BlockingCalls() {
  *alive_ = false;
  if (!shared_) return;
  std::deque<Job> forgotten;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->loop = nullptr;
    forgotten.swap(shared_->jobs);
  }
  shared_->changed.notify_one();
}

Status BlockingCalls::start() {
  auto shared = std::make_shared<Shared>();
  shared->loop = &loop_;
  if (auto made = detach_thread([shared] { work(shared); }); !made) return made;
  shared_ = std::move(shared);
  return {};
}

void BlockingCalls::enqueue(Job job, std::function<void(const Error&)> refuse) {
  if (!shared_) {
    if (const auto started = start(); !started) {
      return boost::asio::post(
          loop_, [alive = alive_, refuse = std::move(refuse), error = started.error()] {
            if (*alive) refuse(error);
          });
    }
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
