// SPDX-License-Identifier: Apache-2.0
#include "core/file_io.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "elastrunctl/command_line.hpp"
#include "goodput/reports/summary.hpp"
#include "goodput_files.hpp"
#include "local_runs.hpp"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <poll.h>
#include <ranges>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace elastrun::ctl {
namespace {

namespace fs = std::filesystem;
using goodput::Bucket;
using Summary = goodput::Ledger::Summary;

constexpr int kTickMilliseconds = 1000;
constexpr std::size_t kWatchedRestarts = 5;
constexpr auto kSilence = std::chrono::seconds(10);  // beyond it people are told
constexpr auto kLate = std::chrono::seconds(5);      // steps come by then, if there were any

struct Source {
  std::string journal;
  std::optional<runs::ListedRun> run;  // that writes it, as far as this machine knows
};

/// If several nodes run here, takes rank 0's journal: only it has the steps.
runs::ListedRun leading(std::vector<runs::ListedRun> runs) {
  const auto leads = [](const runs::ListedRun& run) {
    return std::ranges::find(run.entry.workers, 0, &runs::RunWorker::rank) !=
           run.entry.workers.end();
  };
  const auto first = std::ranges::find_if(runs, leads);
  return first == runs.end() ? std::move(runs.front()) : std::move(*first);
}

Result<Source> source_of(const std::string& target) {
  std::error_code none;
  auto runs = runs_here();
  if (!target.empty() && fs::exists(target, none)) {
    auto journal = journal_at(target);
    if (!journal) return std::unexpected(journal.error());
    Source source{*journal, {}};
    for (auto& run : runs) {
      // By the directory and not by its name, of which there may be several.
      if (fs::equivalent(run.entry.run_directory, fs::absolute(*journal).parent_path(), none)) {
        source.run = std::move(run);
      }
    }
    return source;
  }
  auto chosen = runs_of(std::move(runs), target);
  if (!chosen) return std::unexpected(chosen.error());
  auto run = leading(std::move(*chosen));
  if (run.entry.run_directory.empty()) {
    return fail(Code::Usage, fmt::format("the job \"{}\" has no log directory yet, and so no "
                                         "journal; ask again in a moment",
                                         printable(run.entry.name)));
  }
  Source source{run.entry.run_directory + "/journal.jsonl", std::move(run)};
  if (!fs::exists(source.journal, none)) {
    return fail(Code::Usage, fmt::format("the job \"{}\" keeps no journal; start it with --log-dir",
                                         printable(source.run->entry.name)));
  }
  return source;
}

/// A journal that grows, and the account of what it holds.
class WatchedJob {
 public:
  WatchedJob(LogTail tail, Source source) : tail_(std::move(tail)), run_(std::move(source.run)) {
    tail_.label("");
  }

  /// Takes what has come. Fails with Usage for a log of ml-goodput-measurement.
  Status advance() {
    // Asked first: what the run wrote before its end is there when it has gone.
    const bool gone = run_ && !runs::is_alive(run_->entry);
    bool more = false;
    Status status;
    tail_.read([&](std::string_view text) {
      more = true;
      for (const auto line : text | std::views::split('\n')) {
        if (status) status = reader_.take(std::string_view(line));
      }
    });
    if (!status) return status;
    if (reader_.input.measured) {
      return fail(Code::Usage,
                  "a log of ml-goodput-measurement cannot be watched; report shows it");
    }
    const auto& journal = reader_.input.journal;
    // With --goodput off the journal has no last word: then its end, and a tick without another
    // line.
    over_ = gone || journal.is_over() || (journal.has_ended() && ended_before_ && !more);
    ended_before_ = journal.has_ended();
    if (gone) reader_.input.journal.close();
    return {};
  }

  /// Nothing more is to be expected: the agent has said its last word, or has gone.
  bool is_over() const { return over_; }
  const GoodputInput& input() const { return reader_.input; }
  /// Since the last record; zero after the end.
  Duration silence() const {
    if (over_ || reader_.input.journal.is_over()) return {};
    const Duration since = std::chrono::system_clock::now() - reader_.input.last_wall;
    return std::max(since, Duration::zero());
  }
  std::optional<Summary> summary() const { return reader_.input.journal.summary(silence()); }
  /// Where the time goes now.
  std::string_view now() const {
    const auto& journal = reader_.input.journal;
    if (over_ || journal.is_over()) return "ended";
    // Which bucket grows when a second passes is what goes on now; the journal has no other word
    // for it. A silence that steps on their way here explain is none: it would make a stall of
    // them.
    const Duration since = silence(), silent = since > kLate ? since : Duration::zero();
    const auto before = journal.summary(silent);
    const auto after = journal.summary(silent + std::chrono::seconds(1));
    for (std::size_t i = 0; before && i < goodput::kBuckets; ++i) {
      if (after->buckets[i] > before->buckets[i]) return bucket_name(static_cast<Bucket>(i));
    }
    return "waiting for a first record";
  }

