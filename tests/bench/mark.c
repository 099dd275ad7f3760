/* SPDX-License-Identifier: Apache-2.0
 * The worker of all launcher benchmarks. Appends lines "EVENT RANK PID NS" (CLOCK_REALTIME) to a
 * file, each with one write(2) in append mode, then behaves as told:
 *   mark FILE exit          "start", exit 0
 *   mark FILE sleep         "start", pause until a signal ends it
 *   mark FILE fail          "start"; rank 0 lives MARK_LIFE_MS, "die", exit 3; the others pause
 *   mark FILE once          first life as fail; once rank 0 has died (FILE.died exists): "again"
 *   mark FILE blast BYTES   "start", BYTES of numbered lines on stdout, exit 0 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char* file;
static const char* rank = "0";

static void event(const char* name) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  char line[128];
  const int size = snprintf(line, sizeof line, "%s %s %d %lld\n", name, rank, getpid(),
                            (long long)now.tv_sec * 1000000000 + now.tv_nsec);
  const int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0 || write(fd, line, (size_t)size) != size) _exit(99);
  close(fd);
}

static void pause_for_ever(void) {
  for (;;) pause();
}

/* Lines of 100 bytes, "RANK NUMBER xxx...x", 64 KiB a write. */
static int blast(long long bytes) {
  static char block[65500];
  long long number = 0;
  while (bytes > 0) {
    for (size_t at = 0; at < sizeof block; at += 100) {
      char* line = block + at;
      const int head = snprintf(line, 100, "%s %012lld ", rank, number++);
      memset(line + head, 'x', (size_t)(99 - head));
      line[99] = '\n';
    }
    for (size_t at = 0; at < sizeof block;) {
      const ssize_t written = write(1, block + at, sizeof block - at);
      if (written < 0) return 97;
      at += (size_t)written;
    }
    bytes -= (long long)sizeof block;
  }
  return 0;
}

int main(int count, char** words) {
  if (count < 3) return 98;
  file = words[1];
  if (getenv("RANK")) rank = getenv("RANK");
  const char* mode = words[2];
  char died[4096];
  snprintf(died, sizeof died, "%s.died", file);
  if (!strcmp(mode, "once") && access(died, F_OK) == 0) {
    event("again");
    return 0;
  }
  event("start");
  if (!strcmp(mode, "exit")) return 0;
  if (!strcmp(mode, "blast")) return blast(count > 3 ? atoll(words[3]) : 0);
  if (!strcmp(mode, "sleep") || strcmp(rank, "0")) pause_for_ever();
  const char* life = getenv("MARK_LIFE_MS");
  usleep((unsigned)(life ? atoi(life) : 500) * 1000);
  close(open(died, O_WRONLY | O_CREAT, 0644));
  event("die");
  _exit(3);
}
