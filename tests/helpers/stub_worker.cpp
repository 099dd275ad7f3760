// SPDX-License-Identifier: Apache-2.0
// Plays difficult workers. Its arguments are steps, done in this order:
//
//   say=TEXT        a line on stdout                 half=TEXT    the same without the newline
//   complain=TEXT   a line on stderr                 pid          "pid N" on stdout
//   env             the environment on stdout        env=NAME     "NAME=VALUE", or "NAME is unset"
//   cpus            "cpus 0 1 3": where it may run   signals      "ignored N... blocked N..."
//   cgroup          "cgroup /its/path" of version 2
//   flood=BYTES     that many bytes in lines of 80   binary=BYTES bytes of all values
//   file=PATH:TEXT  writes a file                    error=TEXT   writes $TORCHELASTIC_ERROR_FILE
//   read            stdin to its end, then "read N"  wait=PATH    until that file exists
//   close=stdout|stderr|stdin|N                      memory=MIB   touches that much
//   ignore=SIGNAL   from now on                      on=SIGNAL:CODE  exits with CODE when it comes
//   child[=WORDS]   leaves a process that stays for ever, once that has said "child N" on stdout;
//                   WORDS, joined by commas: setsid, double (orphaned at once), bare (exec with
//                   empty environment), deaf (ignores all it can), deep (has itself such a child)
//   zombies=N       leaves N orphans that have already ended
//   hop             leaves a process that forks itself anew and ends, 20000 times
//   only=N          does what follows only if $LOCAL_RANK (or $RANK) is N, else skips to `all`
//   attempt=N       the same for $TORCHELASTIC_RESTART_COUNT
//   all             ends `only` and `attempt`
//   sleep=SECONDS   (may be 0.5)                     stay         for ever
//   vfork=PATH      is held in the kernel (state D) by a child of vfork, until that file exists
//   stop            SIGSTOP to itself                die=SIGNAL   by that signal, without a core
//   exit=CODE
//
// SIGNAL is a name without SIG, or a number. After the last step it exits with 0.
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <functional>
#include <map>
#include <sched.h>
#include <signal.h>
#include <string>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern char** environ;

namespace {

[[noreturn]] void complain(const std::string& what) {
  std::fprintf(stderr, "stub_worker: %s\n", what.c_str());
  std::_Exit(125);
}

void write_all(int fd, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t size = write(fd, text.data() + done, text.size() - done);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return;  // a reader that has gone must not end a worker that ignores SIGPIPE
    done += static_cast<std::size_t>(size);
  }
}

void say(const std::string& text) {
  write_all(STDOUT_FILENO, text + "\n");
}

int signal_of(const std::string& name) {
  static const std::map<std::string, int> known{
      {"TERM", SIGTERM}, {"INT", SIGINT},   {"HUP", SIGHUP},   {"QUIT", SIGQUIT}, {"KILL", SIGKILL},
      {"SEGV", SIGSEGV}, {"ABRT", SIGABRT}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"PIPE", SIGPIPE},
      {"BUS", SIGBUS},   {"FPE", SIGFPE},   {"ILL", SIGILL},   {"ALRM", SIGALRM}, {"STOP", SIGSTOP},
      {"CONT", SIGCONT}, {"XCPU", SIGXCPU}};
  const auto found = known.find(name.starts_with("SIG") ? name.substr(3) : name);
  if (found != known.end()) return found->second;
  const int number = std::atoi(name.c_str());
  if (number <= 0) complain("no such signal: " + name);
  return number;
}

[[noreturn]] void stay() {
  while (true) pause();
}

void ignore_all() {
  for (int number = 1; number <= SIGRTMAX; ++number) signal(number, SIG_IGN);
}

std::array<int, 65> exit_codes{};  // by signal, for `on`

bool has(const std::string& words, const std::string& word) {
  return ("," + words + ",").find("," + word + ",") != std::string::npos;
}

// Closes `told`, the writing end of a pipe to the worker, when it has said its pid.
[[noreturn]] void be_child(const std::string& words, char* self, int told) {
  if (has(words, "setsid")) setsid();
  if (has(words, "deaf")) ignore_all();
  if (has(words, "double") && fork() != 0) _exit(0);
  if (has(words, "bare")) {
    std::string said = "say=child " + std::to_string(getpid());
    std::string tell = "close=" + std::to_string(told), last = "stay";
    std::array<char*, 5> arguments{self, said.data(), tell.data(), last.data(), nullptr};
    char* nothing = nullptr;
    execve("/proc/self/exe", arguments.data(), &nothing);
    _exit(126);
  }
  if (has(words, "deep")) {
    if (fork() == 0) be_child("setsid", self, told);
  }
  say("child " + std::to_string(getpid()));
  close(told);
  stay();
}

