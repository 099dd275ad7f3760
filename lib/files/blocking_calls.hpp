// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/lifetime.hpp"

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace elastrun::files {

/// Makes calls that may wait for a disk, a network file system or foreign code, one after the other
/// in order, on a separate thread, and brings what they return back to the loop. The first call
/// starts the thread; no signal is delivered to it. Where the system refuses a thread
/// (pids.max, RLIMIT_NPROC) the calls are made on the loop, after one warning; or, for calls into
/// code that may wait for ever, they are answered with the error.
///
/// Destroying this waits for nothing: a call in progress is left to itself and its answer dropped,
/// calls not begun are forgotten. So a call must own all that it uses.
class BlockingCalls {
 public:
  using Answer = std::function<void()>;  // for the loop; may be empty
  struct Outcome {
    Answer answer{};
    bool again = false;  // there is more to do: call again, after those that wait
  };
  using Call = std::function<Outcome()>;
  using What = std::shared_ptr<const std::string>;  // "/path/of/a/file", for people

  enum class WithoutThread { CallHere, Refuse };

  explicit BlockingCalls(boost::asio::any_io_executor loop,
                         WithoutThread otherwise = WithoutThread::CallHere)
      : loop_(std::move(loop)), otherwise_(otherwise) {}
  ~BlockingCalls();
  BlockingCalls(const BlockingCalls&) = delete;
  BlockingCalls& operator=(const BlockingCalls&) = delete;

  /// `then` gets what `work` has returned, on the loop, never inside this function. With Refuse, a
  /// Result, or the error Io if no thread can be made.
  template <class Work, class Then>
  void make(std::string what, Work work, Then then) {
    using Returned = decltype(work());
    expect_answer();
    if constexpr (std::is_constructible_v<Returned, std::unexpected<Error>>) {
      if (const auto begun = begin(); !begun && otherwise_ == WithoutThread::Refuse) {
        return answer_later([this, then = std::move(then), error = begun.error()]() mutable {
          answered();
          then(Returned(std::unexpected(error)));
        });
      }
    }
    enqueue(std::make_shared<const std::string>(std::move(what)),
            [this, work = std::move(work), then = std::move(then)]() mutable -> Outcome {
              auto answer = std::make_shared<Returned>(work());
              return {[this, then = std::move(then), answer]() mutable {
                        answered();
                        then(std::move(*answer));
                      },
                      false};
            });
  }
  /// See make(), but the loop may run dry meanwhile.
  void enqueue(What what, Call call);

  /// The present work, or the next; empty: none.
  std::string busy_with() const;
  /// Nothing is left to do, and every answer has been given.
  bool idle() const;
  /// How many calls have returned: it moves as long as anything does.
  std::uint64_t returned() const;
  /// Waits outside the loop until nothing is left to do, or no call has returned for `time_limit`.
  /// False: something is left.
  bool finish(Duration time_limit);
  const boost::asio::any_io_executor& loop() const { return loop_; }
  /// Expires with this object, for those whose end may come after its own.
  Lifetime::Token token() const { return lifetime_.token(); }

 private:
  struct Shared;
  Status begin();
  void answer_later(Answer answer);
  void expect_answer();
  void answered();
  static void work(const std::shared_ptr<Shared>& shared);

  boost::asio::any_io_executor loop_;
  WithoutThread otherwise_;
  boost::asio::any_io_executor busy_loop_;  // keeps the loop running while answers are awaited
  int awaited_ = 0;
  bool has_thread_ = false, warned_ = false;
  Lifetime lifetime_;
  std::shared_ptr<Shared> shared_;  // with the thread, which may outlive us and the loop
};

/// Before there is a loop: makes a call that may wait for a file system on a thread, and waits for
/// it at most `limit`; after two seconds people are told so. Fails with Io after that; the thread
/// is left to itself then, so `call` must own all that it uses. `what` for people: "the log
/// directory /path". Where the system refuses a thread, the call is made here.
Status wait_for(const std::string& what, Duration limit, std::function<void()> call);

/// wait_for() for a call that returns something: that as a Result, which it may be itself.
template <class Work>
auto result_within(const std::string& what, Duration limit, Work work) {
  using Returned = decltype(work());
  constexpr bool kMayFail = requires(Returned one) {
    one.error();
  };
  using Answer = typename std::conditional_t<kMayFail, std::type_identity<Returned>,
                                             std::type_identity<Result<Returned>>>::type;
  auto returned = std::make_shared<std::unique_ptr<Returned>>();
  const auto call = [returned, work = std::make_shared<Work>(std::move(work))] {
    *returned = std::make_unique<Returned>((*work)());
  };
  if (auto waited = wait_for(what, limit, call); !waited)
    return Answer(std::unexpected(waited.error()));
  return Answer(std::move(**returned));
}

/// The agent's work on threads, by what must not wait for what.
enum class Lane {
  Logs,         // logs of workers and agent, the journal, report.json in the log directory
  Syncs,        // fsync of the journal: may take seconds where writes go on
  Folders,      // the directories of a round, the channel's socket: a restart waits for them
  Reports,      // --report, wherever the logs are
  Errors,       // the error file that is handed on: a program that started us waits for it
  Diagnostics,  // error files of failed workers: the verdict waits for them
};
constexpr std::size_t kLanes = static_cast<std::size_t>(Lane::Diagnostics) + 1;

/// One service for calls that may wait: a queue and, from its first call on, a thread for each
/// lane. A file system that does not answer holds up its own lane only. elastrun-design(7) says how
/// many threads that makes.
class Lanes {
 public:
  explicit Lanes(const boost::asio::any_io_executor& loop)
      : all_{BlockingCalls(loop), BlockingCalls(loop), BlockingCalls(loop),
             BlockingCalls(loop), BlockingCalls(loop), BlockingCalls(loop)} {
    static_assert(kLanes == 6, "one for each");
  }
  BlockingCalls& operator[](Lane lane) { return all_[static_cast<std::size_t>(lane)]; }

 private:
  std::array<BlockingCalls, kLanes> all_;
};

}  // namespace elastrun::files
