// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wire/messages.hpp"

#include "core/json.hpp"
#include "core/text.hpp"
#include "rendezvous/wire/message_parts.hpp"
#include "rendezvous/wire/policy_messages.hpp"
#include "rendezvous/wire/stack_messages.hpp"
#include "spec/topology_address.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::rendezvous {
namespace {

using json::object;

constexpr std::int64_t kMostRounds = std::int64_t{1} << 53;  // another one can always follow
constexpr double kLongestSilence = 1e9;                      // seconds
constexpr Duration kUsualGrace = std::chrono::seconds(40);   // of an agent that does not say

PreviousWorld read_previous(const Reader& previous) {
  return {{previous.integer("epoch"), previous.integer("round", 0, kMostRounds)},
          static_cast<int>(previous.integer("attempt", 0, kMaxCount)),
          static_cast<int>(previous.integer("nodes", 0, kMaxCount)),
          static_cast<int>(previous.integer("group_rank", -1, kMaxCount, -1))};
}
object write_previous(const PreviousWorld& previous) {
  object world{{"epoch", previous.id.epoch},
               {"round", previous.id.round},
               {"attempt", previous.attempt},
               {"nodes", previous.nodes}};
  if (previous.group_rank >= 0) world["group_rank"] = previous.group_rank;
  return world;
}
/// What is not an address counts as not known: a later release may have longer ones.
std::string read_topology(const Reader& reader) {
  auto address = reader.text("topology");
  return spec::topology_problem(address).empty() ? address : std::string();
}
double write_grace(Duration grace) {
  // The reader takes a longer one for a message of the wrong kind, and hangs up.
  return to_seconds(std::clamp<Duration>(grace, Duration::zero(), kLongestGrace));
}
Duration read_grace(const Reader& reader, std::string_view name, Duration otherwise = {}) {
  return from_seconds(reader.number(name, 0, to_seconds(kLongestGrace), to_seconds(otherwise)));
}

object write_member(const Join& join) {
  object member{{"node", write_node(join.node)},
                {"previous", write_previous(join.previous)},
                {"rules", write_rules(join.rules)},
                {"grace", write_grace(join.node.grace)}};
  if (join.knows.id.round > 0) member["knows"] = write_previous(join.knows);
  const auto& memory = join.node.memory;
  if (memory && !memory->empty()) member["memory"] = write_memory(*memory);
  if (!join.node.fault.empty()) member["fault"] = join.node.fault;
  if (!join.node.topology.empty()) member["topology"] = join.node.topology;
  return member;
}

object write_mark(const ProcessMark& mark) {
  return {{"pid", mark.pid}, {"start", mark.start_time}};
}
ProcessMark read_mark(const Reader& reader) {
  return {static_cast<pid_t>(reader.integer("pid", 0, kMaxCount)),
          static_cast<std::uint64_t>(reader.integer("start"))};
}

object write(const AgentProcesses& processes) {
  return {{"boot", processes.boot},
          {"namespace", processes.namespace_},
          {"agent", write_mark(processes.agent)},
          {"guardian", write_mark(processes.guardian)}};
}
AgentProcesses read_processes(const Reader& reader) {
  return {reader.text("boot"), static_cast<std::uint64_t>(reader.integer("namespace")),
          read_mark(reader.member("agent")), read_mark(reader.member("guardian"))};
}

object write(const Hello& hello) {
  object message{{"type", "hello"},
                 {"run", hello.run_id},
                 {"who", hello.wants_status   ? "status"
                         : hello.wants_stacks ? "stacks"
                                              : "agent"},
                 {"epoch", hello.epoch},
                 {"start", hello.start},
                 {"host", fit_name(hello.host)},
                 {"user", fit_name(hello.user)},
                 {"stacks", hello.stacks},
                 {"saves", hello.saves}};
  if (hello.at_work) {
    object at_work = write_member(hello.at_work->member);
    at_work["left"] = write_grace(hello.at_work->left);
    message["at_work"] = std::move(at_work);
  }
  if (hello.processes) message["processes"] = write(*hello.processes);
  return message;
}
object write(const Join& join) {
  object message = write_member(join);
  message["type"] = "join";
  return message;
}
object write(const Stopping& stopping) {
  return {{"type", "stopping"}, {"left", write_grace(stopping.left)}};
}
json::object write(const Started& started) {
  return {{"type", "started"}, {"round", started.round}};
}
json::object write(const Failed& failed) {
  return {{"type", "failed"},
          {"round", failed.round},
          {"cause", write_cause(failed.cause)},
          {"goes_on", failed.goes_on}};
}
json::object write(const Succeeded& done) {
  return {{"type", "succeeded"}, {"round", done.round}};
}
json::object write(const Leaving& leaving) {
  return {
      {"type", "leaving"},      {"why", leaving.why},       {"grace", write_grace(leaving.grace)},
      {"ended", leaving.ended}, {"unable", leaving.unable}, {"killed", leaving.killed}};
}
json::object write(const AskStacks&) {
  return {{"type", "ask_stacks"}};
}
json::object write(const Heartbeat&) {
  return {{"type", "heartbeat"}};
}

json::object write(const Welcome& welcome) {
  return {{"type", "welcome"},
          {"run", welcome.run_id},
          {"epoch", welcome.epoch},
          {"stand_alone", welcome.stand_alone},
          {"heartbeat_interval", to_seconds(welcome.heartbeat)},
          {"heartbeats_missed", welcome.heartbeats_missed},
          {"fences", welcome.fences},
          {"world", write_previous(welcome.world)},
          {"stacks", welcome.stacks},
          {"saves", welcome.saves}};
}
json::object write(const Refusal& refusal) {
  object message{{"type", "refuse"}, {"text", refusal.text}, {"final", refusal.final}};
  if (refusal.misuse) message["misuse"] = true;
  return message;
}
json::object write(const NewEpoch& epoch) {
  return {{"type", "epoch"}, {"epoch", epoch.epoch}};
}
json::object write(const StatusText& status) {
  return {{"type", "status"}, {"status", status.json}};
}
json::object write(const RoundReady& ready) {
  return write_round(ready.round);
}
json::object write(const Restart& restart) {
  object message{{"type", "restart"},
                 {"cause", write_cause(restart.cause)},
                 {"spent", restart.attempt_spent},
                 {"left", restart.restarts_left}};
  if (restart.delay > Duration::zero()) message["delay"] = write_grace(restart.delay);
  if (restart.memory) message["memory"] = write_memory(*restart.memory);
  if (!restart.role.empty()) message["role"] = restart.role;
  return message;
}
json::object write(const Done& done) {
  object message{{"type", "done"}, {"failed", done.failed}, {"cause", write_cause(done.cause)}};
  if (done.memory) message["memory"] = write_memory(*done.memory);
  if (done.restarts_left >= 0) message["left"] = done.restarts_left;
  return message;
}
json::object write(const Spare& spare) {
  return {{"type", "spare"}, {"ahead", spare.ahead}, {"world", write_previous(spare.world)}};
}
json::object write(const Lost& lost) {
  object message{{"type", "lost"}, {"why", lost.why}, {"requeue", lost.requeue}};
  if (lost.misuse) message["misuse"] = true;
  return message;
}
json::object write(const Progress& progress) {
  return {{"type", "progress"},
          {"text", progress.text},
          {"present", progress.present},
          {"wanted", progress.wanted}};
}
json::object write(const Push& push) {
  return std::visit([](const auto& each) { return write(each); }, push);
}

Join read_join(const Reader& reader) {
  Join join;
  join.node = read_node(reader.member("node"));
  join.previous = read_previous(reader.member("previous"));
  join.rules = read_rules(reader.member("rules"));
  join.knows = read_previous(reader.member("knows"));
  join.node.grace = read_grace(reader, "grace", kUsualGrace);
  join.node.memory = read_memory_of(reader);
  join.node.fault = reader.text("fault");
  join.node.topology = read_topology(reader);
  return join;
}

Hello read_hello(const Reader& reader) {
  Hello hello{reader.text("run"),      reader.text("who") == "status",
              reader.integer("epoch"), reader.text("start"),
              reader.name("host"),     reader.name("user")};
  hello.wants_stacks = reader.text("who") == "stacks";
  hello.stacks = reader.flag("stacks");
  hello.saves = reader.flag("saves");
  if (reader.has("processes")) hello.processes = read_processes(reader.member("processes"));
  if (!reader.has("at_work")) return hello;
  const Reader member = reader.member("at_work");
  hello.at_work = {read_join(member), read_grace(member, "left")};
  return hello;
}

Welcome read_welcome(const Reader& reader) {
  const double heartbeat = reader.number("heartbeat_interval", 0.001, 1e6, 5);
  // Their product becomes a time, which has to fit.
  const auto missed = static_cast<double>(reader.integer("heartbeats_missed", 1, kMaxCount));
  return {reader.text("run"),
          reader.integer("epoch"),
          reader.flag("stand_alone"),
          from_seconds(heartbeat),
          static_cast<int>(std::min(missed, kLongestSilence / heartbeat)),
          reader.flag("fences"),
          read_previous(reader.member("world")),
          reader.flag("stacks"),
          reader.flag("saves")};
}

Done read_done(const Reader& reader) {
  return {reader.flag("failed"), read_cause(reader.member("cause")), read_memory_of(reader),
          static_cast<int>(reader.integer("left", -1, kMaxCount, -1))};
}

Restart read_restart(const Reader& reader) {
  return {read_cause(reader.member("cause")),
          reader.flag("spent"),
          static_cast<int>(reader.integer("left", 0, kMaxCount)),
          read_grace(reader, "delay"),
          read_memory_of(reader),
          reader.text("role")};
}

Progress read_progress(const Reader& reader) {
  return {reader.text("text"), static_cast<int>(reader.integer("present", 0, kMaxCount)),
          static_cast<int>(reader.integer("wanted", 0, kMaxCount))};
}

}  // namespace

