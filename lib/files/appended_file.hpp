// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "files/backlog.hpp"
#include "files/blocking_calls.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace elastrun::files {

/// A file that grows at its end, opened and written by the thread of `BlockingCalls`, so that a
/// file system that hangs delays only the writers of this very file.
///
/// write() takes everything at once. Who can wait asks full() before, and is told by when_room().
/// A file that cannot be opened or written (a full disk, no permission) costs what does not fit,
/// counted and said once. Destroying it closes the file when all is written.
class AppendedFile {
 public:
  static constexpr std::size_t kFull = 1 << 20;
  static constexpr std::size_t kMost = 16 << 20;
  struct Form {
    int flags = O_TRUNC;  // with O_CREAT, O_APPEND and O_CLOEXEC
    mode_t mode = 0666;
    /// A torn line, of an earlier process or of a disk that was full, is closed off before the next
    /// piece; lost() counts lines instead of bytes.
    bool whole_lines = false;
    /// From this size on the next part (files/parts.hpp) is begun between two pieces, and the old
    /// one synced; where it cannot be made, this one goes on. What is there is gone on with. 0: one
    /// file.
    std::uint64_t part_size = 0;
    std::size_t full = kFull;
    BlockingCalls* syncs = nullptr;  // whose thread syncs, and waits for the disk; null: `calls`'s
    const char* area = "logs";       // of the warning; null: the owner says it, by trouble()
    const char* cost = "what does not fit is dropped, the job goes on";
  };

  /// Borrows `calls`, and `syncs` of the form. The file is made soon.
  AppendedFile(BlockingCalls& calls, std::string path, Form form);
  /// The same for a file that the caller has opened and keeps open: `name` is for people.
  AppendedFile(BlockingCalls& calls, std::string name, int fd, Form form);
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;

  void write(std::string_view bytes);
  /// The same for buffers, of which large ones (Backlog) are shared with the thread: do not change
  /// them afterwards. It is woken once for all.
  void write(const std::vector<Backlog::Piece>& buffers);
  /// What was written until now is to outlive a crash of this machine (fdatasync(2)), as soon as
  /// the threads and the loop come to it; several calls may become one. What the disk does not take
  /// is a loss like that of write().
  void sync();
  bool full() const;
  /// Runs `go` once on the loop when there is room, never inside this call.
  void when_room(std::function<void()> go);
  /// `go` runs on the loop whenever some of what waited is written or lost.
  void on_progress(std::function<void()> go);
  const std::string& path() const { return *path_; }
  std::size_t waiting() const;  // bytes, with those that are being written
  std::uint64_t written() const;
  std::uint64_t lost() const;
  std::uint64_t synced() const;  // how often
  int trouble() const;           // the errno of the first loss, or 0

 private:
  struct State;
  void schedule();
  void turn_made();
  void sync_next();
  void tell_room();

  BlockingCalls& calls_;
  Lifetime::Token calls_alive_;
  BlockingCalls::What path_;
  std::shared_ptr<State> state_;  // with the threads
  bool syncing_ = false;
  std::vector<std::function<void()>> when_room_;
  std::function<void()> on_progress_;
  boost::asio::any_io_executor busy_loop_;  // keeps the loop running while a writer waits for room
  std::shared_ptr<AppendedFile*> self_;     // null in there once we are gone; for answers
};

}  // namespace elastrun::files
