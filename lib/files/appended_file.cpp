// SPDX-License-Identifier: Apache-2.0
#include "files/appended_file.hpp"

#include "core/log.hpp"
#include "core/unique_fd.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <sys/stat.h>
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
    if (borrowed) fd.release();
  }

  const BlockingCalls::What path;
  const Form form;
  std::mutex mutex;
  Backlog backlog;
  bool scheduled = false;
  bool tells = false;  // whoever is told of each turn
  bool sync_due = false;
  std::uint64_t lost = 0, written = 0, synced = 0;
  int trouble = 0;  // the errno of the first loss
  bool said = false;

  UniqueFd fd;
  bool borrowed = false;
  int refused = 0;  // errno of open(2)
  bool opened = false, torn = false;

  void open() {
    if (std::exchange(opened, true)) return;
    // Reading is for the last byte only: a FIFO opened for both would never wait for its reader.
    const int access = form.whole_lines ? O_RDWR : O_WRONLY;
    fd.reset(
        ::open(path->c_str(), access | O_CREAT | O_APPEND | O_CLOEXEC | form.flags, form.mode));
    if (!fd) {
      refused = errno;
      give_up(refused, {});
    } else if (form.whole_lines) {
      struct stat info {};
      char last = '\n';
      const bool some = ::fstat(fd.get(), &info) == 0 && info.st_size > 0;
      torn = some && ::pread(fd.get(), &last, 1, info.st_size - 1) == 1 && last != '\n';
    }
  }

  /// Under the mutex.
  void lose(int number, std::string_view bytes) {
    if (trouble == 0) trouble = number;
    lost += form.whole_lines ? static_cast<std::uint64_t>(std::ranges::count(bytes, '\n'))
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
      if (done <= 0) return give_up(done < 0 ? errno : ENOSPC, bytes);
      torn = bytes[static_cast<std::size_t>(done) - 1] != '\n';
      bytes.remove_prefix(static_cast<std::size_t>(done));
      const std::lock_guard lock(mutex);
      written += static_cast<std::uint64_t>(done);
    }
  }

  void warn(int number) const {
    if (form.area == nullptr) return;
    log::warning(form.area, "cannot write {}: {}; {}", *path,
                 number == ENOBUFS ? "its file system is too slow" : std::strerror(number),
                 form.cost);
  }

  /// One turn, which ends early where somebody is to be told of room: then true.
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
      if (form.whole_lines && torn) put("\n");
      put(*piece);
    }
  }

  /// After a turn. One that left something has another, which ends with this.
  void sync_if_due() {
    {
      const std::lock_guard lock(mutex);
      if (!sync_due || !backlog.empty()) return;
      sync_due = false;
    }
    // A FIFO or a terminal has nothing to be synced (EINVAL).
    const int refused_sync = !fd || ::fdatasync(fd.get()) == 0 || errno == EINVAL ? 0 : errno;
    const std::lock_guard lock(mutex);
    synced += fd ? 1 : 0;
    if (refused_sync != 0) lose(refused_sync, {});
  }
};

AppendedFile::AppendedFile(BlockingCalls& calls, std::string path, Form form)
    : calls_(calls),
      calls_alive_(calls.token()),
      path_(std::make_shared<const std::string>(std::move(path))),
      state_(std::make_shared<State>(path_, form)),
      self_(std::make_shared<AppendedFile*>(this)) {
  state_->scheduled = true;
  schedule();
}

AppendedFile::AppendedFile(BlockingCalls& calls, std::string name, int fd, Form form)
    : calls_(calls),
      calls_alive_(calls.token()),
      path_(std::make_shared<const std::string>(std::move(name))),
      state_(std::make_shared<State>(path_, form)),
      self_(std::make_shared<AppendedFile*>(this)) {
  state_->fd.reset(fd);
  state_->opened = state_->borrowed = true;
}

AppendedFile::~AppendedFile() {
  *self_ = nullptr;
  // On NFS close(2) waits for all that was written, so that is for the thread, too.
  if (!calls_alive_ || state_->borrowed) return;
  calls_.enqueue(path_, [state = std::move(state_)]() -> BlockingCalls::Outcome {
    const std::lock_guard lock(state->mutex);
    if (state->scheduled) return {{}, true};  // what is left to be written comes first
    // There a full disk may be told of only now (close(2)).
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
    state->sync_if_due();
    const std::lock_guard lock(state->mutex);
    const int trouble = state->trouble;
    const bool news = trouble != 0 && !std::exchange(state->said, true);
    if (!room && !news && !state->tells) return outcome;
    outcome.answer = [state, self, news, trouble] {
      if (news) state->warn(trouble);
      if (*self != nullptr) (*self)->turn_made();
    };
    return outcome;
  });
}

void AppendedFile::write(std::string_view bytes) {
  if (bytes.empty()) return;
  {
    const std::lock_guard lock(state_->mutex);
    const auto taken = state_->backlog.add(bytes);
    if (taken < bytes.size()) state_->lose(ENOBUFS, bytes.substr(taken));
    if (std::exchange(state_->scheduled, true)) return;
  }
  schedule();
}

void AppendedFile::write(const std::vector<Backlog::Piece>& buffers) {
  if (buffers.empty()) return;
  {
    const std::lock_guard lock(state_->mutex);
    for (const auto& buffer : buffers) {
      const auto taken = state_->backlog.add(buffer);
      if (taken < buffer->size()) state_->lose(ENOBUFS, std::string_view(*buffer).substr(taken));
    }
    if (std::exchange(state_->scheduled, true)) return;
  }
  schedule();
}

void AppendedFile::sync() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->sync_due = true;
    if (std::exchange(state_->scheduled, true)) return;
  }
  schedule();
}

bool AppendedFile::full() const {
  const std::lock_guard lock(state_->mutex);
  return state_->backlog.full();
}

std::uint64_t AppendedFile::lost() const {
  const std::lock_guard lock(state_->mutex);
  return state_->lost;
}

std::uint64_t AppendedFile::synced() const {
  const std::lock_guard lock(state_->mutex);
  return state_->synced;
}

std::size_t AppendedFile::waiting() const {
  const std::lock_guard lock(state_->mutex);
  return state_->backlog.size();
}

std::uint64_t AppendedFile::written() const {
  const std::lock_guard lock(state_->mutex);
  return state_->written;
}

int AppendedFile::trouble() const {
  const std::lock_guard lock(state_->mutex);
  return state_->trouble;
}

void AppendedFile::on_progress(std::function<void()> go) {
  on_progress_ = std::move(go);
  const std::lock_guard lock(state_->mutex);
  state_->tells = static_cast<bool>(on_progress_);
}

void AppendedFile::turn_made() {
  tell_room();
  if (on_progress_) on_progress_();
}

void AppendedFile::when_room(std::function<void()> go) {
  when_room_.push_back(std::move(go));
  if (!full()) return tell_room();
  busy_loop_ = boost::asio::prefer(calls_.loop(), boost::asio::execution::outstanding_work.tracked);
}

void AppendedFile::tell_room() {
  busy_loop_ = {};
  for (auto& go : std::exchange(when_room_, {})) boost::asio::post(calls_.loop(), std::move(go));
}

}  // namespace elastrun::files
