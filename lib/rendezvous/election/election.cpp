// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/election/election.hpp"

#include "core/text.hpp"
#include "rendezvous/wire/messages.hpp"

#include <algorithm>
#include <array>
#include <chrono>

namespace elastrun::rendezvous {
namespace {

constexpr std::array<std::string_view, 3> kOverWords = {"", "succeeded", "failed"};

void verdict_member(Codec& codec, std::optional<Done>& verdict) {
  std::size_t over = !verdict ? 0 : verdict->failed ? 2 : 1;
  if (codec.has("over", over > 0)) codec.word("over", over, kOverWords);
  if (over == 0) return;
  Cause cause = verdict ? verdict->cause : Cause{};
  const bool failed = over == 2;
  if (failed && codec.has("kind", true)) cause_kind(codec, cause.kind);
  cause.text = printable(std::move(cause.text));
  if (failed && codec.has("text", true)) codec("text", cause.text);
  // A worker's failure without the worker says no more than that the job is over.
  if (cause.kind == Cause::Kind::WorkerFailed) cause.kind = Cause::Kind::Closed;
  if (codec.reads()) verdict = {failed, std::move(cause)};
}

}  // namespace

void members(Codec& codec, EntryPlace& place) {
  codec.name("address", place.address);
  codec("port", place.port);
  codec("nonce", place.nonce);
  codec("above", place.above);
}

static void record_members(Codec& codec, RecordedWorld& recorded, TimePoint now) {
  const auto groups = [&](std::string_view count, std::string_view time, StoppingGroups& stopping) {
    Duration left = stopping.count > 0 ? std::max<Duration>(stopping.until - now, {}) : Duration();
    codec(count, stopping.count);
    codec.milliseconds(time, left, kLongestGrace);
    if (codec.reads()) stopping.until = now + left;
  };
  WorldRecord& world = recorded.world;
  codec("epoch", world.id.epoch, 0, kHighestEpoch);
  codec("round", world.id.round, 0, std::int64_t{1} << 53);
  codec("nodes", world.nodes);
  codec("address", world.address);
  codec("port", world.port);
  codec("by", recorded.by);
  codec("network", recorded.network);
  codec.milliseconds("at_work_ms", world.at_work, kLongestGrace);
  codec("local", world.local);
  if (codec.has("names", !world.members.empty())) codec("names", world.members);
  if (codec.has("leavers", recorded.leavers.count > 0))
    groups("leavers", "leaving_ms", recorded.leavers);
  if (codec.has("stopping", recorded.survivors.has_value())) {
    auto& survivors = recorded.survivors ? *recorded.survivors : recorded.survivors.emplace();
    codec("members", survivors.members);
    groups("stopping", "stopping_ms", survivors.at_work);
    codec("left", recorded.left);
  }
  verdict_member(codec, recorded.verdict);
}

std::string encode_entry(const EntryPlace& place) {
  return json::serialize(to_json(place));
}

Result<EntryPlace> decode_entry(const std::string& text) {
  const auto parsed = parse_json(text);
  if (!parsed) return std::unexpected(parsed.error().context("the coordinator's entry"));
  EntryPlace place;
  const auto unsound = from_json(*parsed, place);
  if (unsound == "address" || unsound == "port" || place.address.empty() || place.port == 0)
    return fail(Code::Protocol, "the coordinator's entry names no address and port");
  // The epoch that follows must be one that every agent believes, or agents ignore the register
  // from then on.
  place.above = std::min(place.above, kHighestEpoch - 1);
  return place;
}

void raise_epoch(LeaderLease::Leader& leader) {
  if (const auto place = decode_entry(leader.value)) {
    // A register that has lost its data numbers from 1 again; the entry says which epochs its
    // writer knew.
    leader.epoch = std::max(leader.epoch, place->above + 1);
  }
}

std::string encode_record(const RecordedWorld& recorded, TimePoint now) {
  Codec codec;
  RecordedWorld copy = recorded;
  record_members(codec, copy, now);
  return json::serialize(codec.take());
}

std::optional<RecordedWorld> decode_record(const std::string& text, TimePoint now) {
  if (text.empty()) return std::nullopt;
  RecordedWorld recorded;
  // Unreadable, but there: a world may be at work, so the successor waits instead of forming
  // another one. Any client of the register can have written it: what is unsound is left at its
  // default or bound.
  if (const auto parsed = parse_json(text)) {
    std::string unsound;
    Codec codec(*parsed, unsound);
    record_members(codec, recorded, now);
  }
  return recorded;
}

namespace {

// A world waits for its record, so this is short beside a lease; etcd's own change of leader takes
// some of these.
constexpr auto kRecordPause = std::chrono::milliseconds(200);

}  // namespace

void Election::look(TimePoint at) {
  if (retired_) return;
  wanted_ = true;
  // Its own entry is what a leader must look at, and that is a renewal.
  if (role_ == Role::Leader) {
    if (yielding_)
      // Not `renew_at_`, which ends the pause: earlier, this node would campaign against the
      // successor that it makes way for.
      verify_at_ = at;
    else
      renew_at_ = std::min(renew_at_, at);
  } else if (role_ == Role::Follower) {
    // A candidate needs no look: the answer to its campaign tells who leads.
    look_at_ = look_at_ ? std::min(*look_at_, at) : at;
  }
}

void Election::hear_of(std::int64_t epoch) {
  // One agent that claims the highest epoch must not push a leader above it: members would not
  // believe that one.
  if (epoch > kHighestEpoch || epoch <= known_) return;
  known_ = epoch;
  // A register that was restored from nothing elects below epochs that members know; they would
  // drop every round of such a leader in silence.
  if (role_ == Role::Leader) verify_at_ = TimePoint::min();
}

void Election::step_down(const std::string& why) {
  role_ = Role::Follower;
  lapsed_ = raise_ = yielding_ = false;
  // The record is of a world about which another leader decides from now on.
  record_at_.reset(), verify_at_.reset(), pause_.reset();
  // A session that asked while this node led still waits for an answer.
  if (wanted_) look_at_ = TimePoint::min();
  orders_.emplace_back(StepDown{why});
}

void Election::yield(Duration pause, TimePoint now) {
  // Without a valid lease there is none to give back, and these paths end in a campaign anyway.
  if (role_ != Role::Leader || retired_ || resign_ || lapsed_ || raise_) return;
  pause_ = pause;
  // It decides nothing from now on, although the entry is its own until the register has taken it
  // back: agents that go meanwhile must not find two who decide.
  lease_end_ = std::min(lease_end_, now);
}

void Election::retire() {
  retired_ = true;
  cancel();
  // A last word, if there is one, comes with resign().
  record_at_.reset(), verify_at_.reset(), pause_.reset();
  // Not the request under way: its answer still comes, and a campaign that was won must be given
  // back, or the job's next start waits for that entry to expire.
  raise_ = yielding_ = false;
}

std::optional<Election::Request> Election::send(Request request, TimePoint now) {
  under_way_ = request;
  // The lease counts from here: the register can have renewed it no earlier.
  asked_ = now;
  return request;
}

std::optional<Election::Request> Election::next(TimePoint now) {
  // One at a time: answers that cross would say together what none of them says.
  if (under_way_) return std::nullopt;
  // Before `retired_`: a retired election still owes the register its last word and its entry.
  if (resign_) {
    if (!record_at_) return send(Request::Resign, now);
    if (now < *record_at_) return std::nullopt;
    record_at_.reset();
    return send(Request::Record, now);
  }
  if (retired_) return std::nullopt;
  if (role_ == Role::Leader) return next_of_leader(now);
  // Its coordinator is open by now: orders are carried out before this is asked.
  if (role_ == Role::Candidate) return send(Request::Campaign, now);
  if (!look_at_ || now < *look_at_) return std::nullopt;
  look_at_.reset();
  return send(Request::Read, now);
}

std::optional<Election::Request> Election::next_of_leader(TimePoint now) {
  // Before all else: until the entry is given back this node stays in the way of what it waits for.
  if (raise_ || pause_) return send(Request::Resign, now);
  if (lapsed_) return next_without_lease(now);
  // Before the record, which an entry that has lapsed would refuse.
  if (now >= renew_at_) return send(Request::Renew, now);
  if (record_at_ && now >= *record_at_) {
    record_at_.reset();
    return send(Request::Record, now);
  }
  if (verify_at_ && now >= *verify_at_) return send(Request::Read, now);
  return std::nullopt;
}

std::optional<Election::Request> Election::next_without_lease(TimePoint now) {
  if (now >= renew_at_) {
    // From now on it is a leader like any other that has lost its lease.
    if (std::exchange(yielding_, false)) doubt();
    return send(Request::Campaign, now);
  }
  if (yielding_ && verify_at_ && now >= *verify_at_) return send(Request::Read, now);
  return std::nullopt;
}

std::optional<TimePoint> Election::due() const {
  // Case by case as in `next`: a time at which that sends nothing would ring the alarm again at
  // once, for ever.
  if (under_way_) return std::nullopt;
  if (resign_) return record_at_;
  if (retired_) return std::nullopt;
  if (role_ == Role::Follower) return look_at_;
  if (yielding_) return std::min(renew_at_, verify_at_.value_or(renew_at_));
  if (lapsed_) return renew_at_;
  return std::min({renew_at_, record_at_.value_or(renew_at_), verify_at_.value_or(renew_at_)});
}

void Election::read(Result<std::optional<LeaderLease::Leader>> found, TimePoint now) {
  // First in all answers: whatever this one means, the next request may go out.
  under_way_.reset();
  if (retired_) return;
  if (role_ == Role::Leader) return read_as_leader(found, now);
  // Who asks again wants to know what is true from then on.
  if (wanted_ && !look_at_) read_as_follower(std::move(found));
}

void Election::read_as_leader(const Result<std::optional<LeaderLease::Leader>>& found,
                              TimePoint now) {
  if (yielding_) return read_while_yielding(found, now);
  if (!verify_at_) return;
  if (!found) {
    verify_at_ = now + retry_pause();
    return;
  }
  verify_at_.reset();
  if (!*found || (*found)->epoch != epoch_) {
    // Another leader's, or free: the renewal will tell which, and what follows.
    renew_at_ = asked_;
  } else if (known_ > epoch_) {
    // It is ours, so the register has forgotten the leaders before: members would never listen.
    raise_ = true;
    lease_end_ = asked_;
    doubt();
  }
}

void Election::read_while_yielding(const Result<std::optional<LeaderLease::Leader>>& found,
                                   TimePoint now) {
  verify_at_ = now + retry_pause();
  const bool succeeded = found && *found && (*found)->epoch != epoch_;
  // Only a successor ends it. If the others are really gone, this node leads again after the pause,
  // with all that it knows.
  if (succeeded) step_down("another coordinator was elected");
}

void Election::read_as_follower(Result<std::optional<LeaderLease::Leader>> found) {
  if (!found) return answer_with(Fail{found.error()});
  if (!*found) {
    role_ = Role::Candidate;
    // The coordinator first: the campaign writes its port into the entry.
    orders_.emplace_back(OpenCoordinator{});
  } else if ((*found)->epoch == rejected_) {
    // Not Fail: the entry of a dead leader stands for up to a lease and a half, and then decides.
    orders_.emplace_back(Await{});
  } else {
    answer_with(Follow{std::move(**found)});
  }
}

void Election::campaigned(Result<LeaderLease::Leader> entry, bool ours, bool strange,
                          TimePoint now) {
  under_way_.reset();
  if (retired_) return campaigned_too_late(ours);
  if (role_ == Role::Candidate) return campaigned_as_candidate(std::move(entry), ours);
  if (role_ == Role::Leader) return campaigned_as_leader(entry, ours, strange, now);
  // It has stepped down meanwhile, and an entry that the register has given it after all would keep
  // the others waiting for a TTL.
  resign_ = ours;
}

void Election::campaigned_as_candidate(Result<LeaderLease::Leader> entry, bool ours) {
  if (entry && ours) return lead(std::move(*entry), false);
  role_ = Role::Follower;
  // Another one was elected: agents must not find two places to join.
  orders_.emplace_back(CloseCoordinator{});
  if (!wanted_) return;
  if (!entry) return answer_with(Fail{entry.error()});
  answer_with(Follow{std::move(*entry)});
}

void Election::campaigned_as_leader(const Result<LeaderLease::Leader>& entry, bool ours,
                                    bool strange, TimePoint now) {
  if (!entry) {
    // Still a leader: the world keeps to this node until another one is known to lead.
    renew_at_ = now + retry_pause();
    if (wanted_) answer_with(Fail{entry.error()});
  } else if (!ours) {
    step_down("another coordinator was elected");
  } else if (strange) {
    // Another leader was elected meanwhile, has formed a world, and is gone again: we know too
    // little.
    resign_ = true;
    step_down("another coordinator was elected meanwhile");
  } else {
    lead(*entry, true);
  }
}

void Election::lead(LeaderLease::Leader entry, bool again) {
  role_ = Role::Leader;
  lapsed_ = yielding_ = false;
  epoch_ = entry.epoch;
  // A member may know a higher one even so: the entry's writer did not know all.
  verify_at_ = known_ > epoch_ ? std::optional(TimePoint::min()) : std::nullopt;
  known_ = std::max(known_, epoch_);
  // From the request on, since the answer may have taken any part of the time since. A twentieth is
  // for clocks that run at different speeds: others count the whole time from when they saw it.
  lease_end_ = asked_ + lease_ * 19 / 20;
  // A third, so that a renewal that fails is tried several times more before the lease ends.
  renew_at_ = asked_ + lease_ / 3;
  // A record that the last entry could not take any more is due at once under this one.
  if (record_at_) record();
  // Lead answers that question as well.
  wanted_ = false;
  orders_.emplace_back(Lead{std::move(entry), again});
}

void Election::renewed(const Result<bool>& still, TimePoint now) {
  under_way_.reset();
  // One that was under way when it was told to yield must not make it the leader again.
  if (retired_ || role_ != Role::Leader || pause_) return;
  if (still && *still) {
    lease_end_ = std::max(lease_end_, asked_ + lease_ * 19 / 20);
    renew_at_ = asked_ + lease_ / 3;
    // One that came too late proves nothing, and the next one is due at once.
    if (is_entitled(now)) answer_with(Trust{});
  } else if (still) {
    // The entry is gone, not the world: campaign again at once, and keep the agents meanwhile.
    lease_end_ = std::min(lease_end_, asked_);
    lapsed_ = true;
    renew_at_ = now;
    doubt();
  } else {
    renew_at_ = now + retry_pause();
    if (!is_entitled(now)) doubt();
    // The search for a coordinator needs an answer, to tell people what it waits for.
    if (wanted_ && !is_entitled(now)) answer_with(Fail{still.error()});
  }
}

void Election::recorded(const Result<bool>& still, TimePoint now) {
  under_way_.reset();
  if (last_word_) return recorded_last_word(still, now);
  if (retired_ || role_ != Role::Leader) return;
  if (still && *still) {
    // One that was asked for meanwhile may be another one: that tells when it is there, too.
    if (!record_at_) orders_.emplace_back(Recorded{});
    return;
  }
  // If the entry is lost, the renewal says to whom. If it is ours again then, so is the record.
  record_at_ = now + kRecordPause;
  if (still) renew_at_ = now;
}

// Those who are out of reach learn from nothing else that the job is over: it is tried as long as
// the entry is ours for certain.
void Election::recorded_last_word(const Result<bool>& still, TimePoint now) {
  // resign() has set it since: this answer is about an earlier record, and the last word is still
  // to come.
  const bool under_way_before = record_at_.has_value();
  // Beyond the lease the entry may be another leader's, whose record must stay.
  if (still || under_way_before || now + kRecordPause >= lease_end_) return;
  record_at_ = now + kRecordPause;
}

void Election::resigned(TimePoint now) {
  under_way_.reset();
  resign_ = false;
  orders_.emplace_back(Resigned{});
  const auto pause = std::exchange(pause_, std::nullopt);
  // Not the end for these two: the entry was given back to be taken again, above the epochs that
  // members know or after the pause.
  if (!std::exchange(raise_, false) && !pause) return;
  lapsed_ = true;
  renew_at_ = now + pause.value_or(Duration::zero());
  if (!pause) return;
  yielding_ = true;
  verify_at_ = now + retry_pause();
}

}  // namespace elastrun::rendezvous
