// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/session/coordinator_search.hpp"

#include "core/log.hpp"
#include "rendezvous/membership/wording.hpp"

#include <algorithm>
#include <random>
#include <utility>

namespace elastrun::rendezvous {

using boost::asio::ip::tcp;

CoordinatorSearch::CoordinatorSearch(boost::asio::io_context& loop, Clock& clock, Locator& locator,
                                     Limits limits)
    : clock_(clock),
      locator_(locator),
      limits_(std::move(limits)),
      dialer_(loop, clock),
      retry_(clock_.make_alarm()),
      progress_(clock_.make_alarm()),
      // A random seed for each agent: the nodes of a job start in the same second, and with one
      // seed they would all knock at the same moments for ever.
      backoff_(std::random_device{}()) {}

void CoordinatorSearch::begin(Handlers handlers) {
  handlers_ = std::move(handlers);
  backoff_.begin(clock_.now(), limits_.join_timeout);
  watch_progress();
  locate();
}

void CoordinatorSearch::begin_again() {
  // A fixed host that has gone does not come back, so a silence is enough; an election takes
  // longer.
  backoff_.begin(clock_.now(), locator_.elects() ? limits_.join_timeout : limits_.silence);
  watch_progress();
  locate();
}

void CoordinatorSearch::locate() {
  handlers_.asking();
  locator_.locate([this](Result<Place> place) {
    if (place) {
      place_ = std::move(*place);
      return dial();
    }
    // What has worked before is not a user's mistake: the register will have it again.
    const Code code = place.error().code;
    const bool mistake = code == Code::Usage && !connected_once_;
    if (mistake || code == Code::Rendezvous) return handlers_.given_up(place.error().text, false);
    try_again(place.error());
  });
}

void CoordinatorSearch::dial() {
  // No longer than a later silence: meanwhile others may have elected another leader.
  const Duration limit = std::min(limits_.read_timeout, time_to_answer());
  dialer_.dial(place_.endpoint, limit, [this](Result<tcp::socket> socket) {
    if (socket) return handlers_.connected(std::move(*socket));
    // An agent that hosted the rendezvous and is gone does not come back.
    const bool gone = socket.error().code == Code::Closed && connected_once_ && !stand_alone_;
    if (gone && !locator_.elects())
      return handlers_.given_up(coordinator_gone_text(socket.error().text), true);
    try_again(socket.error());
  });
}

void CoordinatorSearch::try_again(const Error& error) {
  // So that another place is given, if there is one.
  if (!place_.endpoint.host.empty()) locator_.reject(place_);
  trouble_ = error.text;
  const TimePoint now = clock_.now();
  if (backoff_.over(now)) return give_up();
  // Not beyond the deadline, so that one last attempt is made at it.
  retry_->arm(std::min(now + backoff_.next(), backoff_.deadline()), [this] { locate(); });
}

void CoordinatorSearch::try_mute_again(const Error& error) {
  // Perhaps frozen with its machine, and back in a moment. A proxy whose host is gone hangs up.
  if (connected_once_ && !locator_.elects()) backoff_.extend(limits_.read_timeout);
  try_again(error);
}

void CoordinatorSearch::give_up() {
  const std::string why = no_coordinator_text(limits_.run_id, backoff_.time(), trouble_);
  // A job that has run is sound, and worth a requeue; one that has never met may be a mistake.
  handlers_.given_up(why, connected_once_);
}

void CoordinatorSearch::taken_in(bool stand_alone) {
  searching_ = false;
  connected_once_ = true;
  stand_alone_ = stand_alone;
  // From here on a fixed locator hosts no rendezvous itself: two hosts of one job would each form a
  // world.
  locator_.accept(place_);
}

void CoordinatorSearch::interrupt() {
  dialer_.cancel();
  retry_->disarm();
}

void CoordinatorSearch::stop() {
  interrupt();
  locator_.cancel();
  progress_->disarm();
}

std::string CoordinatorSearch::where() const {
  return net::format_endpoint(place_.endpoint.host, place_.endpoint.port);
}

Duration CoordinatorSearch::time_left() const {
  // Never zero, or the last attempt would fail before it is made.
  return std::max<Duration>(backoff_.deadline() - clock_.now(), std::chrono::milliseconds(100));
}

Duration CoordinatorSearch::time_to_answer() const {
  return std::min(limits_.silence, time_left());
}

// People who wait want to know for what, also before anybody answers.
void CoordinatorSearch::watch_progress() {
  searching_ = true;
  progress_->arm(clock_.now() + limits_.progress_interval, [this] {
    if (!searching_) return;
    handlers_.still_searching();
    watch_progress();
  });
}

void CoordinatorSearch::warn() {
  // Once, at the level that everybody sees: people at a terminal read the progress, which goes on.
  if (std::exchange(warned_, true)) return;
  log::warning("rendezvous", "still looking for the coordinator of the job \"{}\": {}",
               limits_.run_id, trouble_);
}

}  // namespace elastrun::rendezvous
