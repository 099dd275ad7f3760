// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <string>
#include <vector>

/// Recorded conversations with a TCPStore server, as tests/data/tcpstore-wire-vectors.json has
/// them: what each connection sent and what came back, in order.
namespace elastrun::vectors {

struct Step {
  enum class Kind { Send, Receive, End, Close, ShutdownWrite } kind = Kind::Send;
  char connection = 'A';
  std::string bytes;  // of Send and Receive
  bool operator==(const Step&) const = default;
};

struct Recording {
  std::string name;
  std::vector<Step> steps;
  bool closed_by_server = false;  // connection A, at the latest after the last step
  bool defect = false;            // recorded as it is; a better server need not do the same
  bool unordered_tail = false;    // the last answer lists keys in any order
};

/// Reads such a file; throws where it is not one.
std::vector<Recording> read_recordings(const std::string& path);

/// What this server does where the recorded one has a defect, by name of the entry.
struct Better {
  std::string name;
  std::string why;
  std::vector<Step> steps;
};
const std::vector<Better>& better_behaviour();

/// Plays the client's side of the steps to a fresh server over real sockets; fails with Protocol
/// and says at which step the server did something else. Silence is checked by what is there once
/// server and network are at rest, not by waiting.
Status replay_over_sockets(const Recording& recording);

/// The same through an Exchange without sockets, each send in pieces of `piece` bytes.
Status replay_in_pieces(const Recording& recording, std::size_t piece);

}  // namespace elastrun::vectors
