// SPDX-License-Identifier: Apache-2.0

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "core/system_clock.hpp"
#include "core/text.hpp"
#include "net/dialer.hpp"
#include "net/endpoint.hpp"
#include "net/link.hpp"
#include "rendezvous/discovery/locator.hpp"
#include "rendezvous/session/make_session.hpp"
#include "rendezvous/wire/admission.hpp"
#include "rendezvous/wire/messages.hpp"
#include "store/server.hpp"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <fmt/format.h>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace elastrun::rendezvous {

using boost::asio::ip::tcp;

std::vector<std::string> alternate_addresses(const std::string& address,
                                             const std::vector<boost::asio::ip::address>& all) {
  std::vector<std::string> found;
  for (const auto& own : all) {
    // From another machine neither leads here.
    if (own.is_loopback() || (own.is_v6() && own.to_v6().is_link_local())) continue;
    if (own.to_string() != address && found.size() < kMaxAlternateAddresses) {
      found.push_back(own.to_string());
    }
  }
  return found;
}

Join Membership::describe(const std::string& address, const Rules& rules, int node_rank) {
  Join join{self_, previous_, rules,
            knows_.id.is_later_than(previous_.id) ? knows_ : PreviousWorld{}};
  Node& node = join.node;
  if (node.address.empty()) node.address = address;
  // The same on all connections of this agent: by it a coordinator tells a node that comes back
  // from another one under the same name.
  if (node.instance.empty()) node.instance = instance_;
  // Elsewhere --node-rank has no effect, as with torchrun: the coordinator gives out the ranks.
  if (rules.fixed_ranks) node.node_rank = node_rank;
  // A worker's packets may leave by any of them (rails, container bridges), and the store of a
  // round lets in only addresses that it knows.
  node.alternates = alternate_addresses(node.address, net::own_addresses());
  // As torch names nodes: address, process, number within the process.
  if (node.id.empty()) node.id = fmt::format("{}_{}_0", node.address, ::getpid());
  id_ = node.id;
  return join;
}

Restart Membership::restart_after_loss(const std::string& why) const {
  Cause cause{.kind = Cause::Kind::CoordinatorLost, .node = id_};
  cause.text = fmt::format("the connection to the coordinator was lost ({})", why);
  return {std::move(cause), false, restarts_left_};
}

namespace {

using net::Link;

// Between two attempts to connect.
constexpr Duration kFirstWait = std::chrono::milliseconds(10),
                   kLongestWait = std::chrono::milliseconds(500);

// What to say of one who takes connections at `endpoint`, seen as `remote`, and says nothing: the
// port may be that of a program which has nothing to do with us. It is named if it runs on this
// machine and may be seen.
std::string silent_port_text(const net::Endpoint& endpoint,
                             const boost::asio::ip::address& remote) {
  const auto text =
      fmt::format("{} takes the connection, but does not answer as a coordinator does",
                  net::format_endpoint(endpoint.host, endpoint.port));
  if (!net::is_own_address(remote)) return text;
  const auto owner = store::find_port_owner(endpoint.port);
  return owner.empty() ? text : fmt::format("{}: {} listens there", text, owner);
}

//   state          left by                                              for
//   locating       the locator has a place                              dialling
//                  it has none; useless to retry                        waiting; over
//   dialling       connected; in vain                                   greeted; waiting, or over
//   waiting        the pause is over                                    locating
//   greeted        welcomed                                             taken in
//                  refused, disconnected, or no answer in time          waiting, or over
//   taken in       abandon: silent, outdated, or another one elected    locating, group stopped
//                  disconnected                                         locating, group stopped
//                  obey: Done, Lost                                     over
//   any of them    close                                                closing
//   closing        the last word is answered, or disconnected           closed: finish_close
//
// A link that was set aside stays open, though nothing is heard on it, until the group has ended:
// its end tells the coordinator so.
class RemoteSession final : public PushingSession {
 public:
  RemoteSession(boost::asio::io_context& loop, Clock& clock,
                std::shared_ptr<const net::Sealer> sealer, std::unique_ptr<Locator> locator,
                SessionSettings settings, StorePlan store_plan)
      : PushingSession(loop, clock, settings.backend, settings.run_id),
        sealer_(std::move(sealer)),
        locator_(std::move(locator)),
        settings_(std::move(settings)),
        store_plan_(std::move(store_plan)),
        awake_clock_(clock),
        dialer_(loop, clock),
        retry_(awake_clock_.make_alarm()),
        progress_(awake_clock_.make_alarm()),
        heartbeat_(clock.make_alarm()),
        // Random, because two agents in containers may share both host name and pid.
        membership_(random_text(12)) {}