std::string encode(const FromAgent& message) {
  return to_wire(std::visit([](const auto& each) { return write(each); }, message));
}

std::string encode(const FromCoordinator& message) {
  const bool is_status = std::holds_alternative<StatusText>(message);
  return to_wire(std::visit([](const auto& each) { return write(each); }, message),
                 is_status ? kLongestStatus : kLongestSent);
}

// What is missing has its default and what is unknown is not looked at, so that two releases which
// speak one version of the protocol can meet. A member of the wrong kind makes the message unsound.
Result<FromAgent> decode_from_agent(std::string_view text) {
  const auto value = parse_json(text);
  if (!value) return std::unexpected(value.error());
  bool sound = true;
  const Reader reader(*value, sound);
  const std::string kind = reader.text("type");
  FromAgent message = Heartbeat{};
  if (kind == "hello") {
    message = read_hello(reader);
  } else if (kind == "join") {
    message = read_join(reader);
  } else if (kind == "started") {
    message = Started{reader.integer("round")};
  } else if (kind == "failed") {
    message =
        Failed{reader.integer("round"), read_cause(reader.member("cause")), reader.flag("goes_on")};
  } else if (kind == "succeeded") {
    message = Succeeded{reader.integer("round")};
  } else if (kind == "leaving") {
    message = Leaving{reader.text("why"), read_grace(reader, "grace"), reader.flag("ended"),
                      reader.flag("unable"), reader.flag("killed")};
  } else if (kind == "stopping") {
    message = Stopping{read_grace(reader, "left")};
  } else if (kind == "progress") {
    message = read_progress_report(reader);
  } else if (kind == "stacks") {
    message = read_node_stacks(reader);
  } else if (kind == "ask_stacks") {
    message = AskStacks{};
  } else if (kind == "reached") {
    message = read_reached(reader);
  } else if (kind == "preempt") {
    message = read_ask_preempt(reader);
  } else if (kind != "heartbeat") {
    return unknown_message(kind);
  }
  // One look for all members: the reader has noted any of the wrong kind.
  if (!sound) return unsound_message(kind);
  return message;
}

