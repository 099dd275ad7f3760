// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/membership/world_fence.hpp"

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace elastrun::rendezvous {

/// No honest count gets that far, and there must be room for higher ones.
constexpr std::int64_t kHighestEpoch = std::int64_t{1} << 60;

/// The lease of a job's leader in etcd or a shared file: all agents can read it, and at most one of
/// them holds it at a time, for as long as it renews it. Answers come on the loop, never inside a
/// call; each operation is asked for once at a time. Errors are transient unless their code is
/// Usage.
class LeaderLease {
 public:
  struct Leader {
    std::string value;
    std::int64_t epoch = 0;  // higher for each new leader, as long as the place forgets nothing
    std::string record{};    // the latest one of any leader; only in answers to `claim`
  };
  virtual ~LeaderLease() = default;

  /// Who holds it.
  virtual void read(Answer<std::optional<Leader>> answer) = 0;
  /// Takes it if it is free: answers with the leader, which is us if it has our value. The
  /// value must be unlike all others.
  virtual void claim(const std::string& value, Answer<Leader> answer) = 0;
  /// Still ours? If so, for another TTL, counted from the time of this call.
  virtual void renew(Answer<bool> answer) = 0;
  /// Keeps a record beside the entry, if that is still ours (the answer). Records outlive their
  /// leader, so that the next leader finds them, but not for ever.
  virtual void record(const std::string& record, Answer<bool> answer) = 0;
  /// Gives it back, if it is ours, and with `forget` the record too; `done` runs also if that
  /// failed (it lapses by itself then).
  virtual void release(bool forget, Then done) = 0;

  /// How long it stays ours without being renewed.
  virtual Duration ttl() const = 0;
  /// This machine's address on its way there; unspecified if that is not known.
  virtual boost::asio::ip::address own_address() const { return {}; }
};

/// One agent's part in a leader election: which request goes to the register next, and what its
/// answer means, whatever has happened while it was under way. Pure.
///
/// One request is under way at a time. Two that overlap can each be answered truly and together
/// mislead: a process that was frozen for longer than its lease finds the renewal, a look and a
/// campaign due in the same moment. So the driver tells it what has happened, carries out the
/// orders that `take` gives, and then sends what `next` gives, until `next` gives nothing.
///
///   state                        left by                       for
///   Follower                     read: no entry                Candidate (OpenCoordinator)
///   Candidate                    campaigned: ours              Leader (Lead)
///                                campaigned: another's         Follower (CloseCoordinator)
///                                cannot_campaign               Follower (Fail)
///   Leader, has its lease        renewed: no more              Leader without one (Doubt)
///                                read: its own, below an
///                                epoch that members know       Leader without one (Doubt)
///                                yield, then resigned          Leader that yields
///   Leader without a lease       campaigned: ours              Leader (Lead again)
///                                campaigned: another's         Follower (StepDown)
///   Leader that yields           read: a successor             Follower (StepDown)
///                                the pause is over             Leader without one (Doubt)
///   any of them                  step_down                     Follower (StepDown)
///                                retire                        retired: asks for nothing more
///   retired                      resign, then resigned         over (Resigned)
class Election {
 public:
  enum class Role { Follower, Candidate, Leader };
  enum class Request { Read, Campaign, Renew, Record, Resign };

  // Orders
  struct Follow {
    LeaderLease::Leader leader;
  };
  struct Await {};            // for the end of a leader that does not answer; then `look`
  struct OpenCoordinator {};  // a place for agents to come to, before the campaign
  struct CloseCoordinator {};
  struct Lead {
    LeaderLease::Leader entry;
    bool again = false;  // it led before, and everything goes on under the new epoch
  };
  struct Trust {};  // the lease has been renewed
  struct Doubt {};  // perhaps another one leads: decide nothing
  struct StepDown {
    std::string why;
  };
  struct Recorded {};  // the record has been recorded
  struct Resigned {};  // the lease has been given back, as far as that was possible
  struct Fail {
    Error error;  // of a look
  };
  using Order = std::variant<Follow, Await, OpenCoordinator, CloseCoordinator, Lead, Trust, Doubt,
                             StepDown, Recorded, Resigned, Fail>;

  /// `lease`: how long the register lets one be the leader without a renewal.
  explicit Election(Duration lease) : lease_(lease) {}

  // What has happened

  /// Asks for the leader: Follow, Lead, Trust or Fail will tell. Not before `at`.
  void look(TimePoint at);
  /// The leader of that epoch does not answer; 0: any leader may be given again.
  void reject(std::int64_t epoch) { rejected_ = epoch; }
  /// Withdraws the question.
  void cancel() { wanted_ = false, look_at_.reset(); }
  /// Some member knows a leader of that epoch.
  void hear_of(std::int64_t epoch);
  /// There is something to be recorded beside the entry; Recorded tells when it has been.
  void record() {
    // The register takes records from the owner of the entry alone.
    if (role_ == Role::Leader && !retired_) record_at_ = TimePoint::min();
  }
  /// No place can be opened.
  void cannot_campaign(const Error& why) {
    role_ = Role::Follower;
    answer_with(Fail{why});
  }
  void step_down(const std::string& why);
  /// Others could lead, and cannot reach this leader: gives the lease back, and campaigns again
  /// after that pause, unless another leader has been elected by then. A leader that is without a
  /// valid lease has none to give back, and is left alone.
  void yield(Duration pause, TimePoint now);
  /// For good: nothing is asked any more, but what `resign` says. A campaign that is under way and
  /// is won all the same is given back; Resigned tells when that is settled.
  void retire();
  bool is_campaigning() const { return under_way_ == Request::Campaign; }
  /// The last word: `with_record`, record one before; if that fails, again until the lease ends.
  void resign(bool with_record) {
    resign_ = true;
    last_word_ = with_record;
    if (with_record) record_at_ = TimePoint::min();
  }

  /// The request that must be sent now.
  std::optional<Request> next(TimePoint now);
  /// When to ask again for the next one.
  std::optional<TimePoint> due() const;

  // The answers. `found` and `entry` with epochs above all that their writers knew.
  void read(Result<std::optional<LeaderLease::Leader>> found, TimePoint now);
  /// `ours`: it has the value of this campaign. `strange`: its record is of another leader's world.
  void campaigned(Result<LeaderLease::Leader> entry, bool ours, bool strange, TimePoint now);
  void renewed(const Result<bool>& still, TimePoint now);
  void recorded(const Result<bool>& still, TimePoint now);
  void resigned(TimePoint now);

  std::vector<Order> take() { return std::exchange(orders_, {}); }

  Role role() const { return role_; }
  std::int64_t epoch() const { return epoch_; }
  /// Any new leader's epoch must be above that.
  std::int64_t highest_known() const { return known_; }
  /// Until when the lease is ours for certain, by our own clock. A twentieth less than the register
  /// gives, in case that its clock runs faster.
  TimePoint lease_end() const { return lease_end_; }
  bool is_entitled(TimePoint now) const { return role_ == Role::Leader && now < lease_end_; }

 private:
  Duration retry_pause() const {
    // Several tries within a lease, without asking a register that fails at once in a loop.
    return std::min<Duration>(lease_ / 6, std::chrono::seconds(1));
  }
  std::optional<Request> next_of_leader(TimePoint now);
  std::optional<Request> next_without_lease(TimePoint now);
  void read_as_leader(const Result<std::optional<LeaderLease::Leader>>& found, TimePoint now);
  void read_while_yielding(const Result<std::optional<LeaderLease::Leader>>& found, TimePoint now);
  void read_as_follower(Result<std::optional<LeaderLease::Leader>> found);
  // This process would not renew that entry, but the job's next start would wait for it to expire.
  void campaigned_too_late(bool ours) {
    resign_ = resign_ || ours;
    if (!resign_) orders_.emplace_back(Resigned{});
  }
  void campaigned_as_candidate(Result<LeaderLease::Leader> entry, bool ours);
  void campaigned_as_leader(const Result<LeaderLease::Leader>& entry, bool ours, bool strange,
                            TimePoint now);
  void lead(LeaderLease::Leader entry, bool again);
  void recorded_last_word(const Result<bool>& still, TimePoint now);
  void doubt() { orders_.emplace_back(Doubt{}); }
  void answer_with(Order order) {
    wanted_ = false;
    orders_.push_back(std::move(order));
  }
  std::optional<Request> send(Request request, TimePoint now);

  const Duration lease_;
  Role role_ = Role::Follower;
  std::optional<Request> under_way_;
  TimePoint asked_;  // when it was sent
  std::vector<Order> orders_;

  // Who wants to know the leader
  bool wanted_ = false;
  std::optional<TimePoint> look_at_;
  std::int64_t rejected_ = 0, known_ = 0;

  // The lease
  std::int64_t epoch_ = 0;
  TimePoint lease_end_;
  TimePoint renew_at_;                  // or the next campaign, if the entry has lapsed
  std::optional<TimePoint> record_at_;  // something is to be recorded
  bool lapsed_ = false;
  std::optional<TimePoint> verify_at_;  // an agent claims to know a newer leader
  bool raise_ = false;                  // the epoch: by giving the entry back and taking it again
  // It gives the lease back for so long; once it has, it looks who takes it, until `renew_at_`.
  std::optional<Duration> pause_;
  bool yielding_ = false;
  bool resign_ = false, retired_ = false;
  bool last_word_ = false;  // which is recorded before the resignation
};

/// What an elected coordinator writes into its register, as JSON (elastrun-protocol(7), Election).
/// Pure.

/// The coordinator's place.
struct EntryPlace {
  std::string address;
  std::uint16_t port = 0;
  std::string nonce{};  // makes it unlike all others
  /// The highest epoch that its writer knew. Its own is above that, even if the register has been
  /// restored from nothing and counts from 1 again.
  std::int64_t above = 0;
};
std::string encode_entry(const EntryPlace& place);
/// Fails with Protocol.
Result<EntryPlace> decode_entry(const std::string& text);
/// Makes the epoch the register's own count, or one above what the entry's writer knew: a register
/// may forget.
void raise_epoch(LeaderLease::Leader& leader);

/// A world that has been given out, or the last one of a job that is over.
struct RecordedWorld {
  WorldRecord world;
  std::string by;       // the coordinator's process
  std::string network;  // where that process is: an address of loopback means nothing elsewhere
  std::optional<Done> verdict{};         // of that job; none: it is at work
  StoppingGroups leavers{};              // that had said goodbye to it
  std::optional<Survivors> survivors{};  // none: it has not broken up, as far as is known
  bool left = false;                     // the coordinator is none of those any more
};
/// Times travel as what is left of them `now`: clocks of machines differ.
std::string encode_record(const RecordedWorld& recorded, TimePoint now = {});
/// None for an empty text. Of one that is not understood nothing is known but that there is one.
std::optional<RecordedWorld> decode_record(const std::string& text, TimePoint now = {});

}  // namespace elastrun::rendezvous