  ~RemoteSession() override {
    if (link_) link_->close();
    close_links_aside();
  }

  void open(OnPush on_push) override {
    PushingSession::open(std::move(on_push));
    locator_->on_moved([this] { coordinator_moved(); });
    search(settings_.rules.join_timeout);
  }

  void join(Node self) override {
    if (!settings_.local_addr.empty()) self.address = settings_.local_addr;
    // A join says that the group has ended. The ends of the links that were set aside say the same
    // to the coordinators that were given up while the group was still stopping.
    membership_.want(std::move(self));
    close_links_aside();
    if (welcomed_) send(describe());
  }

  void report(Report report) override {
    const auto* failed = std::get_if<Failed>(&report);
    if (failed != nullptr && !failed->goes_on) membership_.fail(clock_.now());
    if (const auto* leaving = std::get_if<Leaving>(&report)) {
      leaving_ = *leaving;
      membership_.leave(clock_.now(), leaving->grace);
    }
    if (auto* ask = std::get_if<AskPreempt>(&report)) ask->hosts = serves_others();
    if (const auto* reached = std::get_if<Reached>(&report))
      membership_.saved(reached->checkpoint, settings_.rules);
    std::visit([this](auto& each) { send(FromAgent(std::move(each))); }, report);
  }

  void close(Then on_closed) override {
    closed_ = true;
    on_closed_ = std::move(on_closed);
    interrupt_search();
    locator_->cancel();
    progress_->disarm();
    heartbeat_->disarm();
    const bool matters = leaving_ && (leaving_->unable || (locator_->elects() && serves_others()));
    if (!matters || over_ || !link_ || !welcomed_) return finish_close();
    // The coordinator may be this process: before it goes it is to hear why, or its successor would
    // wait for this node. It reads in order, so its answer to what is said now tells.
    send_heartbeat();
    heartbeat_->arm(clock_.now() + settings_.config.close_timeout, [this] { finish_close(); });
  }

  StorePlan store_plan() const override { return store_plan_; }
  void share_store(const store::Stores& stores) override { locator_->share_store(stores); }
  bool serves_others() const override { return !over_ && locator_->serves_others(); }

 private:
  // Finding the coordinator

  // For so long, until one takes this agent in: asks where it is, dials, waits between attempts.
  void search(Duration time) {
    search_since_ = awake_clock_.now();
    search_time_ = time;
    wait_ = kFirstWait;
    watch_progress();
    locate();
  }

  void locate() {
    locator_->learn(epoch_, std::max(membership_.previous().nodes, settings_.rules.min_nodes));
    locator_->locate([this](Result<Place> place) {
      if (place) {
        place_ = std::move(*place);
        return dial();
      }
      // What has worked before is not a user's mistake: the register will have it again.
      const Code code = place.error().code;
      const bool mistake = code == Code::Usage && !connected_once_;
      if (mistake || code == Code::Rendezvous) return declare_lost(place.error().text, false);
      try_again(place.error());
    });
  }

  void dial() {
    // No longer than a later silence: meanwhile others may have elected another leader.
    const Duration limit = std::min(settings_.config.read_timeout, time_to_answer());
    dialer_.dial(place_.endpoint, limit, [this](Result<tcp::socket> socket) {
      if (socket) return connected(std::move(*socket));
      // An agent that hosted the rendezvous and is gone does not come back.
      const bool gone = socket.error().code == Code::Closed && connected_once_ && !stand_alone_;
      if (gone && !locator_->elects())
        return declare_lost("the coordinator of this job is gone, and with it the rendezvous: " +
                                socket.error().text,
                            true);
      try_again(socket.error());
    });
  }

