// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/text.hpp"
#include "rendezvous/membership/state.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <doctest/doctest.h>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// A few words in which tests of the rendezvous are written: a job, its agents by letter, and what
/// each was told last.
namespace elastrun::rendezvous::test {

using namespace std::chrono_literals;

inline Node make_node(const std::string& name, int workers = 1) {
  Node node;
  node.id = name + "_1_0";
  node.address = name;
  node.store_port = 29000;
  node.local_world_size = workers;
  return node;
}

inline Rules make_rules(int min_nodes, int max_nodes, int max_restarts = 0) {
  Rules rules;
  rules.min_nodes = min_nodes;
  rules.max_nodes = max_nodes;
  rules.max_restarts = max_restarts;
  return rules;
}

/// One way in which a story goes on.
struct Way {
  const char* title;
  const char* steps;
};

/// Plays stories of steps that are told in one text:
///
///   join a b=1             b: with node rank 1
///   join c@2.7/3*1         out of round 7 of epoch 2, of 3 nodes, with 1 restart spent
///   fail a b=7             b: with exit code 7; also gpu (a fault of a device), victim (blames a
///                          peer), finish, leave, hear
///   end a                  its connection has ended: its group has, too
///   closed, broken, silent a
///                          see Loss; one that has left keeps its name
///   stopping a 40s         it has heard that it is to stop
///   arrive a@1.7/2 30s     over a new connection, while its group is being stopped
///   40s, 100ms             time passes; follow, return: kTimeToFollow, kTimeToReturn
///   hold, release          the coordinator is not sure of its election, and is again
///   gone 70s               the inherited world has ended, and its members end within that
///   due 2s                 something is due by then
///   a b: 0/2#1             so both were assigned last (Script::assignment); a: -: nothing
///   a: restart             the last word was that; also round, done, well (done, not failed), bad,
///                          spare, lost, progress; a: not done: another one
///   a: 'text'              the text of the last word; '..text': its end
///   a: NodeLost            its cause; also by b, code 7, free and spent (of a restart), attempt 2
///                          (of a round)
///   after 45s a: 0/1#2     so then, and nothing before
///   attempt 1              of the job; also left (restarts), returning (nodes), members
///   nothing to record      no world waits for that
struct Script {
  explicit Script(Rules rules, std::string master_addr = {}, std::uint16_t master_port = 0)
      : state(rules, "job", std::move(master_addr), master_port) {}

  void join(const std::string& name, PreviousWorld previous = {}, int node_rank = -1) {
    if (!peers.contains(name)) peers[name] = ++last_peer;
    Node node = make_node(name);
    node.node_rank = node_rank;
    node.grace = grace;
    state.join(peers[name], std::move(node), previous, now);
    read();
  }
  void fail(const std::string& name, int exit_code = 1) {
    Cause cause;
    cause.node = name;
    cause.exit_code = exit_code;
    state.fail(peers[name], state.round_number(), cause, now);
    read();
  }
  /// By its own words because a peer went away.
  void fail_of_peer(const std::string& name) {
    Cause cause;
    cause.node = name;
    cause.blames_peer = true;
    state.fail(peers[name], state.round_number(), cause, now);
    read();
  }
  /// As a fault of a device of that node.
  void fail_of_gpu(const std::string& name) {
    Cause cause;
    cause.node = name + "_1_0";
    cause.what = spec::CauseClass::Gpu;
    state.fail(peers[name], state.round_number(), cause, now);
    read();
  }
  void succeed(const std::string& name) {
    state.succeed(peers[name], state.round_number(), now);
    read();
  }
  void hear(const std::string& name) {
    state.hear(peers[name], now);
    read();
  }
  void lose(const std::string& name, Loss loss = Loss::Ended) {
    state.depart(peers[name], "connection reset", now, loss);
    peers.erase(name);
    read();
  }
  /// Told to stop, it says that it has heard that.
  void acknowledge(const std::string& name, Duration left) {
    state.stopping(peers[name], left, now);
    read();
  }
  /// It comes over a new connection while its group is being stopped.
  void arrive_stopping(const std::string& name, const PreviousWorld& previous, Duration left) {
    peers[name] = ++last_peer;
    Node node = make_node(name);
    node.grace = grace;
    state.arrive_stopping(peers[name], node, previous, left, now);
    read();
  }
  void leave(const std::string& name) {
    state.leave(peers[name], "SIGTERM", now);
    peers.erase(name);
    read();
  }
  /// A world of another coordinator may be at work for so long, and so may members of it as
  /// MemberFence::expect has them.
  template <class... Expected>
  void inherit(const PreviousWorld& world, Duration time, Expected... expected) {
    MemberFence fence;
    if constexpr (sizeof...(expected) > 0) fence.expect(world.id, expected...);
    state.inherit({world, now + time, fence});
  }
  void pass(Duration time) {
    now += time;
    state.tick(now);
    read();
  }
  void read() {
    for (const Delivery& delivery : state.take()) {
      for (const auto& [name, peer] : peers) {
        if (peer == delivery.to) told[name].push_back(to_push(delivery.notice));
      }
    }
  }

