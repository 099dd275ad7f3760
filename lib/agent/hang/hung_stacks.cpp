// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/hung_stacks.hpp"

#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "process/process_table.hpp"
#include "process/spawn.hpp"

#include <boost/asio/post.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace elastrun::agent {
namespace {

using Lines = std::vector<std::string>;

constexpr auto kAnswer = std::chrono::milliseconds(1000);  // of one process, by its faulthandler
constexpr std::size_t kMostLines = 1000;                   // of one process
constexpr std::size_t kMostBytes = 1 << 18;                // of py-spy

void append(Lines& lines, Lines more) {
  for (auto& line : more) {
    if (lines.size() < kMostLines) lines.push_back(std::move(line));
  }
}

Lines lines_of(const UniqueFd& file) {
  std::string text(kMostBytes, '\0');
  const auto got = ::pread(file.get(), text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  Lines lines;
  for (auto& line : split(trim(text), '\n')) {
    if (!line.empty()) lines.push_back(printable(std::move(line)));
  }
  return lines;
}

}  // namespace

/// What is known of each process, by source: that of Python first.
struct HungStacks::Job {
  Then then;
  std::map<pid_t, Lines> python, threads;
  int awaited = 0;
  std::unique_ptr<Alarm> alarm;
  std::vector<std::unique_ptr<process::Child>> spies;
};

/// A process that has offered its stacks. Its number may be given to another one meanwhile, which
/// the signal that asks for a stack would end: so it is signalled by its pidfd.
struct HungStacks::Askable {
  pid_t pid = 0;
  UniqueFd pidfd;
  system::StackOffer offer;
};

HungStacks::HungStacks(RunContext& run, const StackOffers& offers)
    : run_(run), offers_(offers), calls_(run.loop.get_executor()) {}

HungStacks::~HungStacks() = default;

void HungStacks::take(const std::vector<pid_t>& hung, Then then) {
  const auto job = std::make_shared<Job>();
  const std::weak_ptr<Job> weak = job;
  job->then = std::move(then);
  job->alarm = run_.clock.make_alarm();
  // Weak here and in all calls below: an answer after the limit finds nothing, and changes nothing.
  job->alarm->arm(run_.clock.now() + kLimit, [this, weak] { finish(weak); });
  jobs_.push_back(job);
  std::vector<Askable> askable;
  std::vector<pid_t> silent;
  for (const auto pid : hung) {
    UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    // Asked after that: it knows whether the number is still that of the process that offered.
    const auto offer = offers_.of(pid);
    offer ? askable.push_back({pid, std::move(pidfd), *offer}) : silent.push_back(pid);
  }
  // Those of Python first: a process that goes on is where it was asked, not where it was later.
  if (!askable.empty()) ask(job, std::move(askable));
  read_kernel(job, hung);
  if (!silent.empty()) find_spy(job, std::move(silent));
}

void HungStacks::ask(const std::shared_ptr<Job>& job, std::vector<Askable> askable) {
  ++job->awaited;
  const auto shared = std::make_shared<const std::vector<Askable>>(std::move(askable));
  calls_.make(
      "the Python stacks of processes",
      [shared] {
        std::vector<system::StackSource> sources;
        for (const auto& one : *shared) sources.push_back({one.pid, one.pidfd.get(), one.offer});
        return system::ask_python_stacks(sources, kAnswer);
      },
      [this, weak = std::weak_ptr(job), shared](std::vector<Lines> stacks) {
        if (const auto asked = weak.lock()) {
          for (std::size_t i = 0; i < stacks.size(); ++i) {
            asked->python[(*shared)[i].pid] = std::move(stacks[i]);
          }
        }
        done(weak);
      });
}

void HungStacks::read_kernel(const std::shared_ptr<Job>& job, std::vector<pid_t> pids) {
  ++job->awaited;
  calls_.make(
      "the threads of a process in /proc",
      [pids = std::move(pids)] {
        std::map<pid_t, Lines> threads;
        for (const auto pid : pids) {
          threads[pid] = system::thread_lines(system::read_threads(pid));
        }
        return threads;
      },
      [this, weak = std::weak_ptr(job)](std::map<pid_t, Lines> threads) {
        if (const auto asked = weak.lock()) asked->threads = std::move(threads);
        done(weak);
      });
}

/// Last, because PATH may name a folder of a file system that does not answer.
void HungStacks::find_spy(const std::shared_ptr<Job>& job, std::vector<pid_t> pids) {
  ++job->awaited;
  calls_.make(
      "the search for py-spy in PATH",
      [environment = run_.environment] { return process::find_program("py-spy", environment, {}); },
      [this, weak = std::weak_ptr(job), pids = std::move(pids)](const Result<std::string>& path) {
        const auto asked = weak.lock();
        for (const auto pid : pids) {
          if (asked && path) spy(asked, *path, pid);
        }
        done(weak);
      });
}

void HungStacks::spy(const std::shared_ptr<Job>& job, const std::string& path, pid_t pid) {
  // Memory instead of a pipe, which is full at 64 KiB and would have to be read meanwhile.
  const auto output = std::make_shared<UniqueFd>(::memfd_create("py-spy", MFD_CLOEXEC));
  const UniqueFd nowhere(::open("/dev/null", O_RDWR | O_CLOEXEC));
  process::LaunchRequest request;
  request.argv = process::shell_exec(
      // Nonblocking: py-spy would stop the process, which may be well and only slow.
      {path, "dump", "--pid", std::to_string(pid), "--full-filenames", "--nonblocking"});
  request.environment = run_.environment;
  request.stdin_fd = request.stderr_fd = nowhere.get();
  request.stdout_fd = output->get();
  if (!*output || !nowhere) return;
  const std::weak_ptr<Job> weak = job;
  auto child = run_.launcher.start(request, [this, weak, pid, output](const process::Exit& exit) {
    const auto asked = weak.lock();
    if (asked && exit.status.success()) asked->python[pid] = lines_of(*output);
    done(weak);
  });
  if (!child) return;
  ++job->awaited;
  job->spies.push_back(std::move(*child));
}

/// Not at once: it may be a child of the job that calls, which the job's end would destroy.
void HungStacks::done(const std::weak_ptr<Job>& job) {
  const auto asked = job.lock();
  if (!asked || --asked->awaited > 0) return;
  boost::asio::post(run_.loop, [this, job, alive = lifetime_.token()] {
    if (alive) finish(job);
  });
}

void HungStacks::finish(const std::weak_ptr<Job>& weak) {
  const auto job = weak.lock();
  // The alarm and the last answer may both come; the first one tells.
  if (!job || std::erase(jobs_, job) == 0) return;
  Stacks stacks;
  for (auto* source : {&job->python, &job->threads}) {
    for (auto& [pid, lines] : *source) append(stacks[pid], std::move(lines));
  }
  job->then(std::move(stacks));
}

void StackOffers::heard(pid_t sender, const workers::StacksOffered& offer) {
  const auto process = process::read_process(sender);
  if (!process) return;
  // A script may fork without end: only processes that live keep their places.
  if (offers_.size() >= most_ && !offers_.contains(sender)) forget_ended();
  if (offers_.size() >= most_ && !offers_.contains(sender)) return;
  // With the start time: by then the number may be another process's.
  offers_.insert_or_assign(
      sender, Offer{{offer.signal, offer.descriptor, offer.thread}, process->start_time});
}

/// A long round has many short-lived processes. Not at each offer that finds no room: that would be
/// a look at all of them each time.
void StackOffers::forget_ended() {
  if (refused_++ % most_ != 0) return;
  std::erase_if(offers_, [this](const auto& one) { return !of(one.first); });
}

std::optional<system::StackOffer> StackOffers::of(pid_t pid) const {
  const auto found = offers_.find(pid);
  if (found == offers_.end()) return std::nullopt;
  const auto process = process::read_process(pid);
  // A number that was given away since: that process has no handler, and the signal would end it.
  if (!process || process->start_time != found->second.start_time) return std::nullopt;
  return found->second.how;
}

std::vector<pid_t> StackOffers::processes() const {
  std::vector<pid_t> pids;
  for (const auto& [pid, offer] : offers_) pids.push_back(pid);
  return pids;
}

}  // namespace elastrun::agent
