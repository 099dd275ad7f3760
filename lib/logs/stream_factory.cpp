// SPDX-License-Identifier: Apache-2.0

#include "logs/stream_factory.hpp"

#include "core/file_io.hpp"
#include "core/host.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

namespace elastrun::logs {
namespace {

// One check for room instead of three: it runs for each line that a worker prints.
void append_line(std::string& out, std::string_view prefix, std::string_view line) {
  const std::size_t before = out.size(), added = prefix.size() + line.size() + 1;
  // resize_and_overwrite allocates what is asked for and no more.
  if (out.capacity() < before + added) out.reserve(2 * (before + added));
  out.resize_and_overwrite(before + added, [before, prefix, line](char* text, std::size_t size) {
    char* end = std::copy(prefix.begin(), prefix.end(), text + before);
    end = std::copy(line.begin(), line.end(), end);
    *end = '\n';
    return size;
  });
}

/// Returns what a terminal would show in the end. A CR before the LF (CRLF) stays.
std::string_view last_state(std::string_view line) {
  // Nearly no line has one, and string_view would look at its bytes one by one.
  if (std::memchr(line.data(), '\r', line.size()) == nullptr) return line;
  const auto end = line.find_last_not_of('\r');
  if (end == std::string_view::npos) return line;
  const auto cr = line.rfind('\r', end);
  return cr == std::string_view::npos ? line : line.substr(cr + 1);
}

}  // namespace

void LineSplitter::add_line(std::string_view line, Lines& out) const {
  // By the whole line, also by states of a bar that are not shown.
  const bool matches = filter_ && std::ranges::any_of(*filter_, [&](const auto& needle) {
                         return line.contains(needle);
                       });
  line = last_state(line);
  append_line(out.all, prefix_, line);
  if (matches) append_line(out.matching, prefix_, line);
}

void LineSplitter::hold(std::string_view bytes, Lines& out) {
  // A worker that never writes a LF would fill the agent's memory: a line that is too long is cut
  // into several.
  while (held_.size() + bytes.size() > longest_) {
    const auto room = longest_ - held_.size();
    held_.append(bytes.substr(0, room));
    add_line(held_, out);
    held_.clear();
    bytes.remove_prefix(room);
  }
  held_.append(bytes);
}

void LineSplitter::feed(std::string_view bytes, Lines& out) {
  while (!bytes.empty()) {
    const void* end = std::memchr(bytes.data(), '\n', bytes.size());
    if (end == nullptr) return hold(bytes, out);
    const auto size = static_cast<std::size_t>(static_cast<const char*>(end) - bytes.data());
    // Straight from the buffer: nearly all lines are whole in one read, and a copy for each would
    // cost as much as all the rest.
    if (held_.empty() && size <= longest_) {
      add_line(bytes.substr(0, size), out);
    } else {
      hold(bytes.substr(0, size), out);
      add_line(held_, out);
      held_.clear();
    }
    bytes.remove_prefix(size + 1);
  }
}

void LineSplitter::finish(Lines& out) {
  if (!held_.empty()) add_line(held_, out);
  held_.clear();
  held_.shrink_to_fit();
}

void LineSplitter::show_progress(Lines& out) {
  const auto last = held_.rfind('\r');
  if (last == std::string::npos || last == 0) return;
  const auto begin = held_.rfind('\r', last - 1) + 1;  // npos + 1 is 0
  const auto state = std::string_view(held_).substr(begin, last - begin);
  if (!state.empty()) append_line(out.all, prefix_, state);
  // The CR stays at the front: it is the sign that more states may follow.
  held_.erase(0, last);
}

std::string line_prefix(std::string_view form, std::string_view role, int rank, int local_rank) {
  if (form.empty()) return fmt::format("[{}{}]:", role, local_rank);
  return fill_template(form, {{"role_name", std::string(role)},
                              {"rank", fmt::to_string(rank)},
                              {"local_rank", fmt::to_string(local_rank)},
                              {"hostname", host_name()}});
}

namespace {

constexpr std::size_t kMostPieces = 256;  // a traceback comes line by line, each a separate write

using namespace std::chrono_literals;

// One read: large enough to make system calls cheap, small enough to stay in the second-level cache
// on its way to file and console.
constexpr std::size_t kRead = files::BufferPool::kBytes;
// Then others get their turn.
constexpr int kReadsPerTurn = 8;
// Reads at most that are handed over together: each time may wake the thread, which is idle.
constexpr std::size_t kHandedOver = 4;
// What is there now is wanted: enough for a full pipe, and an end if the writer goes on.
constexpr int kReadsInHurry = 64;
// Lines are collected up to this size before they are written.
constexpr std::size_t kSlice = 64 << 10;
// A progress bar without LF is shown this often.
constexpr Duration kProgressInterval = 1s;
// The end of a line follows its text at once, also from a worker that does not buffer (python -u
// writes them one by one): so long, text of others is kept out of the line. No person sees a delay.
constexpr Duration kLineInterval = 20ms;
constexpr std::size_t kLongestPiece = 64 << 10;
// A tee'd line without its end ("Loading... ", a prompt) is shown after so long a silence.
constexpr Duration kSilence = 100ms;

/// True if a line is shown before its end has come. The states of a progress bar are not: they are
/// lines of their own, once a second.
bool is_part(std::string_view held) {
  return !held.empty() && held.size() <= kLongestPiece && !held.contains('\r');
}

}  // namespace

void Tail::add(std::string_view bytes, TimePoint now) {
  pieces_.push_back({total_, now});
  if (pieces_.size() > kMostPieces) pieces_.pop_front();
  total_ += bytes.size();
  // After the total, which counts what is dropped here as well: seen_at() computes offsets in the
  // stream by it.
  if (bytes.size() > bytes_) bytes.remove_prefix(bytes.size() - bytes_);
  // Cut only when twice as long: each byte is then moved once on average.
  if (text_.size() + bytes.size() > 2 * bytes_) {
    text_.erase(0, text_.size() + bytes.size() - bytes_);
  }
  text_.append(bytes);
}

std::optional<TimePoint> Tail::seen_at(std::string_view text) const {
  // The last one: a message may have been logged before it became the error that ended the worker.
  const auto found = text_.rfind(text);
  if (found == std::string::npos) return std::nullopt;
  const auto offset = total_ - text_.size() + found;
  const auto next = std::ranges::upper_bound(pieces_, offset, {}, &Piece::start);
  if (next == pieces_.begin()) return std::nullopt;
  return std::prev(next)->at;
}

/// Memory that all pumps of a job share: one reads at a time, because there is one thread.
struct PumpBuffers {
  std::shared_ptr<files::BufferPool> pool = std::make_shared<files::BufferPool>();
  files::BufferPool::Buffer input;            // null until the first read
  std::vector<files::Backlog::Piece> filled;  // in this turn, for the file
  LineSplitter::Lines lines;
  std::uint64_t out_bytes = 0, err_bytes = 0;  // that have been read in all
  TimePoint last_read = TimePoint::min();
};

/// Says what becomes of the bytes of one stream.
struct PumpRoute {
  enum class Show { Nothing, Raw, Lines };
  std::shared_ptr<files::AppendedFile> file;  // raw bytes; may be null
  Show show = Show::Nothing;
  Console::Stream stream = Console::Stream::Out;
  std::string prefix;                             // with Lines
  std::shared_ptr<const LineFilter> filter;       // with Lines; may be null
  std::shared_ptr<files::AppendedFile> matching;  // set when filter is
  bool keep_tail = false;
};

/// Carries one stream of one worker from its pipe or pseudo-terminal to where it belongs, by the
/// route. Reads as long as the writer has it open; pauses while its own file takes nothing, and
/// while the console is congested: for as long as that lasts if no file has the output, else for
/// 100 ms, after which the console misses lines.
///
/// With Lines, a line whose end has not come is shown after 100 ms of silence, or once the console
/// no longer lags.
class Pump : public std::enable_shared_from_this<Pump> {
 public:
  static constexpr std::size_t kTail = 16 << 10;  // bytes kept for the verdict

