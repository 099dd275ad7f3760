// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/elected_locator.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "net/outward.hpp"
#include "rendezvous/election_entry.hpp"
#include "rendezvous/host.hpp"
#include "rendezvous/world_notes.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <utility>

namespace elastrun::rendezvous {
namespace {

namespace ip = boost::asio::ip;

// How long a place that did not answer is not given again, unless something changes.
constexpr auto kSecondLook = std::chrono::seconds(1);

class ElectedLocator final : public Locator {
 public:
  ElectedLocator(boost::asio::io_context& loop, Clock& clock,
                 std::shared_ptr<const net::Sealer> sealer, std::unique_ptr<Ballot> ballot,
                 ElectedLocatorSettings settings)
      : loop_(loop),
        clock_(clock),
        sealer_(std::move(sealer)),
        ballot_(std::move(ballot)),
        settings_(std::move(settings)),
        renewal_(clock.make_alarm()),
        doubt_(clock.make_alarm()),
        second_look_(clock.make_alarm()),
        isolation_(clock.make_alarm()),
        notes_(loop, clock, *ballot_) {}
  ~ElectedLocator() override { *alive_ = false; }

  bool elects() const override { return true; }
  void on_moved(std::function<void()> moved) override { moved_ = std::move(moved); }

  void locate(Answer answer) override {
    answer_ = std::move(answer);
    if (leads_ && is_entitled()) return give(own_place());
    look();
  }

  void reject(const Place& place) override { rejected_ = place.epoch; }

  void cancel() override {
    answer_ = nullptr;
    rest();
  }

  void retire(const std::string& why, Duration limit, std::function<void()> retired) override {
    retiring_ = true;
    cancel();
    disarm();
    if (!leads_) return boost::asio::post(loop_, std::move(retired));
    if (why.empty()) {
      // The last word first, then the entry: nobody needs to look for us before.
      return host_->retire(why, true, limit, [this, retired = std::move(retired)]() mutable {
        end_job(std::move(retired));
      });
    }
    // The others find the place free when they come.
    const bool forget = !host_->coordinator().is_at_work() && !notes_.tells_of_end();
    ballot_->release(forget, [this, why, limit, retired = std::move(retired)]() mutable {
      host_->retire(why, true, limit, std::move(retired));
    });
  }

 private:
  // Looking for somebody, or standing for election

  void look() {
    look_again_ = looking_;
    if (std::exchange(looking_, true)) return;
    ballot_->read([this](Result<std::optional<Ballot::Holder>> found) {
      looking_ = false;
      if (std::exchange(look_again_, false)) return look();
      if (!answer_ || retiring_) return;
      if (!found) return give(std::unexpected(found.error()));
      if (*found) return consider(**found);
      rest();
      stand();
    });
  }

  void consider(const Ballot::Holder& holder) {
    if (leads_ && holder.value == value_) return won(holder);
    if (holder.epoch != rejected_) return answer_with(holder);
    // The one that does not answer still holds it. Wait for its end, with a second look now and
    // then.
    if (!waiting_) {
      waiting_ = true;
      ballot_->watch([this] { look(); });
    }
    second_look_->arm(clock_.now() + kSecondLook, [this] {
      rejected_ = 0;
      look();
    });
  }

  void answer_with(const Ballot::Holder& holder) {
    rest();
    auto endpoint = decode_entry(holder.value);
    if (!endpoint) return give(std::unexpected(endpoint.error()));
    seen_ = net::parse_address(endpoint->host);
    give(Place{std::move(*endpoint), holder.epoch, false});
  }

  void stand() {
    if (std::exchange(standing_, true)) return;
    auto ready = settle_own_text();
    if (ready) ready = open_host();
    if (!ready) {
      standing_ = false;
      return give(std::unexpected(ready.error()));
    }
    value_ = encode_entry(own_text_, host_->port(), random_text(16));
    const TimePoint asked = clock_.now();
    ballot_->claim(value_, [this, asked](Result<Ballot::Holder> holder) {
      standing_ = false;
      if (retiring_) return;
      if (!holder) {
        host_.reset();
        return give(std::unexpected(holder.error()));
      }
      if (holder->value != value_) {
        host_.reset();
        return answer_with(*holder);
      }
      extend_tenure(asked);
      notes_.inherit(holder->note, host_->coordinator(), clock_.now() + isolation());
      won(*holder);
    });
  }

