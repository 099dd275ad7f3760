// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/awake_clock.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "net/dialer.hpp"
#include "rendezvous/discovery/locator.hpp"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <random>
#include <string>

namespace elastrun::rendezvous {

/// How long to wait before the next attempt to connect, and when to stop trying. Pure but
/// for its seed. The waits grow from 10 ms to half a second and are drawn at random within a factor
/// of two, so that thousands of agents that lost one coordinator do not come back in step.
class Backoff {
 public:
  explicit Backoff(std::uint32_t seed) : random_(seed) {}
  /// From now on, for so long.
  void begin(TimePoint now, Duration time) {
    since_ = now;
    time_ = time;
    wait_ = std::chrono::milliseconds(10);
  }
  /// For so long in all, if that is longer.
  void extend(Duration time) { time_ = std::max(time_, time); }
  bool over(TimePoint now) const { return now >= deadline(); }
  TimePoint deadline() const { return since_ + time_; }
  Duration time() const { return time_; }
  Duration next() {
    const auto drawn = std::uniform_real_distribution<double>(0.5, 1.0)(random_);
    const auto wait = std::chrono::duration_cast<Duration>(wait_ * drawn);
    wait_ = std::min<Duration>(wait_ * 3 / 2, std::chrono::milliseconds(500));
    return wait;
  }

 private:
  std::minstd_rand random_;
  TimePoint since_;
  Duration time_{};
  Duration wait_ = std::chrono::milliseconds(10);
};

/// How one agent finds its coordinator, and again when it has lost it: asks where that is, dials,
/// waits between attempts, and gives up in the end.
///
///   state          left by                                  for
///   idle           begin, begin_again                       locating
///   locating       the locator has a place                  dialling
///                  it has none; useless to retry            waiting; given up
///   dialling       connected; in vain                       connected; waiting, or given up
///   connected      taken_in                                 idle
///                  try_again, try_mute_again                waiting, or given up: time is up
///   waiting        the pause is over                        locating
///   any of them    interrupt, then locate                   locating
///                  stop                                     over
class CoordinatorSearch {
 public:
  struct Limits {
    std::string run_id;
    Duration join_timeout, progress_interval;
    Duration silence;  // after which a coordinator is lost, and also of one attempt to reach it
    /// Of one attempt to reach it, at most. At least so long one that was lost is waited for, if it
    /// takes connections but says nothing.
    Duration read_timeout;
  };
  struct Handlers {
    /// Before the locator is asked: what it has to know.
    std::function<void()> asking;
    std::function<void(boost::asio::ip::tcp::socket)> connected;
    /// The search has ended in vain; `requeue`: the scheduler should start the job again.
    std::function<void(const std::string& why, bool requeue)> given_up;
    /// Now and then, while it lasts.
    std::function<void()> still_searching;
  };

  CoordinatorSearch(boost::asio::io_context& loop, Clock& clock, Locator& locator, Limits limits);

  void begin(Handlers handlers);
  /// The coordinator was lost.
  void begin_again();
  void locate();
  /// The place found was the wrong one: retries later, until time is up.
  void try_again(const Error& error);
  /// The same; it takes the connection, but has not answered in `time_to_answer`.
  void try_mute_again(const Error& error);
  /// This agent has been taken in. `stand_alone`: see Coordinator.
  void taken_in(bool stand_alone);
  /// Takes back what is under way, but the search is not over.
  void interrupt();
  /// It is.
  void stop();

  const Place& place() const { return place_; }
  std::string where() const;
  bool connected_once() const { return connected_once_; }
  /// Until the search is given up.
  Duration time_left() const;
  /// How long the peer may take to answer once it has the connection.
  Duration time_to_answer() const;
  /// Why the search has not succeeded yet; empty: not tried yet.
  const std::string& trouble() const { return trouble_; }
  void set_trouble(std::string text) { trouble_ = std::move(text); }
  /// One warning, in all, that it takes long.
  void warn();

 private:
  void dial();
  void watch_progress();
  void give_up();

  AwakeClock clock_;  // who is paused has not looked meanwhile
  Locator& locator_;
  const Limits limits_;
  net::Dialer dialer_;
  const std::unique_ptr<Alarm> retry_, progress_;
  Handlers handlers_;

  Backoff backoff_;
  Place place_;
  bool searching_ = false, connected_once_ = false, stand_alone_ = false;
  std::string trouble_;
  bool warned_ = false;
};

}  // namespace elastrun::rendezvous