  /// Borrows all three, which must outlive the loop's last turn. `source` must be non-blocking.
  Pump(boost::asio::any_io_executor executor, Clock& clock, Console& console,
       std::shared_ptr<PumpBuffers> buffers, UniqueFd source, PumpRoute route)
      : executor_(executor),
        clock_(clock),
        console_(console),
        buffers_(std::move(buffers)),
        route_(std::move(route)),
        source_(executor, source.release()),
        splitter_(route_.prefix, route_.filter) {}

  void start() {
    if (awaiting_ || paused_ || ended_) return;
    awaiting_ = true;
    source_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                       [self = shared_from_this()](const boost::system::error_code&) {
                         self->awaiting_ = false;
                         if (!self->ended_) self->on_readable();
                       });
  }

  /// See WorkerStreams::catch_up: past a file that takes nothing, which has room for it beyond its
  /// limit, and past a congested console, which misses lines.
  void catch_up() {
    if (ended_) return;
    hurried_ = true;
    on_readable();
    hurried_ = false;
  }

  /// See WorkerStreams::drain.
  void drain(bool give_up_rest, std::function<void()> on_drained) {
    on_drained_.push_back(std::move(on_drained));
    if (ended_) return end();
    if (!give_up_rest) return;
    giving_up_ = true;
    catch_up();
  }