  Status open_host() {
    Coordinator::Settings coordinator = settings_.coordinator;
    coordinator.entitled = [this] { return is_entitled(); };
    coordinator.note_world = [this](const WorldNote& world, std::function<void()> noted) {
      if (!leads_) return;
      // If it is lost, the renewal will say to whom.
      notes_.record(world, std::move(noted), [this] { renew_in({}); });
    };
    Status failed;
    for (int port = settings_.first_port; port <= settings_.last_port; ++port) {
      net::Listener::Settings listener{.address = "::", .port = static_cast<std::uint16_t>(port)};
      auto opened = Host::open(loop_, clock_, sealer_, listener, coordinator);
      if (opened) {
        host_ = std::move(*opened);
        host_->coordinator().on_newer_epoch([this](std::int64_t) { check_holder(); });
        return {};
      }
      failed = std::unexpected(opened.error());
    }
    return failed;
  }

  // Under which the others find us.
  Status settle_own_text() {
    own_text_ = settings_.advertise;
    if (!own_text_.empty()) return {};
    ip::address own = ballot_->own_address();
    // A register on this machine is reached over loopback, which means nothing to other machines.
    if (own.is_unspecified() || own.is_loopback()) {
      const auto outward = net::outward_address(seen_);
      const bool alone = settings_.coordinator.rules.max_nodes == 1;
      if (!outward && !alone) return std::unexpected(outward.error());
      own = outward ? *outward : ip::address(ip::address_v4::loopback());
    }
    own_text_ = own.to_string();
    return {};
  }

  // Being the coordinator

  bool is_entitled() const { return clock_.now() < tenure_; }
  // A twentieth less than the ballot gives, in case that its clock runs faster than ours.
  void extend_tenure(TimePoint asked) {
    tenure_ = std::max(tenure_, asked + ballot_->term() * 19 / 20);
    isolation_->arm(isolated_at(), [this] { suspend(); });
  }
  // When the world must be told to stop, so that its members have stopped before a successor thinks
  // so: also those that only notice our silence.
  TimePoint isolated_at() const {
    return tenure_ + std::max<Duration>(isolation() * 19 / 20 - silence(), Duration::zero());
  }
  Duration isolation() const {
    return std::max<Duration>(settings_.isolation, silence() * 11 / 10);
  }
  // After which a member that does not hear us has stopped its group (see Pulse).
  Duration silence() const {
    return settings_.coordinator.beat * (settings_.coordinator.beats_missed + 1);
  }
  // By the address that others use, so that this node presents itself under it.
  Place own_place() const {
    const auto address = net::parse_address(own_text_);
    const bool ours = !address.is_unspecified() && net::is_own_address(address);
    return {{ours ? address.to_string() : "127.0.0.1", host_->port()}, epoch_, true};
  }

  void suspend() {
    if (!leads_ || is_entitled()) return;
    host_->coordinator().suspend(
        fmt::format("the coordinator could not renew its election for {} (isolation_timeout)",
                    format_duration(clock_.now() - tenure_)));
  }

  // The last word has been said. It is left behind for those who were out of reach.
  void end_job(std::function<void()> retired) {
    const auto verdict = host_->coordinator().verdict();
    if (!verdict) return ballot_->release(!notes_.tells_of_end(), std::move(retired));
    notes_.conclude(*verdict, [this, retired = std::move(retired)]() mutable {
      ballot_->release(false, std::move(retired));
    });
  }

  void won(const Ballot::Holder& holder) {
    leads_ = true;
    epoch_ = holder.epoch;
    rest();
    end_doubt();
    host_->coordinator().set_epoch(epoch_);
    host_->coordinator().hold(false);
    log::info("rendezvous", "this node coordinates the job (epoch {}, port {})", epoch_,
              host_->port());
    renew_in(ballot_->term() / 3);
    if (answer_) give(own_place());
  }

  void renew_in(Duration time) {
    renewal_->arm(clock_.now() + time, [this] { renew(); });
  }

  void renew() {
    const TimePoint asked = clock_.now();
    ballot_->renew([this, asked](Result<bool> still) {
      if (retiring_ || !leads_) return;
      if (still && *still) {
        extend_tenure(asked);
        if (is_entitled()) trust_again();
        return renew_in(ballot_->term() / 3);
      }
      if (!still) {
        log::debug("rendezvous", "cannot renew the election: {}", still.error().text);
        if (!is_entitled()) doubt();
        return renew_in(std::min<Duration>(ballot_->term() / 6, std::chrono::seconds(1)));
      }
      tenure_ = asked;
      doubt();
      stand_again();
    });
  }

