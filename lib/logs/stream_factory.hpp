// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/unique_fd.hpp"
#include "files/appended_file.hpp"
#include "logs/console.hpp"

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::logs {

/// Needles of --duplicate-*-filters: lines that contain any of them are also written to the file
/// that all ranks share. They are looked for in the line itself, without its prefix.
using LineFilter = std::vector<std::string>;

/// Cuts the bytes of one stream into whole lines, each with a prefix. Pure.
///
/// A line ends at LF only. What has no LF yet is held back, so that lines of several workers never
/// mix; at the end it is given out with an LF added. Of text that CR overwrites (a progress bar)
/// the last state is given out, as a terminal would show it: otherwise it would overwrite the
/// prefix. A line longer than `longest` is given out in pieces of that length, each as a separate
/// line: memory stays bounded.
class LineSplitter {
 public:
  static constexpr std::size_t kLongest = 1 << 20;
  /// The lines that came out, and those of them that the filter lets pass.
  struct Lines {
    std::string all, matching;
  };
  /// Without `filter` nothing matches.
  explicit LineSplitter(std::string prefix, std::shared_ptr<const LineFilter> filter = nullptr,
                        std::size_t longest = kLongest)
      : prefix_(std::move(prefix)), filter_(std::move(filter)), longest_(longest) {}

  /// Appends every line that `bytes` completed.
  void feed(std::string_view bytes, Lines& out);
  /// The stream has ended: what is held becomes the last line.
  void finish(Lines& out);

  /// The bytes whose line end has not come.
  std::string_view held() const { return held_; }
  /// True if a progress bar is held: text without LF that was overwritten by CR at least once. A CR
  /// at the very front overwrites nothing: many bars write it before each state.
  bool holds_progress() const { return held_.find('\r', 1) != std::string::npos; }
  /// Gives out the newest complete state of that bar as a line, and forgets the states before it,
  /// as a terminal would have overwritten them. What follows the last CR stays held.
  void show_progress(Lines& out);

 private:
  void add_line(std::string_view line, Lines& out) const;
  void hold(std::string_view bytes, Lines& out);

  std::string prefix_;
  std::shared_ptr<const LineFilter> filter_;
  std::size_t longest_;
  std::string held_;
};

/// The prefix of a worker's lines: `form` is a Python string.Template with role_name, rank,
/// local_rank and hostname, where what cannot be replaced stays as it is; empty:
/// "[ROLELOCAL_RANK]:".
std::string line_prefix(std::string_view form, std::string_view role, int rank, int local_rank);

/// The end of a stream, and when each part of it came: what a worker wrote last tells why it ended,
/// and the moment tells who was first. Memory is bounded, whatever comes.
class Tail {
 public:
  explicit Tail(std::size_t bytes) : bytes_(bytes) {}

  void add(std::string_view bytes, TimePoint now);
  /// The last bytes: at least as many as were asked for, at most twice that, or all there were.
  std::string_view text() const { return text_; }
  /// True if this is the whole output. If not, it may begin inside a line.
  bool is_whole() const { return total_ == text_.size(); }
  /// When the last occurrence of `text` came in. Nothing if it is not there, or so far back that
  /// its moment is forgotten.
  std::optional<TimePoint> seen_at(std::string_view text) const;

 private:
  struct Piece {
    std::uint64_t start;  // in bytes since the start of the stream
    TimePoint at;
  };
  const std::size_t bytes_;
  std::string text_;
  std::uint64_t total_ = 0;
  std::deque<Piece> pieces_;  // the latest, in order
};

class Pump;
struct PumpBuffers;
struct PumpRoute;
struct Side;  // of a worker's two

/// The two output streams of one worker of one attempt: into files, through the agent to the
/// console (tee), straight to the console, or nowhere. `StreamFactory` makes it before the worker
/// starts; destroying it closes what is open and drops what was not read.
///
/// stderr always passes through the agent, so that the verdict can quote the last lines. A full
/// disk or a closed console costs output, never the worker: the agent reads the pipes to their end
/// whatever happens behind them.
class WorkerStreams {
 public:
  virtual ~WorkerStreams() = default;
  /// For the launch request; -1: the worker inherits the agent's.
  virtual int stdout_fd() const = 0;
  virtual int stderr_fd() const = 0;
  /// The worker has its copies: close ours and begin to read.
  virtual void started() = 0;
  /// Reads what is in the pipes now, inside the call; they go on being read. What a worker has
  /// written before it ended is known then, and its children can still write.
  virtual void catch_up() = 0;
  /// `on_drained` runs once on the loop when all that was written has been read and passed on.
  /// With `give_up_rest`, what is in the pipes now is read, without waiting for their end (a
  /// process that left the group may hold them open), and they are closed: who writes on gets
  /// SIGPIPE. May be called again, say with `give_up_rest` when a first call takes too long; then
  /// only the latest `on_drained` runs, once.
  virtual void drain(bool give_up_rest, std::function<void()> on_drained) = 0;
  /// The last lines seen on stderr, oldest first, at most `count`, each cut at 2,000 bytes. Where
  /// stdout and stderr go to one place untouched, what stdout wrote in between is among them.
  virtual std::vector<std::string> last_lines(std::size_t count) const = 0;
  /// Returns stdout's last lines if they are kept (StreamFactory::keep_stdout); else none.
  virtual std::vector<std::string> last_stdout_lines(std::size_t count) const {
    (void)count;
    return {};
  }
  /// True if stdout and stderr are mixed: the last lines may be of either.
  virtual bool mixes_streams() const = 0;
  /// True if all that stderr had is still known. If not, the first line that is may lack its start.
  virtual bool knows_all_lines() const = 0;
  /// When the last occurrence of `text` on stderr came in; "": its last bytes. Nothing if it did
  /// not, or long ago.
  virtual std::optional<TimePoint> seen_at(std::string_view text) const = 0;
  /// Path of the file a stream is written to; empty if none.
  virtual std::string stdout_path() const = 0;
  virtual std::string stderr_path() const = 0;
};

/// Says where the streams of one worker go. Bits as in torchrun's Std: 1 stdout, 2 stderr.
struct StreamSettings {
  std::string directory{};  // of this worker and attempt, existing; empty: no files
  unsigned redirect = 0;    // into files only
  unsigned tee = 0;         // into files, and line by line with the prefix to the console
  bool shown = true;        // false: --local-ranks-filter keeps this worker off the console
  std::string prefix{};     // line_prefix(...)
};

/// The settings that the workers of one start share.
struct AttemptSettings {
  std::string directory{};  // of the attempt, existing; empty: no files
  int workers = 1;          // on this node
  std::optional<std::vector<std::string>> stdout_filters{}, stderr_filters{};
};

/// How large the pipe of a tee'd or redirected stream is to be: so far a worker may run ahead of a
/// busy agent. 1 MiB, or less where so many workers with two of them would take more than half of
/// what the kernel lets a user have without privilege (/proc/sys/fs/pipe-user-pages-soft; above it
/// every new pipe of the user, in any program, holds two pages). 0: the kernel's own size. Pure.
int pipe_size(int workers, std::int64_t user_bytes);

/// Makes WorkerStreams. One for a job; it must outlive what it made.
///
/// | stream is          | shown                                | not shown |
/// | tee'd              | file, and lines to the console       | file      |
/// | redirected         | file                                 | file      |
/// | neither            | the console, as it comes             | dropped   |
///
/// "As it comes" is at once, but for the start of a line, which waits up to 20 ms for its end:
/// lines of two workers do not mix, even if a worker writes them in pieces.
///
/// All of it passes through the agent, so that a full disk, a closed console or a stuck one is the
/// agent's trouble, and through a thread for files, so that a stalled one delays only its worker; a
/// stdout on a terminal or device without anything to keep it apart from is inherited. Without a
/// directory nothing is redirected, and tee goes to the console alone. On a terminal the workers
/// get pseudo-terminals, so that they see one. Where stdout and stderr of the agent are one place
/// and both go there as they are, the worker gets one pipe or pseudo-terminal for both: their order
/// stays, and last_lines() has what stdout wrote in between.
class StreamFactory {
 public:
  /// Borrows clock, console and the thread for the files. `with_status`: a status line may be drawn
  /// below the output.
  StreamFactory(boost::asio::any_io_executor executor, Clock& clock, Console& console,
                files::BlockingCalls& files, bool with_status);

  /// From now on last_stdout_lines() of what is made has something to tell.
  void keep_stdout() { keeps_stdout_ = true; }
  /// Makes what the workers of the next start share (filtered_stdout.log, ...).
  void begin_attempt(const AttemptSettings& settings);
  /// Fails with Io: no descriptor left. Then nothing stays behind. A file that cannot be made costs
  /// the output for it, and is said.
  Result<std::unique_ptr<WorkerStreams>> make(const StreamSettings& settings);
  /// Bytes that all workers so far have written to a stream, except output that does not pass
  /// through the agent. If both streams share a pipe, all counts as stderr.
  std::uint64_t bytes(Console::Stream stream) const;
  /// When the agent last read some of that; min(): it has not.
  TimePoint last_read() const;
  /// The agent's terminal has another size now (SIGWINCH): its workers' terminals get it, too. They
  /// see it when they ask next; no signal reaches them, because it is not their controlling
  /// terminal.
  void terminal_resized();

 private:
  struct Shared {
    std::shared_ptr<const LineFilter> filter;
    std::shared_ptr<files::AppendedFile> file;
  };
  Shared open_shared(const AttemptSettings& settings, bool out) const;
  PumpRoute make_route(const StreamSettings& settings, Console::Stream stream) const;
  std::shared_ptr<files::AppendedFile> open_log(std::string path) const;
  bool is_inherited(const PumpRoute& route) const;
  Result<Side> open_side(PumpRoute route);

  boost::asio::any_io_executor executor_;
  Clock& clock_;
  Console& console_;
  files::BlockingCalls& files_;
  bool with_status_, keeps_stdout_ = false;
  std::shared_ptr<PumpBuffers> buffers_;  // of all that it makes
  Shared stdout_shared_, stderr_shared_;
  int pipe_size_ = 1 << 20;  // of this attempt's workers, as pipe_size()
  std::vector<std::weak_ptr<Pump>> on_terminal_;
};

}  // namespace elastrun::logs