  /// Closes the source and forgets who waits.
  void stop() {
    on_drained_.clear();
    if (!std::exchange(ended_, true)) close();
  }

  /// A pseudo-terminal gets the size of the terminal that the console is; a pipe stays as it is.
  void take_size() {
    winsize size{};
    if (ended_ || ::ioctl(outlet().fd(), TIOCGWINSZ, &size) != 0) return;
    ::ioctl(source_.native_handle(), TIOCSWINSZ, &size);  // ENOTTY for a pipe
  }

  const Tail& tail() const { return tail_; }

 private:
  bool has_file() const { return route_.file != nullptr; }
  Outlet& outlet() const { return console_.outlet(route_.stream); }

  void on_readable() {
    for (int i = 0; i < (hurried_ ? kReadsInHurry : kReadsPerTurn); ++i) {
      if (hurried_) {
        if (has_file() && outlet().congested()) outlet().skip_rest();
      } else if (must_wait()) {
        break;
      }
      if (!read_once()) break;
    }
    hand_over();
    watch_unfinished();
    // After what is there has been read: a process that outlives its worker may hold the pipe open,
    // and its end would never come.
    if (giving_up_) end();
    start();
  }

  /// True if nothing may be read now; resume() will come.
  bool must_wait() {
    const auto go = [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->resume();
    };
    // Not reading is how a worker is slowed down: its pipe fills, and its write(2) waits. Nothing
    // is lost that way.
    for (const auto& file : {route_.file, route_.matching}) {
      if (!file || !file->full()) continue;
      paused_ = true;
      file->when_room(go);
      return true;
    }
    if (route_.show == PumpRoute::Show::Nothing || !outlet().congested()) return false;
    if (has_file()) {
      if (outlet().skipping()) return false;
      if (!deadline_) deadline_ = clock_.make_alarm();
      deadline_->arm(clock_.now() + outlet().time_limit(), [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->stop_waiting();
      });
    }
    paused_ = true;
    outlet().when_clear(go);
    return true;
  }

  void resume() {
    if (deadline_) deadline_->disarm();
    // Two may call: the one with room, and the deadline.
    if (std::exchange(paused_, false)) start();
  }

  void stop_waiting() {
    if (paused_ && outlet().congested()) outlet().skip();
    resume();
  }

  /// False: nothing more to read now.
  bool read_once() {
    auto& input = buffers_->input;
    if (!input) input = buffers_->pool->take();
    ssize_t size = 0;
    input->resize_and_overwrite(kRead, [&](char* to, std::size_t room) {
      size = ::read(source_.native_handle(), to, room);
      return static_cast<std::size_t>(std::max<ssize_t>(size, 0));
    });
    if (size > 0) {
      pass_on(input);
      // A read that is not full has emptied the pipe: to look again would cost a system call for
      // EAGAIN each time.
      return static_cast<std::size_t>(size) == kRead || hurried_;
    }
    if (size < 0 && errno == EINTR) return true;
    if (size < 0 && errno == EAGAIN) return false;
    // The master of a pseudo-terminal says EIO, not end of file, when the other side is closed.
    end();
    return false;
  }

