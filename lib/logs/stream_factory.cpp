// SPDX-License-Identifier: Apache-2.0
#include "logs/stream_factory.hpp"

#include "core/file_io.hpp"
#include "core/text.hpp"

#include <cerrno>
#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

namespace elastrun::logs {
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
  struct Side {
    std::shared_ptr<Pump> pump;  // null: inherited, or shared with the other side
    int fd = -1;
    std::string path;
  };
  PumpedStreams(Side out, Side err, std::vector<UniqueFd> workers_ends)
      : out_(std::move(out)), err_(std::move(err)), workers_ends_(std::move(workers_ends)) {}
  ~PumpedStreams() override {
    *waiter_ = {};  // an answer that is already queued must not reach anybody
    for (const auto& pump : pumps()) pump->stop();
  }

  int stdout_fd() const override { return out_.fd; }
  int stderr_fd() const override { return err_.fd; }
  void started() override {
    // Once the worker has its copies: while we hold the other end, too, the pipe would have no end
    // of file (pipe(7)).
    workers_ends_.clear();
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
  std::vector<UniqueFd> workers_ends_;
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

Result<StreamFactory::Source> StreamFactory::open_source(const PumpRoute& route) const {
  Source source;
  if (is_inherited(route)) return source;
  if (route.show == Show::Nothing && !route.file && !route.keep_tail) {
    source.workers.reset(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (source.workers) return source;
    return std::unexpected(errno_error(Code::Io, "cannot open /dev/null", errno));
  }
  if (route.show == Show::Raw && console_.is_terminal(route.stream) &&
      open_terminal(console_.outlet(route.stream).fd(), source.ours, source.workers)) {
    return source;
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return std::unexpected(errno_error(Code::Io, "cannot make a pipe for a worker", errno));
  }
  source.ours.reset(ends[0]);
  source.workers.reset(ends[1]);
  // Ours alone: the two ends of a pipe are two open files.
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  const bool kept = route.show != Show::Raw && !(route.show == Show::Nothing && !route.file);
  // Refused beyond a user's limit: then it is smaller.
  if (kept && pipe_size_ > 0) ::fcntl(ends[0], F_SETPIPE_SZ, pipe_size_);
  return source;
}

std::shared_ptr<Pump> StreamFactory::make_pump(UniqueFd source, PumpRoute route) {
  if (!source) return nullptr;
  const bool terminal = route.show == Show::Raw && console_.is_terminal(route.stream);
  auto pump = std::make_shared<Pump>(executor_, clock_, console_, buffers_, std::move(source),
                                     std::move(route));
  if (terminal) {
    std::erase_if(on_terminal_, [](const auto& old) { return old.expired(); });
    on_terminal_.push_back(pump);
  }
  return pump;
}

void StreamFactory::terminal_resized() {
  for (const auto& weak : on_terminal_) {
    const auto pump = weak.lock();
    if (pump) pump->take_size_of(console_.outlet(pump->route().stream).fd());
  }
}

Result<std::unique_ptr<WorkerStreams>> StreamFactory::make(const StreamSettings& settings) {
  auto out = make_route(settings, Console::Stream::Out);
  auto err = make_route(settings, Console::Stream::Err);
  const bool together = out.show == Show::Raw && err.show == Show::Raw && console_.one_place() &&
                        console_.outlet(Console::Stream::Out).kind() != Outlet::Kind::Null;

  std::vector<UniqueFd> ends;
  PumpedStreams::Side out_side, err_side;
  auto err_source = open_source(err);
  if (!err_source) return std::unexpected(err_source.error());
  err_side.fd = err_source->workers.get();
  if (err.file) err_side.path = err.file->path();
  if (together) {
    // One pipe for both, or the order in which a worker wrote to stdout and stderr would be lost.
    out_side.fd = err_side.fd;
  } else {
    auto out_source = open_source(out);
    if (!out_source) return std::unexpected(out_source.error());
    out_side.fd = out_source->workers.get();
    if (out.file) out_side.path = out.file->path();
    ends.push_back(std::move(out_source->workers));
    out_side.pump = make_pump(std::move(out_source->ours), std::move(out));
  }
  ends.push_back(std::move(err_source->workers));
  err_side.pump = make_pump(std::move(err_source->ours), std::move(err));
  return std::make_unique<PumpedStreams>(std::move(out_side), std::move(err_side), std::move(ends));
}

}  // namespace elastrun::logs
