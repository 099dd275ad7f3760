// SPDX-License-Identifier: Apache-2.0
// What the compiler's own static libraries want of the C library of this machine, and an older one
// does not have. Linked only into programs that must run there (ElastrunGlibc.cmake), where these
// definitions take the place of the library's, also where it has them.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

// Before 2.34 the start of a program calls what is handed to it here, and glibc's own crt1.o of
// today hands nothing, because the library has found the constructors by itself since. With a
// function to call, both leave the constructors to it. (--wrap=__libc_start_main)
typedef void Constructor(int, char**, char**);
typedef int Main(int, char**, char**);
extern Constructor *__init_array_start[], *__init_array_end[];
extern void _init(void);
extern int __real___libc_start_main(Main*, int, char**, Constructor*, void (*)(void),
                                    void (*)(void), void*);

static void construct(int argc, char** argv, char** environment) {
  _init();
  for (Constructor** each = __init_array_start; each != __init_array_end; ++each) {
    (*each)(argc, argv, environment);
  }
}

int __wrap___libc_start_main(Main* program, int argc, char** argv, Constructor* init,
                             void (*fini)(void), void (*end_of_loader)(void), void* stack) {
  return __real___libc_start_main(program, argc, argv, init ? init : construct, fini, end_of_loader,
                                  stack);
}

#if __GLIBC_PREREQ(2, 33)
// Functions since 2.33; before, sys/stat.h called these.
#ifdef __x86_64__
enum { kLayout = 1 };
#else
enum { kLayout = 0 };
#endif
extern int __xstat(int, const char*, struct stat*);
extern int __lxstat(int, const char*, struct stat*);
extern int __fxstat(int, int, struct stat*);
extern int __fxstatat(int, int, const char*, struct stat*, int);
int stat(const char* path, struct stat* out) {
  return __xstat(kLayout, path, out);
}
int lstat(const char* path, struct stat* out) {
  return __lxstat(kLayout, path, out);
}
int fstat(int fd, struct stat* out) {
  return __fxstat(kLayout, fd, out);
}
int fstatat(int folder, const char* path, struct stat* out, int flags) {
  return __fxstatat(kLayout, folder, path, out, flags);
}
_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "one layout, two names");
int stat64(const char*, struct stat64*) __attribute__((alias("stat")));
int lstat64(const char*, struct stat64*) __attribute__((alias("lstat")));
int fstat64(int, struct stat64*) __attribute__((alias("fstat")));
int fstatat64(int, const char*, struct stat64*, int) __attribute__((alias("fstatat")));
#endif

// std::random_device. Fewer than 256 bytes come whole (getrandom(2)).
uint32_t arc4random(void) {
  uint32_t value;
  if (getrandom(&value, sizeof value, 0) != sizeof value) abort();
  return value;
}

// std::condition_variable::wait_until, since 2.30. Where there is no such function, a time of the
// clock that may be set stands for that of the other, and is looked at again when it is over.
typedef int WaitUntil(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);

static long long nanoseconds(const struct timespec* at) {
  return at->tv_sec * 1000000000LL + at->tv_nsec;
}

static long long now(clockid_t clock) {
  struct timespec at;
  clock_gettime(clock, &at);
  return nanoseconds(&at);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  WaitUntil* const own = (WaitUntil*)dlsym(RTLD_NEXT, "pthread_cond_clockwait");
  if (own) return own(condition, mutex, clock, until);
  long long left;
  while ((left = nanoseconds(until) - now(clock)) > 0) {
    const long long end = now(CLOCK_REALTIME) + left;
    const struct timespec at = {end / 1000000000LL, end % 1000000000LL};
    const int result = pthread_cond_timedwait(condition, mutex, &at);
    if (result != ETIMEDOUT) return result;
  }
  return ETIMEDOUT;
}

// shared_ptr counts without atomic instructions while this is set: never, here.
char __libc_single_threaded = 0;

#if __GLIBC_PREREQ(2, 35)
// Which object holds an address, and where its table of frames is: asked for each frame that an
// exception passes. As libgcc found it before 2.35.
struct Search {
  uintptr_t address;
  struct dl_find_object* found;
};

static int holds(struct dl_phdr_info* object, size_t size, void* data) {
  (void)size;
  struct Search* search = data;
  uintptr_t low = UINTPTR_MAX, high = 0;
  const void* frames = NULL;
  int inside = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &object->dlpi_phdr[i];
    const uintptr_t begin = object->dlpi_addr + part->p_vaddr, end = begin + part->p_memsz;
    if (part->p_type == PT_GNU_EH_FRAME) frames = (const void*)begin;
    if (part->p_type != PT_LOAD) continue;
    if (begin < low) low = begin;
    if (end > high) high = end;
    if (search->address >= begin && search->address < end) inside = 1;
  }
  if (!inside) return 0;
  if (!frames) return -1;
  search->found->dlfo_map_start = (void*)low;
  search->found->dlfo_map_end = (void*)high;
  search->found->dlfo_eh_frame = (void*)frames;
  return 1;
}

int _dl_find_object(void* address, struct dl_find_object* found) {
  memset(found, 0, sizeof *found);
  struct Search search = {(uintptr_t)address, found};
  return dl_iterate_phdr(holds, &search) == 1 ? 0 : -1;
}
#endif
