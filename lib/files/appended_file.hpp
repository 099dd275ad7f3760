// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "files/blocking_calls.hpp"

#include <algorithm>
#include <boost/asio/any_io_executor.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace elastrun::files {

/// Large buffers that one thread fills and others read. They come back by themselves: fresh memory
/// for each would be mapped and faulted in, 4 KiB at a time. For all threads.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  static constexpr std::size_t kBytes = 128 << 10;  // capacity of one
  static constexpr std::size_t kKept = 16;          // unused ones; the others are freed
  using Buffer = std::shared_ptr<std::string>;

  Buffer take() {
    std::unique_ptr<std::string> buffer;
    {
      const std::lock_guard lock(mutex_);
      if (!unused_.empty()) {
        buffer = std::move(unused_.back());  // used last: it is still in a cache
        unused_.pop_back();
      }
    }
    if (!buffer) buffer = std::make_unique<std::string>();
    buffer->reserve(kBytes);
    return {buffer.release(), [home = shared_from_this()](std::string* used) {
              home->give_back(std::unique_ptr<std::string>(used));
            }};
  }

 private:
  void give_back(std::unique_ptr<std::string> buffer) {
    const std::lock_guard lock(mutex_);
    if (unused_.size() < kKept) unused_.push_back(std::move(buffer));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<std::string>> unused_;
};

/// The pieces that wait to be written to one file, within bounds. Pure: users on two threads lock.
///
/// The writer stops at `full` and goes on when half of that is left; so the backlog holds `full`
/// and what came last. Output that would be lost otherwise (the last words of a worker) is taken up
/// to `most`.
class Backlog {
 public:
  static constexpr std::size_t kPiece = BufferPool::kBytes;
  /// Larger ones are not copied. So what waits takes at most twice the memory that it counts.
  static constexpr std::size_t kWorthSharing = kPiece / 2;
  using Piece = std::shared_ptr<const std::string>;

  Backlog(std::size_t full, std::size_t most) : full_(full), most_(most) {}

  /// How many of the bytes were taken: the first ones. They are copied.
  std::size_t add(std::string_view bytes) {
    const auto taken = bytes.substr(0, room());
    if (taken.empty()) return 0;
    if (!open_ || open_->size() + taken.size() > kPiece) {
      open_ = std::make_shared<std::string>();
      waiting_.push_back(open_);
    }
    open_->append(taken);
    count(taken.size());
    return taken.size();
  }
  /// Adds a buffer, which is shared if that is worth it and all of it may wait; do not change it
  /// then.
  std::size_t add(const Piece& buffer) {
    if (buffer->size() < kWorthSharing || buffer->size() > room()) {
      return add(std::string_view(*buffer));
    }
    open_.reset();
    waiting_.push_back(buffer);
    count(buffer->size());
    return buffer->size();
  }
  /// The oldest piece that waits; it counts until done(). Null: there is none.
  Piece take() {
    if (waiting_.empty()) return nullptr;
    auto piece = std::move(waiting_.front());
    waiting_.pop_front();
    if (piece == open_) open_.reset();
    writing_ = piece->size();
    return piece;
  }
  /// Marks what was taken last as written or lost. True once when there is room again.
  bool done() {
    size_ -= std::exchange(writing_, 0);
    return size_ <= full_ / 2 && std::exchange(was_full_, false);
  }

  bool full() const { return size_ >= full_; }
  bool empty() const { return waiting_.empty(); }  // nothing to take
  std::size_t size() const { return size_; }

 private:
  std::size_t room() const { return most_ - std::min(most_, size_); }
  void count(std::size_t bytes) {
    size_ += bytes;
    if (full()) was_full_ = true;
  }

  std::size_t full_, most_;
  std::deque<Piece> waiting_;
  std::shared_ptr<std::string> open_;  // the last of them, if more may be appended
  std::size_t size_ = 0;               // of what waits and is written
  std::size_t writing_ = 0;            // taken, and not yet done
  bool was_full_ = false;
};

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
    std::size_t full = kFull;
    BlockingCalls* syncs = nullptr;  // whose thread syncs, and waits for the disk; null: `calls`'s
    const char* area = "logs";       // of the warning; null: the owner says it, by counts()
    const char* cost = "what does not fit is dropped, the job goes on";
  };

  /// Borrows `calls`, and `syncs` of the form. The file is made soon; or `fd` is one that the
  /// caller has opened and keeps open, and `path` is for people.
  AppendedFile(BlockingCalls& calls, std::string path, Form form, int fd = -1);
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;

  void write(std::string_view bytes);
  /// Writes buffers, of which large ones (Backlog) are shared with the thread: do not change them
  /// afterwards. Wakes it once for all.
  void write(const std::vector<Backlog::Piece>& buffers);
  /// Makes what was written until now outlive a crash of this machine (fdatasync(2)), as soon as
  /// the threads and the loop come to it; several calls may become one. What the disk does not take
  /// is a loss like that of write().
  void sync();
  bool full() const;
  /// Runs `go` once on the loop when there is room, never inside this call.
  void when_room(std::function<void()> go);
  /// `go` runs on the loop whenever some of what waited is written or lost.
  void on_progress(std::function<void()> go);
  const std::string& path() const { return *path_; }
  struct Counts {
    std::size_t waiting = 0;  // bytes, with those that are being written
    std::uint64_t written = 0, lost = 0;
    std::uint64_t synced = 0;  // how often
    int trouble = 0;           // the errno of the first loss, or 0
  };
  Counts counts() const;

 private:
  struct State;
  template <class Leave>
  void add(Leave leave);
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
