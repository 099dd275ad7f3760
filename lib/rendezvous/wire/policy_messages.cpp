// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wire/policy_messages.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::rendezvous {
namespace {

constexpr double kLongestAge = 366.0 * 86400;  // age_seconds
// The memory travels with each restart: its sentences are cut shorter than others.
constexpr std::size_t kLongestOfMemory = 200;

double age_seconds(Duration time) {
  // Ages travel, not times, because the clocks of machines are never compared.
  return std::clamp(to_seconds(time), 0.0, kLongestAge);
}
Duration read_age(const Reader& reader, std::string_view name) {
  return from_seconds(reader.number(name, 0, kLongestAge, 0));
}

json::object write_entry(const RestartEntry& entry) {
  return {{"age", age_seconds(entry.age)},
          {"class", spec::cause_class_name(entry.cause)},
          {"fingerprint", fit_text(entry.fingerprint, kLongestOfMemory)},
          {"place", fit_text(entry.place, kLongestOfMemory)},
          {"step", entry.step},
          {"checkpoint", entry.checkpoint},
          {"decision", fit_text(entry.decision, kLongestOfMemory)}};
}

RestartEntry read_entry(const Reader& reader) {
  RestartEntry entry{read_age(reader, "age")};
  const auto cause = spec::find_cause_class(reader.text("class"));
  // A later release may know further classes.
  entry.cause = cause.value_or(spec::CauseClass::Error);
  entry.fingerprint = reader.text("fingerprint");
  entry.place = reader.text("place");
  entry.step = reader.integer("step", -1, INT64_MAX, -1);
  entry.checkpoint = reader.integer("checkpoint", -1, INT64_MAX, -1);
  entry.decision = reader.text("decision");
  return entry;
}

}  // namespace

json::object write(const Reached& reached) {
  return {{"type", "reached"},
          {"round", reached.round},
          {"step", reached.step},
          {"checkpoint", reached.checkpoint},
          {"pace", age_seconds(reached.pace)},
          {"saved", reached.saved},
          {"looks", reached.looks},
          {"failure", reached.failure}};
}
json::object write(const AskPreempt& ask) {
  return {{"type", "preempt"},
          {"why", ask.why},
          {"deadline", age_seconds(ask.deadline)},
          {"hosts", ask.hosts}};
}
json::object write(const AskReached& ask) {
  return {{"type", "ask_reached"}, {"why", ask.why}, {"left", age_seconds(ask.left)}};
}
json::object write(const SaveAt& order) {
  return {{"type", "save_at"},
          {"step", order.step},
          {"left", age_seconds(order.left)},
          {"by_signal", order.by_signal}};
}

Reached read_reached(const Reader& reader) {
  return {reader.integer("round"),
          reader.integer("step", -1, INT64_MAX, -1),
          reader.integer("checkpoint", -1, INT64_MAX, -1),
          read_age(reader, "pace"),
          reader.flag("saved"),
          reader.flag("looks"),
          reader.text("failure")};
}
AskPreempt read_ask_preempt(const Reader& reader) {
  return {reader.text("why"), read_age(reader, "deadline"), reader.flag("hosts")};
}
std::optional<Push> read_preemption_push(std::string_view type, const Reader& reader) {
  if (type == "ask_reached") return AskReached{reader.text("why"), read_age(reader, "left")};
  if (type == "save_at") {
    return SaveAt{reader.integer("step", -1, INT64_MAX, -1), read_age(reader, "left"),
                  reader.flag("by_signal")};
  }
  return std::nullopt;
}

json::object write_memory(const RestartMemory& memory) {
  json::array entries, marks, uses;
  for (const auto& entry : memory.entries) entries.emplace_back(write_entry(entry));
  for (const auto& mark : memory.marks) {
    marks.emplace_back(json::object{{"place", fit_text(mark.place, kLongestOfMemory)},
                                    {"age", age_seconds(mark.age)},
                                    {"why", fit_text(mark.why, kLongestOfMemory)}});
  }
  for (const auto& use : memory.uses)
    uses.emplace_back(json::object{{"rule", use.rule}, {"age", age_seconds(use.age)}});
  return {{"spent", memory.spent},        {"used", memory.used},
          {"level", memory.level},        {"checkpoint", memory.checkpoint},
          {"ledger", std::move(entries)}, {"marks", std::move(marks)},
          {"uses", std::move(uses)}};
}

RestartMemory read_memory(const Reader& reader) {
  const auto count = [&reader](std::string_view name) {
    return static_cast<int>(reader.integer(name, 0, kMaxCount));
  };
  RestartMemory memory{count("spent"), count("used"), count("level"),
                       reader.integer("checkpoint", -1, INT64_MAX, -1)};
  for (const json::value& element : reader.elements("ledger")) {
    // What is more than this release keeps is cut, not refused: later ones may keep more.
    if (memory.entries.size() == RestartMemory::kMostEntries) break;
    memory.entries.push_back(read_entry(Reader(element, reader.sound())));
  }
  for (const json::value& element : reader.elements("marks")) {
    if (memory.marks.size() == RestartMemory::kMostMarks) break;
    const Reader mark(element, reader.sound());
    memory.marks.push_back({mark.text("place"), read_age(mark, "age"), mark.text("why")});
  }
  for (const json::value& element : reader.elements("uses")) {
    if (memory.uses.size() == RestartMemory::kMostUses) break;
    const Reader use(element, reader.sound());
    memory.uses.push_back(
        {static_cast<int>(use.integer("rule", 0, kMaxCount)), read_age(use, "age")});
  }
  return memory;
}

std::shared_ptr<const RestartMemory> read_memory_of(const Reader& message) {
  if (!message.has("memory")) return nullptr;
  return std::make_shared<const RestartMemory>(read_memory(message.member("memory")));
}

}  // namespace elastrun::rendezvous