  // The place found was the wrong one: retries later, until time is up.
  void try_again(const Error& error) {
    // So that another place is given, if there is one.
    if (!place_.endpoint.host.empty()) locator_->reject(place_);
    trouble_ = error.text;
    const TimePoint now = awake_clock_.now();
    if (now >= deadline()) {
      // A job that has run is sound, and worth a requeue; one that has never met may be a mistake.
      return declare_lost(fmt::format("no coordinator of the job \"{}\" within {}: {}",
                                      settings_.run_id, format_duration(search_time_), trouble_),
                          connected_once_);
    }
    // The waits grow, and are drawn at random within a factor of two, so that thousands of agents
    // that lost one coordinator do not come back in step.
    const auto wait = wait_ * std::uniform_int_distribution<int>(500, 1000)(random_) / 1000;
    wait_ = std::min(wait_ * 3 / 2, kLongestWait);
    // Not beyond the deadline, so that one last attempt is made at it.
    retry_->arm(std::min<TimePoint>(now + wait, deadline()), [this] { locate(); });
  }

  // Takes back what is under way, but the search is not over.
  void interrupt_search() {
    dialer_.cancel();
    retry_->disarm();
  }

  // After which a coordinator is lost: as long as members and coordinator bear each other's
  // silence. One that has not answered a greeting by then would be given up as well if it had taken
  // us in.
  Duration silence() const {
    return settings_.config.keep_alive_interval * settings_.config.keep_alive_max_attempt;
  }
  TimePoint deadline() const { return search_since_ + search_time_; }
  // Until the search is given up.
  Duration time_left() const {
    // Never zero, or the last attempt would fail before it is made.
    return std::max<Duration>(deadline() - awake_clock_.now(), std::chrono::milliseconds(100));
  }
  // How long the peer may take to answer once it has the connection.
  Duration time_to_answer() const { return std::min(silence(), time_left()); }

  // People who wait want to know for what, also before anybody answers.
  void watch_progress() {
    progress_->arm(awake_clock_.now() + settings_.rules.progress_interval, [this] {
      tell_progress();
      watch_progress();
    });
  }

  void tell_progress() {
    if (!membership_.wants_membership()) return;
    if (link_) trouble_ = silent_port_text(place_.endpoint, link_->remote_address());
    if (trouble_.empty()) return;
    push(Progress{fmt::format("looking for the coordinator, at most {} more: {}",
                              format_duration(time_left()), trouble_),
                  0, settings_.rules.min_nodes});
    // Once, at the level that everybody sees: people at a terminal read the progress, which goes
    // on.
    if (std::exchange(warned_, true)) return;
    log::warning("rendezvous", "still looking for the coordinator of the job \"{}\": {}",
                 settings_.run_id, trouble_);
  }

  std::string where() const {
    return net::format_endpoint(place_.endpoint.host, place_.endpoint.port);
  }

  // Talking to it

  void connected(tcp::socket socket) {
    link_ = std::make_shared<Link>(std::move(socket), sealer_, Link::Side::Connector);
    link_->frame_limit(16u << 20);  // a round of a large world lists its members for group rank 0
    link_->start({[this](const std::string& payload) { hear(payload); },
                  [this](const Error& error) { hung_up_on(error); }});
    greeted_at_ = clock_.now();
    Hello hello = own_hello(settings_.run_id, settings_.start, epoch_, settings_.guardian);
    // In the first message: a coordinator that learns it later takes this node for gone, and begins
    // a world beside the last save of this one.
    if (const auto left = membership_.at_work(greeted_at_)) hello.at_work = {describe(), *left};
    link_->send(encode(FromAgent(std::move(hello))));
    heartbeat_->arm(clock_.now() + time_to_answer(), [this] {
      const std::string why = silent_port_text(place_.endpoint, link_->remote_address());
      set_link_aside();  // it may have read that we are at work
      // Perhaps frozen with its machine, and back in a moment. A proxy whose host is gone hangs up.
      if (connected_once_ && !locator_->elects())
        search_time_ = std::max(search_time_, settings_.config.read_timeout);
      try_again({Code::Timeout, why});
    });
  }

