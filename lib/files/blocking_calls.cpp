// SPDX-License-Identifier: Apache-2.0

#include "files/blocking_calls.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "core/thread.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <condition_variable>
#include <deque>
#include <fmt/format.h>
#include <future>
#include <mutex>
#include <utility>

namespace elastrun::files {
namespace {

constexpr Duration kUnsaid = std::chrono::seconds(2);  // a wait that needs no words

}  // namespace

Status wait_for(const std::string& what, Duration limit, std::function<void()> call) {
  // Held by the thread as well: after the limit we return, and it may come back later.
  const auto returned = std::make_shared<std::promise<void>>();
  const auto made = detach_thread([returned, call] {
    call();
    returned->set_value();
  });
  if (!made) {
    call();
    return {};
  }
  const auto end = returned->get_future();
  const auto ends_within = [&end](Duration time) {
    return end.wait_for(time) == std::future_status::ready;
  };
  const auto unsaid = std::min(kUnsaid, limit);
  if (ends_within(unsaid)) return {};
  if (limit > unsaid) {
    log::warning("files", "waiting for {}: its file system does not answer; up to {}", what,
                 format_duration(limit));
    if (ends_within(limit - unsaid)) return {};
  }
  return fail(Code::Io,
              fmt::format("{}: its file system has not answered within {}; choose another place",
                          what, format_duration(limit)));
}

struct BlockingCalls::Shared {
  struct Job {
    What what;
    Call call;
  };
  std::mutex mutex;
  std::condition_variable changed, returned_one;
  std::deque<Job> jobs;
  What now;  // null: the thread waits
  std::uint64_t returned = 0;
  std::size_t answers = 0;            // that have not been given
  bool wanted = true;                 // false: drop answers, the loop may be gone
  boost::asio::any_io_executor loop;  // used under the mutex, and only while wanted

  /// Under the mutex. What comes too late is dropped.
  static void give(const std::shared_ptr<Shared>& shared, Answer answer) {
    ++shared->answers;
    boost::asio::post(shared->loop, [shared, answer = std::move(answer)] {
      {
        const std::lock_guard again(shared->mutex);
        --shared->answers;
        if (!shared->wanted) return;
      }
      answer();
    });
  }
};

BlockingCalls::~BlockingCalls() {
  if (!shared_) return;
  // Emptied behind the lock: a call owns what it uses, and the end of that may be anything, also
  // another call here.
  std::deque<Shared::Job> forgotten;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->wanted = false;
    // Under the mutex, which give() holds while it posts: after this the thread never touches the
    // loop, which may go now.
    shared_->loop = {};
    forgotten.swap(shared_->jobs);
  }
  shared_->changed.notify_one();
}

Status BlockingCalls::begin() {
  if (has_thread_) return {};
  if (!shared_) {
    shared_ = std::make_shared<Shared>();
    shared_->loop = loop_;
  }
  // Detached and never joined: a thread in a system call of a file system that does not answer
  // (state D, proc_pid_stat(5)) cannot be ended, and who joins it waits as long.
  auto made = detach_thread([shared = shared_] { work(shared); });
  has_thread_ = made.has_value();
  return made;
}

void BlockingCalls::answer_later(Answer answer) {
  const std::lock_guard lock(shared_->mutex);
  if (answer) Shared::give(shared_, std::move(answer));
}

void BlockingCalls::enqueue(What what, Call call) {
  if (const auto begun = begin(); !begun) {
    if (!std::exchange(warned_, true)) {
      log::warning("files",
                   "{}: files are written between other work, and a file system that does not "
                   "answer holds everything up",
                   begun.error().text);
    }
    for (bool again = true; again;) {
      auto outcome = call();
      again = outcome.again;
      answer_later(std::move(outcome.answer));
    }
    return;
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->jobs.push_back({std::move(what), std::move(call)});
  }
  shared_->changed.notify_one();
}

void BlockingCalls::work(const std::shared_ptr<Shared>& shared) {
  while (true) {
    Shared::Job job;
    {
      std::unique_lock lock(shared->mutex);
      shared->now = nullptr;
      shared->changed.wait(lock, [&] { return !shared->wanted || !shared->jobs.empty(); });
      if (!shared->wanted) return;
      job = std::move(shared->jobs.front());
      shared->jobs.pop_front();
      shared->now = job.what;
    }
    auto outcome = job.call();
    // Before the mutex is taken, for the same reason as in the destructor: its captures end here.
    if (!outcome.again) job.call = nullptr;
    const std::lock_guard lock(shared->mutex);
    if (!shared->wanted) return;
    shared->returned += 1;
    // Behind those that wait, so that one file with much to write does not keep all others out.
    if (outcome.again) shared->jobs.push_back(std::move(job));
    // Before returned_one is told: finish() takes `now` for a call that has not returned.
    if (shared->jobs.empty()) shared->now = nullptr;
    if (outcome.answer) Shared::give(shared, std::move(outcome.answer));
    shared->returned_one.notify_one();
  }
}

std::string BlockingCalls::busy_with() const {
  if (!shared_) return {};
  const std::lock_guard lock(shared_->mutex);
  if (shared_->now) return *shared_->now;
  return shared_->jobs.empty() ? std::string() : *shared_->jobs.front().what;
}

bool BlockingCalls::idle() const {
  if (!shared_) return true;
  const std::lock_guard lock(shared_->mutex);
  return !shared_->now && shared_->jobs.empty() && shared_->answers == 0;
}

std::uint64_t BlockingCalls::returned() const {
  if (!shared_) return 0;
  const std::lock_guard lock(shared_->mutex);
  return shared_->returned;
}

bool BlockingCalls::finish(Duration time_limit) {
  if (!shared_) return true;
  std::unique_lock lock(shared_->mutex);
  const auto idle = [this] { return !shared_->now && shared_->jobs.empty(); };
  // The limit is for one call and not for all of them: a slow disk that moves is waited for, one
  // that stands still is not.
  while (!idle()) {
    const auto before = shared_->returned;
    const bool moved = shared_->returned_one.wait_for(
        lock, time_limit, [&] { return idle() || shared_->returned != before; });
    if (!moved) return false;
  }
  return true;
}

void BlockingCalls::expect_answer() {
  // The thread's answer comes from outside of the loop, which would return from run() if it had
  // nothing else to do.
  if (awaited_++ == 0) {
    busy_loop_ = boost::asio::prefer(loop_, boost::asio::execution::outstanding_work.tracked);
  }
}

void BlockingCalls::answered() {
  if (--awaited_ == 0) busy_loop_ = {};
}

}  // namespace elastrun::files