  void pass_on(files::BufferPool::Buffer input) {
    const std::string_view bytes = *input;
    const bool out = route_.stream == Console::Stream::Out;
    (out ? buffers_->out_bytes : buffers_->err_bytes) += bytes.size();
    buffers_->last_read = clock_.now();
    // Before anything is shown or filtered: the report quotes what was said, shown or not.
    if (route_.keep_tail) tail_.add(bytes, buffers_->last_read);
    if (route_.file) {
      const bool shared = bytes.size() >= files::Backlog::kWorthSharing;
      if (shared) buffers_->input.reset();  // not read into again while the thread may have it
      buffers_->filled.push_back(input);
      if (!shared || buffers_->filled.size() >= kHandedOver) hand_over();
    }
    if (route_.show == PumpRoute::Show::Raw) pass_raw(bytes);
    if (route_.show == PumpRoute::Show::Lines) pass_lines(bytes);
  }

  void hand_over() {
    if (!buffers_->filled.empty()) route_.file->write(buffers_->filled);
    buffers_->filled.clear();
  }

  void pass_raw(std::string_view bytes) {
    // Whole lines at once; those of a progress bar end by CR.
    const auto last = bytes.find_last_of("\n\r");
    if (last != std::string_view::npos) {
      flush_unfinished();
      console_.write(route_.stream, bytes.substr(0, last + 1), Console::Weight::Output);
      bytes.remove_prefix(last + 1);
    }
    if (bytes.empty()) return;
    if (unfinished_.empty()) unfinished_since_ = clock_.now();
    unfinished_.append(bytes);
    if (unfinished_.size() > kLongestPiece) flush_unfinished();
  }

  void flush_unfinished() {
    if (unfinished_.empty()) return;
    console_.write(route_.stream, std::exchange(unfinished_, {}), Console::Weight::Output);
  }

  void pass_lines(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto slice = bytes.substr(0, kSlice);
      splitter_.feed(slice, buffers_->lines);
      write_lines();
      bytes.remove_prefix(slice.size());
    }
    if (splitter_.held().empty()) return;
    part_shown_ = false;
    last_bytes_ = clock_.now();
  }

  void write_lines() {
    auto& [all, matching] = buffers_->lines;
    if (!all.empty()) {
      console_.write_lines(route_.stream, this, all, has_file());
      part_shown_ = false;
    }
    all.clear();
    if (matching.empty()) return;
    route_.matching->write(matching);
    matching.clear();
  }

  /// When what there is of a line is to be shown without its end; nothing if there is none.
  std::optional<TimePoint> unfinished_until() const {
    if (!unfinished_.empty()) return unfinished_since_ + kLineInterval;
    if (progress_due_) return progress_due_;
    if (!part_shown_ && is_part(splitter_.held())) return last_bytes_ + kSilence;
    return {};
  }

  void watch_unfinished() {
    if (ended_) return;
    if (!splitter_.holds_progress()) {
      progress_due_.reset();
    } else if (!progress_due_) {
      progress_due_ = clock_.now() + kProgressInterval;
    }
    const auto until = unfinished_until();
    // An alarm that comes too early finds nothing due, and is set again: cheaper than to set it for
    // each read.
    if (!until || (armed_for_ && *armed_for_ <= *until)) return;
    if (!alarm_) alarm_ = clock_.make_alarm();
    armed_for_ = until;
    alarm_->arm(*until, [weak = weak_from_this()] {
      if (const auto self = weak.lock(); self && !self->ended_) self->show_unfinished();
    });
  }

  void show_unfinished() {
    armed_for_.reset();
    const auto now = clock_.now();
    if (unfinished_since_ + kLineInterval <= now) flush_unfinished();
    if (progress_due_ && *progress_due_ <= now) {
      progress_due_.reset();
      splitter_.show_progress(buffers_->lines);
      write_lines();
    } else if (!progress_due_ && last_bytes_ + kSilence <= now) {
      const auto held = splitter_.held();
      part_shown_ = !is_part(held) ||
                    console_.show_part(route_.stream, this, route_.prefix + std::string(held));
      // Where the console lags: a worker that waits for an answer says nothing more.
      if (!part_shown_) last_bytes_ = clock_.now();
    }
    if (unfinished_until()) watch_unfinished();  // a younger one than the alarm was set for
  }

  void end() {
    if (!std::exchange(ended_, true)) {
      hand_over();
      close();
      flush_unfinished();
      splitter_.finish(buffers_->lines);
      write_lines();
    }
    for (auto& told : std::exchange(on_drained_, {})) boost::asio::post(executor_, std::move(told));
  }

  void close() {
    boost::system::error_code ignored;
    source_.close(ignored);
    alarm_.reset();
    deadline_.reset();
  }

  // Set at construction
  boost::asio::any_io_executor executor_;
  Clock& clock_;
  Console& console_;
  std::shared_ptr<PumpBuffers> buffers_;
  PumpRoute route_;
  // Changes while running
  boost::asio::posix::stream_descriptor source_;
  LineSplitter splitter_;
  std::string unfinished_;  // with Raw: the start of a line, whose end will follow at once
  TimePoint unfinished_since_{};
  // With Lines, while a line is held: the silence that shows it begins here
  TimePoint last_bytes_{};
  std::optional<TimePoint> progress_due_;  // with Lines: when a progress bar is shown next
  bool part_shown_ = false;                // of the line that is held, all that there is
  Tail tail_{kTail};
  std::unique_ptr<Alarm> alarm_, deadline_;
  std::optional<TimePoint> armed_for_;
  bool awaiting_ = false, paused_ = false, ended_ = false;
  bool hurried_ = false;    // reads on though the reader lags
  bool giving_up_ = false;  // this is the last that is read
  std::vector<std::function<void()>> on_drained_;
};