Result<FromCoordinator> decode_from_coordinator(std::string_view text) {
  const auto value = parse_json(text);
  if (!value) return std::unexpected(value.error());
  bool sound = true;
  const Reader reader(*value, sound);
  const std::string kind = reader.text("type");
  FromCoordinator message = Heartbeat{};
  if (kind == "welcome") {
    message = read_welcome(reader);
  } else if (kind == "round") {
    message = RoundReady{read_round(reader)};
  } else if (kind == "restart") {
    message = read_restart(reader);
  } else if (kind == "done") {
    message = read_done(reader);
  } else if (kind == "spare") {
    message = Spare{static_cast<int>(reader.integer("ahead", 0, kMaxCount)),
                    read_previous(reader.member("world"))};
  } else if (kind == "lost") {
    message = Lost{reader.text("why"), reader.flag("requeue"), reader.flag("misuse")};
  } else if (kind == "progress") {
    message = read_progress(reader);
  } else if (kind == "refuse") {
    message = Refusal{reader.text("text"), reader.flag("final"), reader.flag("misuse")};
  } else if (kind == "epoch") {
    message = NewEpoch{reader.integer("epoch")};
  } else if (kind == "status") {
    message = StatusText{reader.text("status", kLongestStatus)};
  } else if (auto stacks = read_stacks_push(kind, reader)) {
    message = std::move(*stacks);
  } else if (auto preemption = read_preemption_push(kind, reader)) {
    message = std::move(*preemption);
  } else if (kind != "heartbeat") {
    return unknown_message(kind);
  }
  if (!sound) return unsound_message(kind);
  return message;
}

}  // namespace elastrun::rendezvous
