// SPDX-License-Identifier: Apache-2.0
// tcpstore_vectors FILE: replays recorded conversations with torch's TCPStore server against ours,
// over sockets and, piece by piece, without them. Prints what differs and "N passed, N failed".
//
// An entry marked as a defect of the recorded server passes when ours does the same, or what
// better.cpp says it does instead. If it does neither and better.cpp does not know the entry, it is
// neither passed nor failed but "not judged".
//
// Exit status: 0 all passed, 1 some failed.
#include "core/log.hpp"
#include "vectors/recording.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace {

using namespace elastrun;
using namespace elastrun::vectors;

Status replay(const Recording& recording) {
  if (const auto over = replay_over_sockets(recording); !over) return over;
  for (const std::size_t piece : {1UZ, 7UZ}) {
    const auto whole = replay_in_pieces(recording, piece);
    if (whole) continue;
    return std::unexpected(whole.error().context(fmt::format("in pieces of {} bytes", piece)));
  }
  return {};
}

std::vector<Step> sends(const std::vector<Step>& steps) {
  std::vector<Step> sent;
  std::copy_if(steps.begin(), steps.end(), std::back_inserter(sent),
               [](const Step& step) { return step.kind == Step::Kind::Send; });
  return sent;
}

/// The entry as our better behaviour would have been recorded; nothing if there is none for it.
const Better* better_for(const Recording& recording) {
  for (const auto& better : better_behaviour()) {
    if (better.name == recording.name && sends(better.steps) == sends(recording.steps)) {
      return &better;
    }
  }
  return nullptr;
}

enum class Verdict { Passed, Failed, NotJudged };

Verdict judge(const Recording& recording) {
  const auto same = replay(recording);
  if (same) return Verdict::Passed;
  const Better* better = recording.defect ? better_for(recording) : nullptr;
  if (better == nullptr) {
    const bool excused = recording.defect;
    fmt::print("{} {}: {}\n", excused ? "not judged (a defect of the recorded server)" : "FAILED",
               recording.name, same.error().text);
    return excused ? Verdict::NotJudged : Verdict::Failed;
  }
  const bool closes = std::any_of(better->steps.begin(), better->steps.end(), [](const Step& step) {
    return step.kind == Step::Kind::End && step.connection == 'A';
  });
  const auto improved = replay({recording.name, better->steps, closes, true, false});
  if (!improved) {
    fmt::print("FAILED {}: {}\n", recording.name, improved.error().text);
    return Verdict::Failed;
  }
  fmt::print("better {}: {}\n", recording.name, better->why);
  return Verdict::Passed;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  log::set_level(log::Level::Error);  // many of the conversations are bad on purpose
  const auto recordings = read_recordings(argv[1]);
  int passed = 0, failed = 0, not_judged = 0;
  for (const auto& recording : recordings) {
    const auto verdict = judge(recording);
    passed += verdict == Verdict::Passed;
    failed += verdict == Verdict::Failed;
    not_judged += verdict == Verdict::NotJudged;
  }
  fmt::print("{} passed, {} failed", passed, failed);
  if (not_judged > 0) fmt::print(", {} not judged", not_judged);
  fmt::print("\n");
  return failed == 0 && passed > 0 ? 0 : 1;
}
