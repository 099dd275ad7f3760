// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/election/election_entry.hpp"

#include "core/text.hpp"
#include "rendezvous/wire/messages.hpp"

#include <algorithm>
#include <array>

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

struct WrittenEntry {
  EntryPlace place;
  std::string nonce;
};
void members(Codec& codec, WrittenEntry& entry) {
  codec.name("address", entry.place.address);
  codec("port", entry.place.port);
  codec("nonce", entry.nonce);
  codec("above", entry.place.above);
}

void members(Codec& codec, RecordedWorld& recorded) {
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
  if (codec.has("leavers", recorded.leavers > 0)) {
    codec("leavers", recorded.leavers);
    codec.milliseconds("leaving_ms", recorded.leaving, kLongestGrace);
  }
  if (codec.has("stopping", recorded.break_up.has_value())) {
    auto& broken = recorded.break_up ? *recorded.break_up : recorded.break_up.emplace();
    codec("members", broken.members);
    codec("stopping", broken.stopping);
    codec.milliseconds("stopping_ms", broken.stopping_for, kLongestGrace);
    codec("left", broken.left);
  }
  verdict_member(codec, recorded.verdict);
}

std::string encode_entry(const EntryPlace& place, const std::string& nonce) {
  return json::serialize(to_json(WrittenEntry{place, nonce}));
}

Result<EntryPlace> decode_entry(const std::string& text) {
  const auto parsed = parse_json(text);
  if (!parsed) return std::unexpected(parsed.error().context("the coordinator's entry"));
  WrittenEntry entry;
  const auto unsound = from_json(*parsed, entry);
  EntryPlace& place = entry.place;
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

std::string encode_record(const RecordedWorld& recorded) {
  return json::serialize(to_json(recorded));
}

std::optional<RecordedWorld> decode_record(const std::string& text) {
  if (text.empty()) return std::nullopt;
  RecordedWorld recorded;
  // Unreadable, but there: a world may be at work, so the successor waits instead of forming
  // another one. Any client of the register can have written it: what is unsound is left at its
  // default or bound.
  if (const auto parsed = parse_json(text)) from_json(*parsed, recorded);
  return recorded;
}

}  // namespace elastrun::rendezvous
