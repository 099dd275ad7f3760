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

/// Reads such a file. Fails with Io, or with Protocol and a sentence that names the entry and says
/// what is wrong with it.
Result<std::vector<Recording>> read_recordings(const std::string& path);

/// What this server does where the recorded one has a defect, by name of the entry.
struct Better {
  std::string name;
  std::string why;
  std::vector<Step> steps;
};
const std::vector<Better>& better_behaviour();

}  // namespace elastrun::vectors