  void hear(const std::string& payload) {
    // After a pause of this process, words of long ago come before any alarm.
    if (welcomed_ && !holds_lease()) return;
    auto message = decode_from_coordinator(payload);
    if (!message) return abandon(message.error());
    // An agent that has closed this session obeys no order any more; only two words still matter to
    // it.
    if (closed_) return hear_last(*message);
    if (const auto* welcome = std::get_if<Welcome>(&*message)) return welcomed(*welcome);
    if (const auto* refusal = std::get_if<Refusal>(&*message)) return refused(*refusal);
    if (const auto* epoch = std::get_if<NewEpoch>(&*message)) {
      // Never backwards: the epoch fences the words of coordinators that were succeeded.
      epoch_ = std::max(epoch_, epoch->epoch);
    } else if (std::holds_alternative<Heartbeat>(*message)) {
      heartbeat_lease_.answered();
      if (!heartbeat_lease_.is_over(clock_.now())) obey_put_off();
    } else if (auto* told = std::get_if<Push>(&*message)) {
      // A round of long ago may be none of ours any more. All else is true at any time.
      const bool old = heartbeat_lease_.is_over(clock_.now());
      const bool round = std::holds_alternative<RoundReady>(*told);
      if (old && (round || !put_off_.empty())) return put_off_.push_back(std::move(*told));
      obey(std::move(*told));
    }
  }

  void hear_last(const FromCoordinator& message) {
    const auto* told = std::get_if<Push>(&message);
    if (told != nullptr && std::holds_alternative<Done>(*told)) done_ = true;
    if (!std::holds_alternative<Heartbeat>(message)) return;
    heartbeat_lease_.answered();
    if (heartbeat_lease_.is_answered()) finish_close();
  }

  void finish_close() {
    // The answer, the alarm and the end of the connection all lead here; the first one finishes.
    if (!on_closed_) return;
    heartbeat_->disarm();
    if (link_) send(Leaving{{}, {}, true});  // its end alone could be a proxy's
    if (link_) hang_up();
    close_links_aside();
    // The others have been told what we were told, if that was the verdict on the job.
    locator_->retire(done_ ? "" : "the node that hosts the rendezvous has left",
                     settings_.config.close_timeout, std::exchange(on_closed_, {}));
  }

  void obey_put_off() {
    for (Push& told : std::exchange(put_off_, {})) {
      // Each word may end the connection, and what follows it in the list then binds us no more.
      if (link_) obey(std::move(told));
    }
  }

  void welcomed(const Welcome& welcome) {
    if (welcome.epoch < epoch_) {
      // A coordinator that does not know yet that it was succeeded. It must not be listened to.
      hang_up();
      return try_again(
          {Code::Closed, fmt::format("the coordinator is of epoch {}, but epoch {} exists",
                                     welcome.epoch, epoch_)});
    }
    epoch_ = welcome.epoch;
    membership_.learn(welcome.world);
    welcomed_ = true;
    connected_once_ = true;
    progress_->disarm();
    stand_alone_ = welcome.stand_alone;
    // From here on a fixed locator hosts no rendezvous itself: two hosts of one job would each form
    // a world.
    locator_->accept(place_);
    refused_since_.reset();
    // From the greeting, not from its answer, which the network may have kept for a minute.
    heartbeat_lease_.begin(greeted_at_, welcome.heartbeat, welcome.heartbeats_missed);
    // Or TCP_USER_TIMEOUT ends a connection whose silence both sides have agreed to bear.
    link_->bear_silence(welcome.heartbeat * (welcome.heartbeats_missed + 2));
    // What the connection before has left undecided is void: this coordinator says by its own words
    // whether it counts on us.
    put_off_.clear();
    watch_heartbeats();
    if (membership_.wants_membership()) send(describe());
    if (leaving_)
      send(Leaving{leaving_->why, membership_.at_work(clock_.now()).value_or(Duration()), false});
  }

  void hang_up() {
    heartbeat_->disarm();
    std::exchange(link_, nullptr)->close();
  }

  void set_link_aside() {
    heartbeat_->disarm();
    if (membership_.wants_membership()) return hang_up();
    // Neither reading nor sending: an order of a coordinator that was given up must not reach this
    // node, and what still waits for the greeting would be an old word beside a new one.
    link_->hold();
    aside_.push_back(std::exchange(link_, nullptr));
  }
  void close_links_aside() {
    for (const auto& link : std::exchange(aside_, {})) link->close();
  }