/// One stream of a worker.
struct Side {
  std::shared_ptr<Pump> pump;  // null: inherited, or shared with the other side
  UniqueFd end;                // the worker's; empty: inherited, or the other side's
  int fd = -1;                 // its number
  std::string path;
};

namespace {

using Show = PumpRoute::Show;

constexpr int kLargestPipe = 1 << 20;   // pipe(7): the limit for everybody
constexpr int kKernelsPipe = 64 << 10;  // pipe(7), too
// Of lines for a report or a page; what goes to files is whole.
constexpr std::size_t kLongestLine = 2000;

/// The bytes that all pipes of this user may hold together; 0: unlimited.
std::int64_t user_pipe_bytes() {
  const auto pages = parse_int(trim(read_kernel_file("/proc/sys/fs/pipe-user-pages-soft")));
  return pages.value_or(0) * ::sysconf(_SC_PAGESIZE);
}

/// A pseudo-terminal that passes bytes on as they are: the agent's terminal does the rest.
bool open_terminal(int like, UniqueFd& ours, UniqueFd& workers) {
  winsize size{};
  const bool has_size = ::ioctl(like, TIOCGWINSZ, &size) == 0;
  // O_NOCTTY: a session leader without a terminal would get this one as its own (open(2)), and
  // SIGHUP with its end.
  ours.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  int unlock = 0;
  if (!ours || ::ioctl(ours.get(), TIOCSPTLCK, &unlock) != 0) return false;
  // By the master and not by ptsname(3): it works where /dev/pts is not mounted, or is that of
  // another namespace (ioctl_tty(2), TIOCGPTPEER).
  workers.reset(::ioctl(ours.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios mode{};
  if (!workers || ::tcgetattr(workers.get(), &mode) != 0) return false;
  ::cfmakeraw(&mode);
  // cfmakeraw(3) takes it away, too.
  mode.c_lflag |= ISIG;
  if (has_size) ::ioctl(workers.get(), TIOCSWINSZ, &size);
  return ::tcsetattr(workers.get(), TCSANOW, &mode) == 0;
}

std::vector<std::string> split_tail(std::string_view tail, std::size_t count) {
  std::vector<std::string> lines;
  while (!tail.empty() && tail.back() == '\n') tail.remove_suffix(1);
  while (!tail.empty() && lines.size() < count) {
    const auto begin = tail.rfind('\n') + 1;  // npos + 1 is 0
    std::string_view line = tail.substr(begin);
    while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    line = line.substr(line.rfind('\r') + 1);  // the last state of a progress bar
    lines.emplace_back(cut(line, kLongestLine));
    tail = tail.substr(0, begin == 0 ? 0 : begin - 1);
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

class PumpedStreams final : public WorkerStreams {
 public:
  PumpedStreams(Side out, Side err) : out_(std::move(out)), err_(std::move(err)) {}
  ~PumpedStreams() override {
    *waiter_ = {};  // an answer that is already queued must not reach anybody
    for (const auto& pump : pumps()) pump->stop();
  }

  int stdout_fd() const override { return out_.fd; }
  int stderr_fd() const override { return err_.fd; }
  void started() override {
    // Once the worker has its copies: while we hold the other end, too, the pipe would have no end
    // of file (pipe(7)).
    out_.end.reset();
    err_.end.reset();
    for (const auto& pump : pumps()) pump->start();
  }

  void catch_up() override {
    for (const auto& pump : pumps()) pump->catch_up();
  }
  void drain(bool give_up_rest, std::function<void()> on_drained) override {
    // The latest call alone is answered; what earlier calls left behind finds another number.
    const auto all = pumps();
    *waiter_ = {waiter_->number + 1, all.size(), std::move(on_drained)};
    for (const auto& pump : all) {
      pump->drain(give_up_rest, [waiter = waiter_, number = waiter_->number] {
        if (waiter->number != number || --waiter->left > 0) return;
        std::exchange(waiter->tell, {})();
      });
    }
  }

  std::vector<std::string> last_lines(std::size_t count) const override {
    const auto* pump = stderr_pump();
    return pump ? split_tail(pump->tail().text(), count) : std::vector<std::string>{};
  }
  std::vector<std::string> last_stdout_lines(std::size_t count) const override {
    if (!out_.pump || mixes_streams()) return {};
    return split_tail(out_.pump->tail().text(), count);
  }
  bool mixes_streams() const override { return err_.pump && out_.fd == err_.fd; }
  bool knows_all_lines() const override {
    const auto* pump = stderr_pump();
    return !pump || pump->tail().is_whole();
  }
  std::optional<TimePoint> seen_at(std::string_view text) const override {
    const auto* pump = stderr_pump();
    return pump ? pump->tail().seen_at(text) : std::nullopt;
  }
  std::string stdout_path() const override { return out_.path; }
  std::string stderr_path() const override { return err_.path; }

 private:
  const Pump* stderr_pump() const { return err_.pump ? err_.pump.get() : out_.pump.get(); }
  std::vector<std::shared_ptr<Pump>> pumps() const {
    std::vector<std::shared_ptr<Pump>> all;
    if (out_.pump) all.push_back(out_.pump);
    if (err_.pump) all.push_back(err_.pump);
    return all;
  }

  struct Waiter {
    int number = 0;  // of the call to drain
    std::size_t left = 0;
    std::function<void()> tell;
  };
  Side out_, err_;
  std::shared_ptr<Waiter> waiter_ = std::make_shared<Waiter>();
};

}  // namespace

int pipe_size(int workers, std::int64_t user_bytes) {
  int size = kLargestPipe;
  const auto taken = [&] { return std::int64_t{2} * workers * size; };
  // Half of what the user may have: beyond the soft limit a new pipe has one or two pages
  // (pipe(7)), for all of the user's programs. The default of 64 MiB gives 16 workers 1 MiB for
  // each stream.
  while (user_bytes > 0 && size > kKernelsPipe && taken() > user_bytes / 2) size /= 2;
  // 0: F_SETPIPE_SZ is not called, and the pipe stays as the kernel makes it.
  return size > kKernelsPipe ? size : 0;
}

StreamFactory::StreamFactory(boost::asio::any_io_executor executor, Clock& clock, Console& console,
                             files::BlockingCalls& files, bool with_status)
    : executor_(std::move(executor)),
      clock_(clock),
      console_(console),
      files_(files),
      with_status_(with_status && console.can_show_status()),
      buffers_(std::make_shared<PumpBuffers>()) {}

StreamFactory::Shared StreamFactory::open_shared(const AttemptSettings& settings, bool out) const {
  const auto& filters = out ? settings.stdout_filters : settings.stderr_filters;
  if (!filters || settings.directory.empty()) return {};
  const auto* name = out ? "/filtered_stdout.log" : "/filtered_stderr.log";
  return {std::make_shared<LineFilter>(*filters), open_log(settings.directory + name)};
}

std::shared_ptr<files::AppendedFile> StreamFactory::open_log(std::string path) const {
  return std::make_shared<files::AppendedFile>(files_, std::move(path),
                                               files::AppendedFile::Form{});
}

void StreamFactory::begin_attempt(const AttemptSettings& settings) {
  console_.say_files_are_in(settings.directory);
  pipe_size_ = pipe_size(settings.workers, user_pipe_bytes());
  stdout_shared_ = open_shared(settings, true);
  stderr_shared_ = open_shared(settings, false);
}

PumpRoute StreamFactory::make_route(const StreamSettings& settings, Console::Stream stream) const {
  const bool out = stream == Console::Stream::Out;
  const unsigned bit = out ? 1 : 2;
  const bool tee = (settings.tee & bit) != 0;
  const bool files = !settings.directory.empty();
  PumpRoute route;
  route.stream = stream;
  route.keep_tail = !out || keeps_stdout_;
  if (files && (tee || (settings.redirect & bit) != 0)) {
    route.file = open_log(settings.directory + (out ? "/stdout.log" : "/stderr.log"));
  }
  if (settings.shown && tee) {
    route.show = Show::Lines;
    route.prefix = settings.prefix;
    const Shared& shared = out ? stdout_shared_ : stderr_shared_;
    route.filter = shared.filter;
    route.matching = shared.file;
  } else if (settings.shown && !route.file) {
    route.show = Show::Raw;
  }
  return route;
}

bool StreamFactory::is_inherited(const PumpRoute& route) const {
  if (route.show != Show::Raw || route.keep_tail) return false;
  const auto kind = console_.outlet(route.stream).kind();
  return kind == Outlet::Kind::Null || (kind == Outlet::Kind::Terminal && !with_status_);
}

Result<Side> StreamFactory::open_side(PumpRoute route) {
  Side side;
  if (route.file) side.path = route.file->path();
  if (is_inherited(route)) return side;
  UniqueFd ours;
  const bool terminal = route.show == Show::Raw && console_.is_terminal(route.stream);
  if (route.show == Show::Nothing && !route.file && !route.keep_tail) {
    side.end.reset(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!side.end) return std::unexpected(errno_error(Code::Io, "cannot open /dev/null", errno));
  } else if (!terminal || !open_terminal(console_.outlet(route.stream).fd(), ours, side.end)) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      return std::unexpected(errno_error(Code::Io, "cannot make a pipe for a worker", errno));
    }
    ours.reset(ends[0]);
    side.end.reset(ends[1]);
    // Ours alone: the two ends of a pipe are two open files.
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    const bool kept = route.show == Show::Lines || (route.show == Show::Nothing && route.file);
    // Refused beyond a user's limit: then it is smaller.
    if (kept && pipe_size_ > 0) ::fcntl(ends[0], F_SETPIPE_SZ, pipe_size_);
  }
  side.fd = side.end.get();
  if (!ours) return side;
  side.pump = std::make_shared<Pump>(executor_, clock_, console_, buffers_, std::move(ours),
                                     std::move(route));
  if (terminal) {
    std::erase_if(on_terminal_, [](const auto& old) { return old.expired(); });
    on_terminal_.push_back(side.pump);
  }
  return side;
}

void StreamFactory::terminal_resized() {
  for (const auto& weak : on_terminal_) {
    if (const auto pump = weak.lock()) pump->take_size();
  }
}

std::uint64_t StreamFactory::bytes(Console::Stream stream) const {
  return stream == Console::Stream::Out ? buffers_->out_bytes : buffers_->err_bytes;
}

TimePoint StreamFactory::last_read() const {
  return buffers_->last_read;
}

Result<std::unique_ptr<WorkerStreams>> StreamFactory::make(const StreamSettings& settings) {
  auto out_route = make_route(settings, Console::Stream::Out);
  auto err_route = make_route(settings, Console::Stream::Err);
  const bool together = out_route.show == Show::Raw && err_route.show == Show::Raw &&
                        console_.one_place() &&
                        console_.outlet(Console::Stream::Out).kind() != Outlet::Kind::Null;
  auto err = open_side(std::move(err_route));
  if (!err) return std::unexpected(err.error());
  if (together) {
    // One pipe for both, or the order in which a worker wrote to stdout and stderr would be lost.
    Side same;
    same.fd = err->fd;
    return std::make_unique<PumpedStreams>(std::move(same), std::move(*err));
  }
  auto out = open_side(std::move(out_route));
  if (!out) return std::unexpected(out.error());
  return std::make_unique<PumpedStreams>(std::move(*out), std::move(*err));
}

}  // namespace elastrun::logs