void leave_child(const std::string& words, char* self) {
  std::array<int, 2> told{};
  if (pipe(told.data()) != 0) complain("no pipe");
  const pid_t pid = fork();
  if (pid == 0) {
    close(told[0]);
    be_child(words, self, told[1]);
  }
  close(told[1]);
  if (has(words, "double")) waitpid(pid, nullptr, 0);
  char nothing = 0;
  while (read(told[0], &nothing, 1) < 0 && errno == EINTR) {
  }
  close(told[0]);
}

void leave_zombies(int count) {
  for (int made = 0; made < count; ++made) {
    const pid_t pid = fork();
    if (pid == 0) {
      fork();    // the child of this child is orphaned ...
      _exit(0);  // ... and both end at once
    }
    waitpid(pid, nullptr, 0);
  }
}

void leave_hopper() {
  if (fork() != 0) return;
  setsid();
  say("hopping");
  for (int hops = 0; hops < 20000; ++hops) {
    const pid_t next = fork();
    if (next > 0) _exit(0);
    if (next < 0) usleep(1000);
  }
  _exit(0);
}

// Only what is allowed there happens between vfork and _exit.
void hold_in_kernel(const std::string& path) {
  const char* const name = path.c_str();
  if (vfork() != 0) return;
  const timespec pause_between{0, 5'000'000};
  while (access(name, F_OK) != 0) nanosleep(&pause_between, nullptr);
  _exit(0);
}

void flood(long bytes) {
  std::string block;
  for (int line = 0; block.size() < 64000; ++line) {
    std::string text = "line " + std::to_string(line % 10000);
    text.resize(79, '.');
    block += text + "\n";
  }
  for (long left = bytes; left > 0; left -= static_cast<long>(block.size())) {
    if (left < static_cast<long>(block.size())) block.resize(static_cast<std::size_t>(left));
    write_all(STDOUT_FILENO, block);
    if (left <= static_cast<long>(block.size())) break;
  }
}

void binary(long bytes) {
  std::string text;
  for (long index = 0; index < bytes; ++index) text += static_cast<char>(index % 256);
  write_all(STDOUT_FILENO, text);
}

void write_file(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) complain("cannot write " + path);
  write_all(fd, text);
  close(fd);
}

void wait_for_file(const std::string& path) {
  const auto slash = path.rfind('/');
  const int watch = inotify_init1(IN_CLOEXEC);
  inotify_add_watch(watch, slash == std::string::npos ? "." : path.substr(0, slash).c_str(),
                    IN_CREATE | IN_MOVED_TO);
  std::array<char, 4096> events{};
  while (access(path.c_str(), F_OK) != 0) {
    if (read(watch, events.data(), events.size()) < 0 && errno != EINTR) complain("no inotify");
  }
  close(watch);
}

void read_stdin() {
  std::array<char, 65536> piece{};
  long total = 0;
  for (ssize_t size = 1; size > 0; total += size > 0 ? size : 0) {
    size = read(STDIN_FILENO, piece.data(), piece.size());
  }
  say("read " + std::to_string(total));
}

void show_environment(const std::string& name) {
  if (name.empty()) {
    for (char** entry = environ; *entry != nullptr; ++entry) say(*entry);
    return;
  }
  const char* const value = getenv(name.c_str());
  say(value == nullptr ? name + " is unset" : name + "=" + value);
}

void show_cpus() {
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  std::string text = "cpus";
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) text += " " + std::to_string(cpu);
  }
  say(text);
}

void show_signals() {
  std::string text = "ignored";
  for (int number = 1; number <= SIGRTMAX; ++number) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) {
      text += " " + std::to_string(number);
    }
  }
  text += " blocked";
  sigset_t mask;
  sigprocmask(SIG_SETMASK, nullptr, &mask);
  for (int number = 1; number <= SIGRTMAX; ++number) {
    if (sigismember(&mask, number) == 1) text += " " + std::to_string(number);
  }
  say(text);
}

void show_cgroup() {
  std::array<char, 4096> text{};
  const int fd = open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC);
  const ssize_t size = read(fd, text.data(), text.size() - 1);
  close(fd);
  const std::string all(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  const auto start = all.find("0::");
  const auto path =
      start == all.npos ? "" : all.substr(start + 3, all.find('\n', start) - start - 3);
  say("cgroup " + path);
}

void close_stream(const std::string& name) {
  const std::map<std::string, int> known{{"stdin", 0}, {"stdout", 1}, {"stderr", 2}};
  const auto found = known.find(name);
  close(found != known.end() ? found->second : std::atoi(name.c_str()));
}