 private:
  LogTail tail_;
  const std::optional<runs::ListedRun> run_;
  GoodputReader reader_;
  bool over_ = false, ended_before_ = false;
};

/// What people see: on a terminal the whole account, drawn over itself; else a line for each
/// change.
class Display {
 public:
  explicit Display(bool terminal) : terminal_(terminal) {}
  void show(const WatchedJob& job) {
    const auto summary = job.summary();
    if (!summary) return;
    terminal_ ? draw(job, *summary) : print_change(job, *summary);
  }

 private:
  /// Nothing of the terminal is changed beyond a single write, so that whatever ends us leaves it
  /// as it was: lines are not wrapped while they are written, and the cursor stays below them.
  void draw(const WatchedJob& job, const Summary& summary) {
    std::string text = fmt::format(
        "job \"{}\", {} records, now: {}{}\n", printable(job.input().name), job.input().records,
        job.now(),
        job.silence() > kSilence ? fmt::format(", no record for {}", format_duration(job.silence()))
                                 : "");
    text += goodput::summary_text(summary, locale_is_utf8()) +
            goodput::restart_table(job.input().journal.restarts(), kWatchedRestarts, true);
    auto lines = split(text, '\n');
    lines.pop_back();
    winsize size{};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1) {
      // One less than the terminal has: the cursor stands below the last one, and a line more would
      // scroll the first one out of reach.
      lines.resize(std::min<std::size_t>(lines.size(), size.ws_row - 1U));
    }
    // DECAWM off: a line that is wider than the terminal would take two, and the next "up so many
    // lines" end too low.
    std::string out = drawn_ > 0 ? fmt::format("\x1b[?7l\x1b[{}F", drawn_) : "\x1b[?7l";
    for (const auto& line : lines) out += line + "\x1b[K\n";
    out += "\x1b[J\x1b[?7h";
    drawn_ = lines.size();
    if (write_all(STDOUT_FILENO, out) != 0) std::_Exit(kExitFailed);
  }

  void print_change(const WatchedJob& job, const Summary& summary) {
    const auto state =
        fmt::format("{} {} {} {}", job.now(), summary.restarts, job.input().journal.submissions(),
                    summary.last_checkpoint.value_or(-1));
    if (std::exchange(last_, state) == state) return;
    const auto text = goodput::summary_text(summary, false);
    const auto line =
        fmt::format("{} {}: {}\n", format_local_time(std::chrono::system_clock::now()), job.now(),
                    text.substr(0, text.find('\n')));
    if (write_all(STDOUT_FILENO, line) != 0) std::_Exit(kExitFailed);
  }

  const bool terminal_;
  std::size_t drawn_ = 0;  // lines that stand there from the last time
  std::string last_;
};

/// A descriptor that becomes readable with one of the signals that end programs.
Result<UniqueFd> ending_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int one : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&signals, one);
  // Blocked, or they would end the program and never come through the descriptor (signalfd(2)).
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  UniqueFd fd(::signalfd(-1, &signals, SFD_CLOEXEC));
  if (!fd) return std::unexpected(errno_error(Code::Io, "signalfd", errno));
  return fd;
}

bool is_terminal() {
  const char* name = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && name != nullptr && std::string_view(name) != "dumb";
}

}  // namespace

int run_goodput_watch(const WatchOptions& options) {
  auto source = source_of(options.target);
  if (!source) return report_error(source.error().text, kExitFailed);
  auto tail = LogTail::open(source->journal, std::nullopt);
  if (!tail) return report_error(tail.error().text, kExitFailed);
  WatchedJob job(std::move(*tail), std::move(*source));
  Display display(is_terminal());
  // What is there may take long to read; until it is, signals end us as they end any program.
  auto status = job.advance();
  const auto signals = ending_signals();
  if (!signals) return report_error(signals.error().text, kExitFailed);
  pollfd wait{signals->get(), POLLIN, 0};
  while (status) {
    display.show(job);
    if (job.is_over() || ::poll(&wait, 1, kTickMilliseconds) > 0) return kExitDone;
    status = job.advance();
  }
  return report_error(status.error().text, kExitFailed);
}

}  // namespace elastrun::ctl
