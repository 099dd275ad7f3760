// SPDX-License-Identifier: Apache-2.0
#include "files/appended_file.hpp"

#include "core/log.hpp"
#include "core/unique_fd.hpp"
#include "files/whole_file.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <unistd.h>

namespace elastrun::files {
namespace {

constexpr std::size_t kTurn = 1 << 20;  // then other files have theirs

}  // namespace

// The mutex guards what both threads use; what follows it belongs to the thread of the calls.
struct AppendedFile::State {
  State(BlockingCalls::What name, Form how)
      : path(std::move(name)), form(how), backlog(form.full, kMost) {}
  ~State() {
    // It is the caller's, who closes it: say the agent's stdout.
    if (borrowed) fd.release();
  }

  const BlockingCalls::What path;
  const Form form;
  std::mutex mutex;
  Backlog backlog;
  bool scheduled = false;
  bool tells = false;  // the owner wants to hear of each turn
  bool sync_due = false;
  int to_sync = -1;  // a descriptor for the sync, which closes it; -1: none is due
  Counts counts;     // all but what waits
  bool said = false;

  UniqueFd fd;
  bool borrowed = false;
  int refused = 0;  // errno of open(2)
  std::string why;  // then: the whole sentence
  bool opened = false, torn = false;

  void open() {
    if (std::exchange(opened, true)) return;
    auto named = open_by_name(*path, form.flags | O_WRONLY | O_CREAT | O_APPEND, form.mode);
    if (!named) {
      refused = errno;
      why = named.error().text;
      give_up(refused, {});
    }
    fd = std::move(named).value_or(UniqueFd());
    torn = form.whole_lines && fd && ends_torn(fd.get());
  }

  /// Under the mutex.
  void lose(int number, std::string_view bytes) {
    if (counts.trouble == 0) counts.trouble = number;
    counts.lost += form.whole_lines ? static_cast<std::uint64_t>(std::ranges::count(bytes, '\n'))
                                    : bytes.size();
  }

  void give_up(int number, std::string_view bytes) {
    const std::lock_guard lock(mutex);
    lose(number, bytes);
  }

  void put(std::string_view bytes) {
    open();
    if (!fd) return give_up(refused, bytes);
    while (!bytes.empty()) {
      const ssize_t done = ::write(fd.get(), bytes.data(), bytes.size());
      if (done < 0 && errno == EINTR) continue;
      // Not tried again: the next piece finds out whether there is room.
      // write(2) that takes nothing and gives no error is what some file systems do when they are
      // full; to call it again could go on for ever.
      if (done <= 0) return give_up(done < 0 ? errno : ENOSPC, bytes);
      // Kept up with each write: when the next one fails, the line that it would have ended is half
      // there, and the next piece begins with a LF.
      torn = bytes[static_cast<std::size_t>(done) - 1] != '\n';
      bytes.remove_prefix(static_cast<std::size_t>(done));
      const std::lock_guard lock(mutex);
      counts.written += static_cast<std::uint64_t>(done);
    }
  }

  void warn(int number) const {
    if (form.area == nullptr) return;
    const auto reason = number == ENOBUFS ? "its file system is too slow" : std::strerror(number);
    log::warning(form.area, "{}; {}",
                 why.empty() ? fmt::format("cannot write {}: {}", *path, reason) : why, form.cost);
  }

  /// One turn, which ends early, and returns true, where a writer waits for room.
  bool write_out(bool& again) {
    Backlog::Piece piece;
    for (std::size_t turn = 0;; turn += piece->size()) {
      {
        const std::lock_guard lock(mutex);
        const bool room = turn > 0 && backlog.done();
        const bool over = room || turn >= kTurn;
        again = scheduled = !backlog.empty();
        piece = over ? nullptr : backlog.take();
        if (!piece) return room;
      }
      // Otherwise the first line of this piece would be joined to half a line, and a reader would
      // lose both.
      if (form.whole_lines && torn) put("\n");
      put(*piece);
    }
  }

  /// After a turn. One that left something has another, which ends with this. A copy, because a
  /// sync may outlast the file; where there is none it is tried again with the next.
  bool has_to_sync() {
    const std::lock_guard lock(mutex);
    if (sync_due && backlog.empty()) {
      // Close-on-exec from the start: this thread makes it while the loop may be starting workers.
      if (fd && to_sync < 0) to_sync = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0);
      sync_due = fd && to_sync < 0;
    }
    return to_sync >= 0;
  }

  int take_to_sync() {
    const std::lock_guard lock(mutex);
    return std::exchange(to_sync, -1);
  }

  /// On the thread that syncs.
  void sync(int descriptor) {
    // A FIFO or a terminal has nothing to be synced (EINVAL).
    // fdatasync(2) leaves out the times of the file, but not its new size, without which what was
    // appended could not be read back.
    const bool done = ::fdatasync(descriptor) == 0 || errno == EINVAL;
    if (!done) give_up(errno, {});
    ::close(descriptor);
    const std::lock_guard lock(mutex);
    ++counts.synced;
  }

  /// Once: the errno of a loss that was not reported yet, or 0.
  int news() {
    const std::lock_guard lock(mutex);
    return counts.trouble != 0 && !std::exchange(said, true) ? counts.trouble : 0;
  }
};