  // The entry lapsed. If nobody took it meanwhile, everything goes on under a new epoch.
  void stand_again() {
    // Under a new name: an entry of ours that is left over must not be taken for the new one.
    value_ = encode_entry(own_text_, host_->port(), random_text(16));
    const TimePoint asked = clock_.now();
    ballot_->claim(value_, [this, asked](Result<Ballot::Holder> holder) {
      if (retiring_ || !leads_) return;
      if (!holder)
        return renew_in(std::min<Duration>(ballot_->term() / 6, std::chrono::seconds(1)));
      if (holder->value != value_) return step_down("another coordinator was elected");
      extend_tenure(asked);
      if (notes_.is_strange(holder->note)) return give_up_again();
      won(*holder);
    });
  }

  // Somebody was elected meanwhile, has formed a world, and is gone again: we know too little.
  void give_up_again() {
    ballot_->release(false, [this] { step_down("another coordinator was elected meanwhile"); });
  }

  void trust_again() {
    end_doubt();
    host_->coordinator().hold(false);
  }

  void disarm() {
    renewal_->disarm();
    isolation_->disarm();
    notes_.stop();
    end_doubt();
  }

  void end_doubt() {
    doubting_ = false;
    doubt_->disarm();
  }

  // Nobody may have been elected in our place, so agents are kept; but a job that needs a decision
  // now is better off looking for somebody who may decide.
  void doubt() {
    host_->coordinator().hold(true);
    if (std::exchange(doubting_, true)) return;  // each failed renewal comes here
    doubt_->arm(clock_.now() + ballot_->term(), [this] {
      doubting_ = false;
      if (host_->coordinator().is_needed()) return step_down("it could not renew its election");
      doubt();
    });
  }

  // An agent has seen a newer coordinator than us.
  void check_holder() {
    ballot_->read([this](const Result<std::optional<Ballot::Holder>>& found) {
      if (retiring_ || !leads_ || !found) return;
      if (*found && (*found)->value != value_) step_down("another coordinator was elected");
    });
  }

  void step_down(const std::string& why) {
    log::warning("rendezvous", "this node coordinates the job no more: {}", why);
    leads_ = false;
    disarm();
    host_->coordinator().resign(why, true);
    boost::asio::post(loop_, [this, alive = alive_] {
      if (!*alive || retiring_ || leads_) return;
      host_.reset();
      if (moved_) moved_();
    });
  }

  void rest() {
    second_look_->disarm();
    if (std::exchange(waiting_, false)) ballot_->unwatch();
  }

  void give(Result<Place> place) {
    boost::asio::post(loop_, [this, alive = alive_, place = std::move(place)]() mutable {
      if (!*alive) return;
      if (const Answer answer = std::exchange(answer_, {})) answer(std::move(place));
    });
  }

  // Set at construction
  boost::asio::io_context& loop_;
  Clock& clock_;
  const std::shared_ptr<const net::Sealer> sealer_;
  const std::unique_ptr<Ballot> ballot_;
  const ElectedLocatorSettings settings_;
  const std::unique_ptr<Alarm> renewal_, doubt_, second_look_, isolation_;
  std::function<void()> moved_;

  // The question
  Answer answer_;
  std::int64_t rejected_ = 0;
  bool waiting_ = false, looking_ = false, look_again_ = false, standing_ = false;

  // The office
  WorldNotes notes_;
  std::unique_ptr<Host> host_;
  std::string own_text_;
  ip::address seen_;  // of the last coordinator that was not us
  std::string value_;
  std::int64_t epoch_ = 0;
  TimePoint tenure_;
  bool leads_ = false, doubting_ = false, retiring_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace

std::unique_ptr<Locator> make_elected_locator(boost::asio::io_context& loop, Clock& clock,
                                              std::shared_ptr<const net::Sealer> sealer,
                                              std::unique_ptr<Ballot> ballot,
                                              ElectedLocatorSettings settings) {
  return std::make_unique<ElectedLocator>(loop, clock, std::move(sealer), std::move(ballot),
                                          std::move(settings));
}

}  // namespace elastrun::rendezvous