  /// The last thing that agent was told, or null if it is of another kind.
  template <class T>
  const T* last(const std::string& name) {
    return told[name].empty() ? nullptr : std::get_if<T>(&told[name].back());
  }
  /// "GROUP_RANK/NODES#NUMBER" of the round it was told last, or "".
  std::string assignment(const std::string& name) {
    const auto* ready = last<RoundReady>(name);
    if (ready == nullptr) return "";
    return std::to_string(ready->round.group_rank) + "/" +
           std::to_string(ready->round.group_world_size()) + "#" +
           std::to_string(ready->round.number);
  }
  /// That after so long, and no earlier.
  std::string assignment_after(Duration time, const std::string& name) {
    pass(time - 100ms);
    if (const auto early = assignment(name); !early.empty()) return "too early: " + early;
    pass(100ms);
    return assignment(name);
  }

  void play(std::string_view story) {
    read();
    for (const std::string& step : split(story, '|')) {
      CAPTURE(step);
      if (!trim(step).empty()) play_step(std::string(trim(step)));
    }
  }
  void play(const Way& way) {
    CAPTURE(way.title);
    play(way.steps);
  }

  State state;
  Duration grace{};  // of nodes that join
  TimePoint now{1000s};
  Peer last_peer = 0;
  std::map<std::string, Peer> peers;
  std::map<std::string, std::vector<Push>> told;

