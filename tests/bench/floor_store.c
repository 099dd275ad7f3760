/* SPDX-License-Identifier: Apache-2.0
 * What the kernel leaves of the load of bench_store_load: one recv(2) and one send(2) an answer,
 * and nothing in between. It looks at the first byte of what has come and at its end, keeps
 * nothing, and would answer nobody else. Prints "PORT n"; ends with its standard input. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { kMost = 1 << 16, kInput = kMost + 1, kListener };
static int loop;

static void watch(int fd, unsigned events, unsigned tag) {
  struct epoll_event event = {.events = events, .data.u32 = tag};
  epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event);
}

static void answer(int fd, size_t size) {
  static const char bytes[40] = {32};
  send(fd, bytes, size, MSG_NOSIGNAL);
}

static void serve(int fd) {
  static char in[16384];
  ssize_t size;
  while ((size = recv(fd, in, sizeof in, 0)) == sizeof in) {
  }
  if (size == 0) close(fd);
  if (size <= 0) return;
  const int pinged = size >= 5 && !memcmp(in + size - 5,
                                          "\x0d"
                                          "abcd",
                                          5);
  if (pinged) return answer(fd, 4);
  if (in[0] == 3) return answer(fd, 40);
  if (in[0] == 4) return answer(fd, 8);
  if (in[0] == 6) return answer(fd, 1);
}

static int listen_anywhere(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (bind(fd, (struct sockaddr*)&address, size) || listen(fd, 4096)) return -1;
  getsockname(fd, (struct sockaddr*)&address, &size);
  printf("PORT %d\n", ntohs(address.sin_port));
  fflush(stdout);
  return fd;
}

static void welcome(int listener) {
  for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    watch(fd, EPOLLIN | EPOLLET, (unsigned)fd);
  }
}

int main(void) {
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max < kMost ? files.rlim_max : kMost;
  setrlimit(RLIMIT_NOFILE, &files);
  loop = epoll_create1(0);
  const int listener = listen_anywhere();
  if (listener < 0) return 1;
  watch(listener, EPOLLIN, kListener);
  watch(0, EPOLLIN, kInput);
  for (;;) {
    struct epoll_event events[256];
    const int count = epoll_wait(loop, events, 256, -1);
    for (int k = 0; k < count; k++) {
      const unsigned tag = events[k].data.u32;
      if (tag == kInput) return 0;
      if (tag == kListener) {
        welcome(listener);
      } else {
        serve((int)tag);
      }
    }
  }
}