  void refused(const Refusal& refusal) {
    // With an election the entry of a dead leader stands for a while, and its port may be another
    // job's or a web server's by now.
    const bool final = !locator_->elects() || (refusal.final && (welcomed_ || is_final()));
    hang_up();
    if (!final) return disconnected({Code::Closed, refusal.text});
    declare_lost(fmt::format("{} refuses this node: {}", where(), refusal.text), false,
                 refusal.misuse);
  }

  // Of one who has not taken us in: whether that is our job's coordinator all the same. The entry
  // of an elected one outlives a leader that has died, and meanwhile anybody may have its port:
  // another job, a proxy, the next owner of its address. What such a stranger says must not end a
  // job that goes on elsewhere.
  bool is_final() {
    // A node that has never met its job believes the first refusal: a wrong secret or run id does
    // not mend itself.
    if (!connected_once_ || !locator_->elects()) return true;
    const TimePoint now = clock_.now();
    if (!refused_since_ || refused_epoch_ != place_.epoch)
      refused_epoch_ = place_.epoch, refused_since_ = now;
    // Only an entry that is still there after its life has been renewed since. A file's is taken
    // after a TTL and a half; etcd's lives longer by etcd's own elections.
    return now - *refused_since_ > 3 * settings_.config.lease_ttl;
  }

  Join describe() {
    return membership_.describe(link_->local_address().to_string(), settings_.rules,
                                settings_.node_rank);
  }

  void send(const FromAgent& message) {
    if (link_ && welcomed_) link_->send(encode(message));
  }

  void obey(Push told) {
    if (auto* ready = std::get_if<RoundReady>(&told)) {
      // Fences late words of a coordinator that was succeeded, or rounds of another life of it. It
      // must hear that, or it takes us for a member at work: our next hello and join say why.
      const auto epoch = ready->round.epoch, number = ready->round.number;
      const bool old = epoch < epoch_ || number <= membership_.previous().id.round;
      if (old && !membership_.is_started_again(ready->round)) {
        return abandon(
            {Code::Closed, fmt::format("it gave out round {} of epoch {} after {} of {}", number,
                                       epoch, membership_.previous().id.round, epoch_)});
      }
      epoch_ = std::max(epoch_, epoch);
      membership_.sit(ready->round);
    } else if (const auto* restart = std::get_if<Restart>(&told)) {
      const bool is_ours = restart->is_for(membership_.role());
      // Its group may have stopped before, when another connection was lost.
      if (is_ours && !membership_.give_up(clock_.now(), !restart->role.empty())) return;
      membership_.hear(*restart);
      if (is_ours) send(Stopping{*membership_.at_work(clock_.now())});
    } else if (const auto* spare = std::get_if<Spare>(&told)) {
      membership_.learn(spare->world);
    } else if (std::holds_alternative<Done>(told) || std::holds_alternative<Lost>(told)) {
      done_ = std::holds_alternative<Done>(told);
      over_ = true;
    }
    push(std::move(told));
  }

  // Losing it

  void abandon(const Error& error) {
    set_link_aside();
    disconnected(error);
  }

  void hung_up_on(const Error& error) {
    const bool in_vain = !welcomed_ && (error.code == Code::Closed || error.code == Code::Io);
    if (!in_vain) return disconnected(error);
    disconnected(
        {error.code, fmt::format("something takes the connection there, but ends it without "
                                 "an answer ({}): perhaps a proxy, whose host is gone",
                                 error.text)});
  }

  void disconnected(const Error& error) {
    link_.reset();
    heartbeat_->disarm();
    const std::string trouble = fmt::format("{}: {}", where(), error.text);
    trouble_ = trouble;
    const bool was_welcomed = std::exchange(welcomed_, false);
    if (closed_) return finish_close();
    if (is_through()) return;
    if (!was_welcomed) {
      // It never took us in: a retry cannot mend another secret or protocol.
      const bool refused = error.code == Code::Rendezvous || error.code == Code::Protocol;
      return refused && is_final() ? declare_lost(trouble, false)
                                   : try_again({error.code, trouble});
    }
    log::warning("rendezvous", "lost the connection to the coordinator: {}", trouble);
    stop_group(trouble);
    // A fixed host that has gone does not come back, so a silence is enough; an election takes
    // longer.
    search(locator_->elects() ? settings_.rules.join_timeout : silence());
  }