 private:
  static Duration duration(const std::string& text) {
    if (text == "follow") return kTimeToFollow;
    if (text == "return") return kTimeToReturn;
    char* unit = nullptr;
    const double number = std::strtod(text.c_str(), &unit);
    REQUIRE_MESSAGE((unit == std::string("s") || unit == std::string("ms")), text);
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(
        unit == std::string("s") ? number * 1000 : number));
  }
  struct Name {
    std::string name;
    PreviousWorld previous{};
    int node_rank = -1;
  };
  static Name name_of(const std::string& word) {
    Name found{word.substr(0, word.find_first_of("@="))};
    if (const auto rank = word.find('='); rank != std::string::npos)
      found.node_rank = std::atoi(word.c_str() + rank + 1);
    if (const auto world = word.find('@'); world != std::string::npos) {
      char* at = nullptr;
      found.previous.id.epoch = std::strtol(word.c_str() + world + 1, &at, 10);
      found.previous.id.round = std::strtol(at + 1, &at, 10);
      found.previous.nodes = static_cast<int>(std::strtol(at + 1, &at, 10));
      if (*at == '*') found.previous.attempt = std::atoi(at + 1);
    }
    return found;
  }
  void end(const std::string& name, const std::string& why, Loss loss) {
    state.depart(peers.contains(name) ? peers[name] : gone[name], why, now, loss);
    peers.erase(name);
    read();
  }
  const Cause* cause_of(const std::string& name) {
    if (const auto* word = last<Restart>(name)) return &word->cause;
    const auto* done = last<Done>(name);
    return done != nullptr ? &done->cause : nullptr;
  }
  std::string text_of(const std::string& name) {
    if (const auto* word = last<Progress>(name)) return word->text;
    const auto* cause = cause_of(name);
    return cause != nullptr ? cause->text : "";
  }
  void check(const std::string& name, const std::string& expected) {
    CAPTURE(name);
    const auto expected_text = expected.substr(1, expected.size() - 2);
    if (expected.starts_with("not ")) {
      CHECK(!was_told(name, expected.substr(4)));
    } else if (expected.starts_with("'..")) {
      CHECK(text_of(name).ends_with(expected_text.substr(2)));
    } else if (expected.starts_with('\'')) {
      CHECK(text_of(name) == expected_text);
    } else if (expected == "-" || expected.find('#') != std::string::npos) {
      CHECK(assignment(name) == (expected == "-" ? "" : expected));
    } else {
      CHECK(was_told(name, expected));
    }
  }
  bool was_told(const std::string& name, const std::string& what) {
    const auto* restart = last<Restart>(name);
    const auto* done = last<Done>(name);
    const auto* round = last<RoundReady>(name);
    const auto words = split(what, ' ');
    if (words.size() == 2) {
      if (words[0] == "attempt") return round && round->round.attempt == std::stoi(words[1]);
      const Cause* cause = cause_of(name);
      if (words[0] == "code") return cause && cause->exit_code == std::stoi(words[1]);
      return words[0] == "by" && cause && cause->node == words[1];
    }
    static const std::vector<std::string> kinds{"WorkerFailed",    "NodeLost", "NodeLeft",
                                                "NodeJoined",      "Closed",   "Preempted",
                                                "CoordinatorLost", "Timeout"};
    if (const auto kind = std::ranges::find(kinds, what); kind != kinds.end()) {
      const Cause* cause = cause_of(name);
      return cause && static_cast<std::ptrdiff_t>(cause->kind) == kind - kinds.begin();
    }
    const std::map<std::string, bool> told{{"restart", restart != nullptr},
                                           {"free", restart != nullptr && !restart->attempt_spent},
                                           {"spent", restart != nullptr && restart->attempt_spent},
                                           {"round", round != nullptr},
                                           {"spare", last<Spare>(name) != nullptr},
                                           {"lost", last<Lost>(name) != nullptr},
                                           {"progress", last<Progress>(name) != nullptr},
                                           {"done", done != nullptr},
                                           {"well", done != nullptr && !done->failed},
                                           {"bad", done != nullptr && done->failed}};
    REQUIRE_MESSAGE(told.contains(what), what);
    return told.at(what);
  }
  void play_step(const std::string& step) {
    if (const auto colon = step.find(": "); colon != std::string::npos) {
      auto names = split(step.substr(0, colon), ' ');
      if (names.front() == "after") {
        CHECK(assignment_after(duration(names[1]), names[2]) == step.substr(colon + 2));
        return;
      }
      for (const auto& name : names) check(name, step.substr(colon + 2));
      return;
    }
    const auto words = split(step, ' ');
    const std::string& verb = words.front();
    if (words.size() == 1) {
      if (verb == "hold" || verb == "release") return state.hold(verb == "hold", now), read();
      return pass(duration(verb));
    }
    const auto [first, previous, rank] = name_of(words[1]);
    if (verb == "attempt") {
      CHECK(state.attempt() == std::stoi(first));
    } else if (verb == "left") {
      CHECK(state.restarts_left() == std::stoi(first));
    } else if (verb == "returning") {
      CHECK(state.quorum().returning == std::stoi(first));
    } else if (verb == "members") {
      CHECK(state.roster().size() == std::stoi(first));
    } else if (step == "nothing to record") {
      CHECK(!state.unacknowledged());
    } else if (verb == "due") {
      REQUIRE(state.deadline());
      CHECK(*state.deadline() <= now + duration(words[1]));
    } else if (verb == "gone") {
      state.disinherit(duration(words[1]), now);
      read();
    } else if (verb == "stopping") {
      acknowledge(first, duration(words[2]));
    } else if (verb == "arrive") {
      arrive_stopping(first, previous, duration(words[2]));
    } else {
      for (std::size_t i = 1; i < words.size(); ++i) play_verb(verb, name_of(words[i]));
    }
  }
  void play_verb(const std::string& verb, const Name& who) {
    const std::string& name = who.name;
    if (verb == "join") return join(name, who.previous, who.node_rank);
    if (verb == "fail") return fail(name, who.node_rank >= 0 ? who.node_rank : 1);
    if (verb == "victim") return fail_of_peer(name);
    if (verb == "gpu") return fail_of_gpu(name);
    if (verb == "finish") return succeed(name);
    if (verb == "hear") return hear(name);
    if (verb == "end") return end(name, "connection reset", Loss::Ended);
    if (verb == "closed") return end(name, "connection reset", Loss::Closed);
    if (verb == "broken") return end(name, "connection reset", Loss::Broken);
    if (verb == "silent") return end(name, "silent", Loss::Silent);
    REQUIRE_MESSAGE(verb == "leave", verb);
    gone[name] = peers[name];
    leave(name);
  }

  std::map<std::string, Peer> gone;  // that have said goodbye
};

}  // namespace elastrun::rendezvous::test