/// Leaves something to do; a turn that waits takes it along.
template <class Leave>
void AppendedFile::add(Leave leave) {
  {
    const std::lock_guard lock(state_->mutex);
    leave(*state_);
    if (std::exchange(state_->scheduled, true)) return;
  }
  schedule();
}

AppendedFile::AppendedFile(BlockingCalls& calls, std::string path, Form form, int fd)
    : calls_(calls),
      calls_alive_(calls.token()),
      path_(std::make_shared<const std::string>(std::move(path))),
      state_(std::make_shared<State>(path_, form)),
      self_(std::make_shared<AppendedFile*>(this)) {
  state_->fd.reset(fd);
  state_->opened = state_->borrowed = fd >= 0;
  if (fd < 0) add([](State&) {});
}

AppendedFile::~AppendedFile() {
  *self_ = nullptr;
  // On NFS close(2) waits for all that was written, so that is for the thread, too.
  if (!calls_alive_ || state_->borrowed) return;
  calls_.enqueue(path_, [state = std::move(state_)]() -> BlockingCalls::Outcome {
    if (const int descriptor = state->take_to_sync(); descriptor >= 0) ::close(descriptor);
    const std::lock_guard lock(state->mutex);
    if (state->scheduled) return {{}, true};  // what is left to be written comes first
    // There a full disk may be told of only now (close(2)).
    // After EINTR the descriptor is closed all the same on Linux (close(2)): a second call could
    // close one that another thread has just been given.
    if (!state->fd || ::close(state->fd.release()) == 0 || errno == EINTR) return {};
    if (std::exchange(state->said, true)) return {};
    return {[state, number = errno] { state->warn(number); }};
  });
}

void AppendedFile::schedule() {
  calls_.enqueue(path_, [state = state_, self = self_]() -> BlockingCalls::Outcome {
    state->open();
    BlockingCalls::Outcome outcome;
    const bool room = state->write_out(outcome.again);
    const bool syncs = state->has_to_sync();
    const int news = state->news();
    const std::lock_guard lock(state->mutex);
    if (!room && news == 0 && !syncs && !state->tells) return outcome;
    outcome.answer = [state, self, news] {
      if (news != 0) state->warn(news);
      if (*self != nullptr) (*self)->turn_made();
    };
    return outcome;
  });
}

/// One at a time: what comes meanwhile is synced together.
void AppendedFile::sync_next() {
  if (syncing_) return;
  const int descriptor = state_->take_to_sync();
  if (descriptor < 0) return;
  syncing_ = true;
  // A disk takes its time for a sync. With a thread for it, other files are written meanwhile.
  auto& calls = state_->form.syncs != nullptr ? *state_->form.syncs : calls_;
  calls.enqueue(path_, [state = state_, self = self_, descriptor] {
    state->sync(descriptor);
    return BlockingCalls::Outcome{[state, self, news = state->news()] {
      if (news != 0) state->warn(news);
      if (*self == nullptr) return;
      (*self)->syncing_ = false;
      (*self)->sync_next();
    }};
  });
}

void AppendedFile::write(std::string_view bytes) {
  if (bytes.empty()) return;
  add([bytes](State& state) {
    const auto taken = state.backlog.add(bytes);
    if (taken < bytes.size()) state.lose(ENOBUFS, bytes.substr(taken));
  });
}

void AppendedFile::write(const std::vector<Backlog::Piece>& buffers) {
  if (buffers.empty()) return;
  add([&buffers](State& state) {
    for (const auto& buffer : buffers) {
      const auto taken = state.backlog.add(buffer);
      if (taken < buffer->size()) state.lose(ENOBUFS, std::string_view(*buffer).substr(taken));
    }
  });
}

void AppendedFile::sync() {
  add([](State& state) { state.sync_due = true; });
}

bool AppendedFile::full() const {
  const std::lock_guard lock(state_->mutex);
  return state_->backlog.full();
}

AppendedFile::Counts AppendedFile::counts() const {
  const std::lock_guard lock(state_->mutex);
  auto counts = state_->counts;
  counts.waiting = state_->backlog.size();
  return counts;
}

void AppendedFile::on_progress(std::function<void()> go) {
  on_progress_ = std::move(go);
  const std::lock_guard lock(state_->mutex);
  state_->tells = static_cast<bool>(on_progress_);
}

void AppendedFile::turn_made() {
  sync_next();
  tell_room();
  if (on_progress_) on_progress_();
}

void AppendedFile::when_room(std::function<void()> go) {
  when_room_.push_back(std::move(go));
  if (!full()) return tell_room();
  // Room is made by the thread, of which the loop knows nothing: with nothing else to do it would
  // return from run(), and the one that waits would never be told.
  busy_loop_ = boost::asio::prefer(calls_.loop(), boost::asio::execution::outstanding_work.tracked);
}

void AppendedFile::tell_room() {
  busy_loop_ = {};
  // Posted, because when_room() may find room at once: its caller is then still in the middle of
  // what made it wait. Taken out first, because one that goes may wait again.
  for (auto& go : std::exchange(when_room_, {})) boost::asio::post(calls_.loop(), std::move(go));
}

}  // namespace elastrun::files