  // The coordinator has given us up, or soon will: what our group does from now on is in vain.
  void stop_group(const std::string& why) {
    // Costs no attempt: the workers have done nothing wrong. An agent that leaves stops its group
    // anyway.
    if (!membership_.give_up(clock_.now()) || leaving_) return;
    push(membership_.restart_after_loss(why));
  }

  void coordinator_moved() {
    if (is_through()) return;
    // A dial to the old leader must not succeed beside the new place.
    interrupt_search();
    if (link_) return abandon({Code::Closed, "another coordinator was elected"});
    locate();
  }

  // One that leaves comes back to say that it is saving, but is not elected: it is recorded.
  bool is_through() const {
    const bool comes_back = !locator_->elects() && membership_.is_saving(clock_.now());
    return over_ || closed_ || (leaving_ && !comes_back);
  }

  void declare_lost(const std::string& why, bool requeue, bool misuse = false) {
    over_ = true;
    // A node that leaves has given its reason already, and its report shows that one.
    if (!leaving_) push(Lost{why, requeue, misuse});
  }

  void watch_heartbeats() {
    heartbeat_->arm(heartbeat_lease_.next_look(clock_.now()), [this] {
      if (!holds_lease()) return;
      if (!heartbeat_lease_.is_over(clock_.now())) send_heartbeat();
      watch_heartbeats();
    });
  }

  void send_heartbeat() {
    send(Heartbeat{});
    heartbeat_lease_.sent(clock_.now());
  }

  // Not: the coordinator has been given up.
  bool holds_lease() {
    const auto look = heartbeat_lease_.look(clock_.now());
    if (look == HeartbeatLease::Look::Over) {
      abandon({Code::Timeout, "silent for " + format_duration(heartbeat_lease_.silence())});
      return false;
    }
    if (look == HeartbeatLease::Look::Ask) {
      log::info("rendezvous", "this process was paused; asking whether {} has gone on without it",
                where());
      send_heartbeat();
      watch_heartbeats();
    }
    return true;
  }

  // Set at construction
  const std::shared_ptr<const net::Sealer> sealer_;
  const std::unique_ptr<Locator> locator_;
  const SessionSettings settings_;
  const StorePlan store_plan_;
  AwakeClock awake_clock_;  // of the search: who is paused has not looked meanwhile
  net::Dialer dialer_;
  const std::unique_ptr<Alarm> retry_, progress_, heartbeat_;

  // The search
  // With a random seed: the nodes of a job start in the same second, and with one seed they would
  // all knock at the same moments for ever.
  std::minstd_rand random_{std::random_device{}()};
  TimePoint search_since_;
  Duration search_time_{}, wait_{};
  Place place_;
  bool connected_once_ = false, stand_alone_ = false, warned_ = false;
  std::string trouble_;  // why it has not succeeded yet; empty: not tried yet

  // The coordinator
  std::shared_ptr<Link> link_;
  std::vector<std::shared_ptr<Link>> aside_;  // whose ends will say that our group has ended
  bool welcomed_ = false;
  std::int64_t epoch_ = 0;
  TimePoint greeted_at_;
  HeartbeatLease heartbeat_lease_;
  std::vector<Push> put_off_;       // until it is known whether it counts on us
  std::int64_t refused_epoch_ = 0;  // of the place that refuses this node
  std::optional<TimePoint> refused_since_;

  // This node
  Membership membership_;
  bool done_ = false;  // has heard the verdict on the job
  bool over_ = false;
  Then on_closed_;
  std::optional<Leaving> leaving_;
};

}  // namespace

std::unique_ptr<Session> make_remote_session(boost::asio::io_context& loop, Clock& clock,
                                             std::shared_ptr<const net::Sealer> sealer,
                                             std::unique_ptr<Locator> locator,
                                             SessionSettings settings, StorePlan store_plan) {
  return std::make_unique<RemoteSession>(loop, clock, std::move(sealer), std::move(locator),
                                         std::move(settings), std::move(store_plan));
}

}  // namespace elastrun::rendezvous
