// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/election/election_entry.hpp"

#include "core/json.hpp"
#include "core/text.hpp"
#include "rendezvous/wire/messages.hpp"

#include <algorithm>
#include <chrono>

namespace elastrun::rendezvous {
namespace {

// A worker's failure without the worker says no more than that the job is over.
Cause::Kind kind_of(const json::value& record) {
  bool sound = true;
  // By the reader of the wire, so that the names of causes stand in one place.
  const Cause cause = read_cause(Reader(record, sound));
  return cause.kind == Cause::Kind::WorkerFailed ? Cause::Kind::Closed : cause.kind;
}

constexpr auto kLongestEntry = std::chrono::duration_cast<std::chrono::milliseconds>(kLongestGrace);

std::int64_t whole_of(const json::value& record, std::string_view name, std::int64_t most) {
  // Any client of the register can have written this: sums and clocks must be able to hold it.
  return std::clamp<std::int64_t>(member_int_or(record, name, 0), 0, most);
}

std::string text_of(const json::value& record, std::string_view name) {
  bool sound = true;
  return Reader(record, sound).text(name);
}

bool flag_of(const json::value& record, std::string_view name) {
  const json::value* found = find_member(record, name);
  return found != nullptr && found->is_bool() && found->as_bool();
}

WorldRecord recorded_world_of(const json::value& record) {
  const auto whole = [&record](std::string_view name, std::int64_t most) {
    return whole_of(record, name, most);
  };
  WorldRecord world{{whole("epoch", kHighestEpoch), whole("round", std::int64_t{1} << 53)},
                    static_cast<int>(whole("nodes", 1 << 24)),
                    text_of(record, "address"),
                    static_cast<std::uint16_t>(whole("port", 65535)),
                    std::chrono::milliseconds(whole("at_work_ms", kLongestEntry.count())),
                    flag_of(record, "local")};
  const json::value* names = find_member(record, "names");
  if (names == nullptr || !names->is_array()) return world;
  for (const json::value& name : names->as_array()) {
    if (name.is_string()) world.members.emplace_back(name.get_string());
  }
  return world;
}

}  // namespace

std::string encode_entry(const EntryPlace& place, const std::string& nonce) {
  return to_wire(json::object{
      {"address", place.address}, {"port", place.port}, {"nonce", nonce}, {"above", place.above}});
}

Result<EntryPlace> decode_entry(const std::string& text) {
  const auto parsed = parse_json(text);
  if (!parsed) return std::unexpected(parsed.error().context("the coordinator's entry"));
  const auto port = member_int_or(*parsed, "port", 0);
  // The epoch that follows must be one that every agent believes, or agents ignore the register
  // from then on.
  bool sound = true;
  EntryPlace place{
      Reader(*parsed, sound).name("address"), static_cast<std::uint16_t>(port),
      std::clamp<std::int64_t>(member_int_or(*parsed, "above", 0), 0, kHighestEpoch - 1)};
  if (!sound || place.address.empty() || port <= 0 || port > 65535) {
    return fail(Code::Protocol, "the coordinator's entry names no address and port");
  }
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
  json::object record{{"epoch", recorded.world.id.epoch}, {"round", recorded.world.id.round},
                      {"nodes", recorded.world.nodes},    {"address", recorded.world.address},
                      {"port", recorded.world.port},      {"by", recorded.by},
                      {"network", recorded.network}};
  // Rounded up, like all times of a record: a successor that waits too short a time forms a world
  // beside this one.
  record["at_work_ms"] =
      std::chrono::ceil<std::chrono::milliseconds>(recorded.world.at_work).count();
  record["local"] = recorded.world.local;
  const auto& names = recorded.world.members;
  if (!names.empty()) record["names"] = json::array(names.begin(), names.end());
  if (recorded.leavers > 0) {
    record["leavers"] = recorded.leavers;
    record["leaving_ms"] = std::chrono::ceil<std::chrono::milliseconds>(recorded.leaving).count();
  }
  if (const auto& broken = recorded.break_up) {
    record["members"] = broken->members;
    record["stopping"] = broken->stopping;
    record["stopping_ms"] =
        std::chrono::ceil<std::chrono::milliseconds>(broken->stopping_for).count();
    record["left"] = broken->left;
  }
  if (recorded.verdict) record["over"] = recorded.verdict->failed ? "failed" : "succeeded";
  if (recorded.verdict && recorded.verdict->failed) {
    record["kind"] = write_cause(recorded.verdict->cause).at("kind");
    record["text"] = printable(recorded.verdict->cause.text);
  }
  return to_wire(record);
}

std::optional<RecordedWorld> decode_record(const std::string& text) {
  if (text.empty()) return std::nullopt;
  RecordedWorld recorded;
  const auto parsed = parse_json(text);
  // Unreadable, but there: a world may be at work, so the successor waits instead of forming
  // another one.
  if (!parsed) return recorded;
  const auto whole = [&parsed](std::string_view name, std::int64_t most) {
    return whole_of(*parsed, name, most);
  };
  recorded.world = recorded_world_of(*parsed);
  recorded.by = text_of(*parsed, "by");
  recorded.leavers = static_cast<int>(whole("leavers", 1 << 24));
  recorded.leaving = std::chrono::milliseconds(whole("leaving_ms", kLongestEntry.count()));
  if (find_member(*parsed, "stopping") != nullptr) {
    recorded.break_up = {static_cast<int>(whole("members", 1 << 24)),
                         static_cast<int>(whole("stopping", 1 << 24)),
                         std::chrono::milliseconds(whole("stopping_ms", kLongestEntry.count())),
                         flag_of(*parsed, "left")};
  }
  recorded.network = text_of(*parsed, "network");
  const std::string over = text_of(*parsed, "over");
  if (over != "failed" && over != "succeeded") return recorded;
  recorded.verdict = {over == "failed", {.kind = kind_of(*parsed)}};
  recorded.verdict->cause.text = text_of(*parsed, "text");
  return recorded;
}

}  // namespace elastrun::rendezvous