void touch_memory(long mebibytes) {
  constexpr std::size_t kPage = 4096;
  static std::vector<char> kept;
  kept.resize(static_cast<std::size_t>(mebibytes) << 20);
  for (std::size_t at = 0; at < kept.size(); at += kPage) kept[at] = 1;
}

void exit_on(const std::string& value) {
  const auto colon = value.find(':');
  const int number = signal_of(value.substr(0, colon));
  exit_codes.at(static_cast<std::size_t>(number)) =
      colon == std::string::npos ? 0 : std::atoi(value.c_str() + colon + 1);
  signal(number, [](int caught) { _exit(exit_codes[static_cast<std::size_t>(caught)]); });
}

void sleep_for(double seconds) {
  timespec left{static_cast<time_t>(seconds), 0};
  left.tv_nsec = static_cast<long>((seconds - static_cast<double>(left.tv_sec)) * 1e9);
  while (nanosleep(&left, &left) != 0) {
  }
}

void die_of(int number) {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  signal(number, SIG_DFL);
  sigset_t empty;
  sigemptyset(&empty);
  sigprocmask(SIG_SETMASK, &empty, nullptr);
  kill(getpid(), number);
}

bool is_my_turn(const char* variable, const std::string& value) {
  const char* const mine = getenv(variable);
  return mine != nullptr && value == mine;
}

using Step = std::function<void(const std::string&)>;

void add_talk(std::map<std::string, Step>& steps) {
  steps["say"] = say;
  steps["half"] = [](const std::string& text) { write_all(STDOUT_FILENO, text); };
  steps["complain"] = [](const std::string& text) { write_all(STDERR_FILENO, text + "\n"); };
  steps["pid"] = [](const std::string&) { say("pid " + std::to_string(getpid())); };
  steps["env"] = show_environment;
  steps["cpus"] = [](const std::string&) { show_cpus(); };
  steps["signals"] = [](const std::string&) { show_signals(); };
  steps["cgroup"] = [](const std::string&) { show_cgroup(); };
  steps["flood"] = [](const std::string& value) { flood(std::atol(value.c_str())); };
  steps["binary"] = [](const std::string& value) { binary(std::atol(value.c_str())); };
}

void add_files(std::map<std::string, Step>& steps) {
  steps["file"] = [](const std::string& value) {
    const auto colon = value.find(':');
    write_file(value.substr(0, colon), colon == value.npos ? "" : value.substr(colon + 1));
  };
  steps["error"] = [](const std::string& text) {
    const char* const path = getenv("TORCHELASTIC_ERROR_FILE");
    if (path != nullptr && *path != 0) write_file(path, text);
  };
  steps["read"] = [](const std::string&) { read_stdin(); };
  steps["wait"] = wait_for_file;
  steps["close"] = close_stream;
  steps["memory"] = [](const std::string& value) { touch_memory(std::atol(value.c_str())); };
}

void add_lives(std::map<std::string, Step>& steps, char* self) {
  steps["ignore"] = [](const std::string& name) { signal(signal_of(name), SIG_IGN); };
  steps["on"] = exit_on;
  steps["child"] = [self](const std::string& words) { leave_child(words, self); };
  steps["zombies"] = [](const std::string& value) { leave_zombies(std::atoi(value.c_str())); };
  steps["hop"] = [](const std::string&) { leave_hopper(); };
  steps["sleep"] = [](const std::string& value) { sleep_for(std::atof(value.c_str())); };
  steps["stay"] = [](const std::string&) { stay(); };
  steps["vfork"] = hold_in_kernel;
  steps["stop"] = [](const std::string&) { raise(SIGSTOP); };
  steps["die"] = [](const std::string& name) { die_of(signal_of(name)); };
  steps["exit"] = [](const std::string& code) { _exit(std::atoi(code.c_str())); };
}

// Whether the steps that follow are meant for this worker.
bool turn_after(const std::string& name, const std::string& value, bool before) {
  if (name == "all") return true;
  if (name == "attempt") return before && is_my_turn("TORCHELASTIC_RESTART_COUNT", value);
  const char* const variable = getenv("LOCAL_RANK") != nullptr ? "LOCAL_RANK" : "RANK";
  return before && is_my_turn(variable, value);
}

}  // namespace

int main(int count, char** arguments) {
  std::map<std::string, Step> steps;
  add_talk(steps);
  add_files(steps);
  add_lives(steps, arguments[0]);
  bool mine = true;
  for (int index = 1; index < count; ++index) {
    const std::string word = arguments[index];
    const auto equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const std::string value = equals == word.npos ? "" : word.substr(equals + 1);
    if (name == "only" || name == "attempt" || name == "all") {
      mine = turn_after(name, value, mine);
      continue;
    }
    const auto step = steps.find(name);
    if (step == steps.end()) complain("no such step: " + word);
    if (mine) step->second(value);
  }
  return 0;
}
