/* SPDX-License-Identifier: Apache-2.0
 * The smallest launcher that does the job: what the kernel allows, as a column of the tables.
 *   floorl -n N [-r RESTARTS] [--tee 3 --log-dir DIR] COMMAND...
 * N workers with RANK and WORLD_SIZE, parent-death signal, pidfds and a signalfd in one epoll. A
 * worker that fails ends the group (SIGTERM, SIGKILL after 5 s); up to RESTARTS new groups; exit
 * code of the first failure. SIGTERM and SIGINT are passed on. With --log-dir the workers' stdout
 * goes to a file each, and line by line, with a prefix, to our own. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kMost = 4096, kGrace = 5000, kRead = 128 << 10, kPrefix = 11 };
static pid_t pids[kMost];
static int pidfds[kMost];
static int workers = 1, restarts, loop, signals;
static sigset_t before;
static const char* logs;
static struct {
  int source, file;
  size_t held;
  char lines[kRead * 2];
} streams[2]; /* as many as the benchmark has */

/* In a frame of its own, because the child of vfork(2) shares our stack. */
static __attribute__((noinline)) pid_t launch(char** command, int output) {
  const pid_t pid = vfork();
  if (pid == 0) {
    if (output >= 0) dup2(output, 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    execvp(command[0], command);
    _exit(127);
  }
  return pid;
}

static void set_number(const char* name, int number) {
  char text[32];
  snprintf(text, sizeof text, "%d", number);
  setenv(name, text, 1);
}

static void send_all(int signal) {
  for (int i = 0; i < workers; i++)
    if (pidfds[i] >= 0) syscall(SYS_pidfd_send_signal, pidfds[i], signal, NULL, 0);
}

static int open_stream(int i) {
  if (!logs || i >= 2) return -1;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC)) return -1;
  fcntl(ends[0], F_SETPIPE_SZ, 1 << 20);
  char path[4096];
  mkdir(logs, 0777);
  snprintf(path, sizeof path, "%s/%d.log", logs, i);
  streams[i].source = ends[0];
  streams[i].file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  struct epoll_event event = {.events = EPOLLIN, .data.u32 = kMost + 1 + (unsigned)i};
  epoll_ctl(loop, EPOLL_CTL_ADD, ends[0], &event);
  return ends[1];
}

static void write_all(int fd, const char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t done = write(fd, bytes, size);
    if (done <= 0) exit(95);
    bytes += done;
    size -= (size_t)done;
  }
}

/* Whole lines with their prefix; the beginning of the next one stays. 0: the stream has ended. */
static int pump(unsigned i) {
  static char out[kRead * 4];
  char* in = streams[i].lines;
  const ssize_t size = read(streams[i].source, in + streams[i].held, kRead);
  if (size <= 0) {
    close(streams[i].source);
    return 0;
  }
  write_all(streams[i].file, in + streams[i].held, (size_t)size);
  const char* at = in;
  size_t used = 0, left = streams[i].held + (size_t)size;
  for (const char* end; (end = memchr(at, '\n', left)) != NULL; at = end + 1) {
    const size_t line = (size_t)(end + 1 - at);
    if (used + kPrefix + line > sizeof out) {
      write_all(1, out, used);
      used = 0;
    }
    memcpy(out + used, "[default0]:", kPrefix);
    out[used + 8] = (char)('0' + i);
    memcpy(out + used + kPrefix, at, line);
    used += kPrefix + line;
    left -= line;
  }
  write_all(1, out, used);
  memmove(in, at, left);
  streams[i].held = left;
  return 1;
}

static void start_all(char** command) {
  for (int i = 0; i < workers; i++) {
    set_number("RANK", i);
    set_number("LOCAL_RANK", i);
    const int output = open_stream(i);
    pids[i] = launch(command, output);
    if (output >= 0) close(output);
    pidfds[i] = (int)syscall(SYS_pidfd_open, pids[i], 0);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (unsigned)i};
    epoll_ctl(loop, EPOLL_CTL_ADD, pidfds[i], &event);
  }
}

static int reap(int i) {
  int status;
  waitpid(pids[i], &status, 0);
  /* close(2) alone is not enough: a child between vfork and close-on-exec still holds a copy. */
  epoll_ctl(loop, EPOLL_CTL_DEL, pidfds[i], NULL);
  close(pidfds[i]);
  pidfds[i] = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* One life of the group: its exit code; *asked is set when a signal to us ended it. */
static int live(char** command, int* asked) {
  int alive = workers, open = logs ? workers : 0, code = 0, stopping = 0;
  start_all(command);
  while (alive > 0 || open > 0) {
    struct epoll_event events[64];
    const int count = epoll_wait(loop, events, 64, stopping ? kGrace : -1);
    if (count == 0) send_all(SIGKILL);
    for (int k = 0; k < count; k++) {
      const unsigned i = events[k].data.u32;
      struct signalfd_siginfo info;
      int ended = 0;
      if (i == kMost) {
        if (read(signals, &info, sizeof info) <= 0) continue;
        ended = 128 + (int)info.ssi_signo;
        *asked = 1;
      } else if (i > kMost) {
        if (!pump(i - kMost - 1)) open--;
      } else if (pidfds[i] >= 0) {
        ended = reap((int)i);
        alive--;
      }
      if (ended == 0 || stopping) continue;
      stopping = 1;
      code = ended;
      send_all(SIGTERM);
    }
  }
  return code;
}

int main(int count, char** words) {
  static const struct option names[] = {
      {"tee", required_argument, NULL, 't'}, {"log-dir", required_argument, NULL, 'l'}, {0}};
  int option;
  while ((option = getopt_long(count, words, "+n:r:", names, NULL)) != -1) {
    if (option == 'n') workers = atoi(optarg);
    if (option == 'r') restarts = atoi(optarg);
    if (option == 'l') logs = optarg;
  }
  if (optind >= count || workers > kMost) return 2;
  signal(SIGCHLD, SIG_DFL); /* an inherited "ignore" would reap the children under our feet */
  sigset_t ours;
  sigemptyset(&ours);
  sigaddset(&ours, SIGTERM);
  sigaddset(&ours, SIGINT);
  sigprocmask(SIG_BLOCK, &ours, &before);
  loop = epoll_create1(EPOLL_CLOEXEC);
  signals = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
  struct epoll_event event = {.events = EPOLLIN, .data.u32 = kMost};
  epoll_ctl(loop, EPOLL_CTL_ADD, signals, &event);
  set_number("WORLD_SIZE", workers);
  for (int attempt = 0;; attempt++) {
    int asked = 0;
    set_number("TORCHELASTIC_RESTART_COUNT", attempt);
    const int code = live(words + optind, &asked);
    if (code == 0 || asked || attempt >= restarts) return code;
  }
}
