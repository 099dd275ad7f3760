// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/files/last_writes.hpp"
#include "agent/files/log_folders.hpp"
#include "agent/files/round_gate.hpp"
#include "agent/files/store_drain.hpp"
#include "files/lanes.hpp"
#include "process/guardian.hpp"
#include "process/signals.hpp"

#include <memory>
#include <string>

namespace elastrun::agent {

/// The directories of a run, from its first round to their end, and what is waited for before this
/// node may go: its files, its console, and workers of other nodes.
class RunFiles {
 public:
  struct Parts {
    boost::asio::io_context& loop;
    Clock& clock;
    guardian::Agent& guardian;
    logs::Console& console;
    files::Lanes& lanes;
    logs::Layout& layout;
    int workers = 1;  // of this node
    std::string role{};
    bool near = true;
    bool keeps_output = false;
    Duration shutdown_timeout{};  // what a signal leaves
    std::function<void(LogFolders::MaybePlace)> channel_found;
  };
  /// Borrows all.
  static std::unique_ptr<RunFiles> make(Parts parts);

  RunFiles(const RunFiles&) = delete;
  RunFiles& operator=(const RunFiles&) = delete;

  /// As RoundGate's: rounds are held back until their directories are there.
  rendezvous::Session::OnPush before(rendezvous::Session::OnPush on_push) {
    return gate_.before(std::move(on_push));
  }
  Result<Folders> take(const rendezvous::Round& round) { return folders_.take(round); }
  /// Whether it was for a wait of this object, which it may end.
  bool signalled(process::Demand demand);
  void shorten() { last_writes_.shorten(); }
  /// Removes what is only temporary, or leaves that to the guardian, if no descriptor is free for
  /// it or its file system does not answer; but not output that -r or -t asked for, nor what
  /// explains a failure. The directory if it stays. A failure waits for no log here: people are
  /// told of it first.
  std::string settle(bool succeeded);
  /// Waits until files and console have it, then for workers of other nodes, who may use the store
  /// of this one for so long.
  void finish(RoundStore& store, Duration store_needed);

 private:
  explicit RunFiles(Parts parts);

  const Parts parts_;
  LogFolders folders_;
  RoundGate gate_;
  LastWrites last_writes_;
  StoreDrain store_drain_;
};

}  // namespace elastrun::agent
