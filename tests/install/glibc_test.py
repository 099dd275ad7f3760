# SPDX-License-Identifier: Apache-2.0
"""glibc_test.py COMPILER [EMULATOR...]: programs that are linked as those of a wheel, for an older
glibc. With an emulator they are those of another machine, for which COMPILER cross-compiles.
ELASTRUN_OLD_ROOTS names folders with systems of an older glibc, in which root runs them, too."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from commands import succeed

ROOT = Path(__file__).resolve().parents[2]
GLIBC = ROOT / "cmake/glibc"
COMPILER = (sys.argv + ["c++"])[1]
EMULATOR = sys.argv[2:]
ROOTS = [Path(name) for name in os.environ.get("ELASTRUN_OLD_ROOTS", "").split(":")
         if name and not EMULATOR]
PROGRAM = r"""
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

const std::string made = std::string(40, 'm') + "ade before main";
struct Ended { ~Ended() { std::puts("ended after main"); } } ended;

int main(int argc, char** argv) {
  std::puts(made.c_str());
  std::string said;
  std::thread other([&] {
    try { throw std::runtime_error("caught in a thread"); }
    catch (const std::exception& thrown) { said = thrown.what(); }
  });
  other.join();
  std::puts(said.c_str());
  using namespace std::chrono;
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock lock(mutex);
  const auto begin = steady_clock::now();
  const bool came = condition.wait_for(lock, milliseconds(50), [] { return false; });
  const auto waited = steady_clock::now() - begin;
  bool told = false;
  std::thread teller([&] { std::lock_guard held(mutex); told = true; condition.notify_one(); });
  const bool heard = condition.wait_for(lock, minutes(1), [&] { return told; });
  lock.unlock();
  teller.join();
  std::puts(!came && waited >= milliseconds(50) && heard ? "waited" : "did not wait");
  std::random_device random;
  std::printf("%s\n", random() != random() || random() != random() ? "random" : "constant");
  struct stat here {}, there {};
  std::printf("%s\n", stat("/", &here) == 0 && lstat("/", &there) == 0 &&
      here.st_ino == there.st_ino && S_ISDIR(here.st_mode) ? "a folder" : "no folder");
  setenv("LATER", "set", 1);
  bool listed = false;
  for (char** each = environ; *each != nullptr; ++each) listed |= std::string(*each) == "LATER=set";
  std::printf("%s\n", listed ? "one environment" : "two environments");
  void* self = dlopen(nullptr, RTLD_NOW);
  std::printf("%s\n", self != nullptr && dlsym(self, "puts") != nullptr ? "found" : dlerror());
  std::printf("%d %s\n", argc, argv[1]);
}
"""
SAID = ["m" * 40 + "ade before main", "caught in a thread", "waited", "random", "a folder",
        "one environment", "found", "2 argument", "ended after main"]


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(w) for w in words], capture_output=True, text=True)


class OlderGlibc(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="glibc.")))
        cls.stubs = cls.folder / "stubs"
        succeed(sys.executable, "-B", GLIBC / "stubs.py", COMPILER, "2.28", cls.stubs)
        succeed(COMPILER, "-x", "c", "-c", GLIBC / "newer_names.c", "-Wall", "-Wextra", "-Werror",
                "-o", cls.folder / "newer_names.o")

    def link(self, name: str, text: str, *more: str) -> subprocess.CompletedProcess[str]:
        """As ElastrunGlibc.cmake does, and with the flags of a release build."""
        source = self.folder / f"{name}.cpp"
        source.write_text(text)
        return run(COMPILER, "-std=c++17", source, self.folder / "newer_names.o",
                   "-o", self.folder / name, "-static-libstdc++", "-static-libgcc",
                   f"-L{self.stubs}", "-Wl,--wrap=__libc_start_main", "-Wl,--gc-sections",
                   "-Wl,--push-state,--no-as-needed", self.stubs / "libpthread.so.0",
                   self.stubs / "libdl.so.2", "-Wl,--pop-state", *more)

    def test_a_program_runs_here_and_on_older_systems(self) -> None:
        gold = ("gold", "-no-pie", "-fno-pie", "-fuse-ld=gold")  # as a release, where it is there
        for name, *how in (("fixed", "-no-pie", "-fno-pie"), ("moved", "-pie", "-fPIE"),
                           *([gold] if shutil.which("ld.gold") else [])):
            with self.subTest(name):
                linked = self.link(name, PROGRAM, *how)
                self.assertEqual(linked.returncode, 0, linked.stderr)
                succeed(sys.executable, "-B", GLIBC / "newest.py", "2.28", self.folder / name)
                said = succeed(*EMULATOR, self.folder / name, "argument")
                self.assertEqual(said.splitlines(), SAID)
                for root in ROOTS:
                    placed = root / "tmp" / f"glibc-test-{os.getpid()}"
                    shutil.copy(self.folder / name, placed)
                    self.addCleanup(placed.unlink, missing_ok=True)
                    said = succeed("chroot", root, f"/tmp/{placed.name}", "argument")
                    self.assertEqual(said.splitlines(), SAID, root)

    def test_a_newer_name_is_not_linked_and_told(self) -> None:
        linked = self.link("newer", "#include <unistd.h>\n"
                           "int main() { return close_range(3, 4, 0); }")  # of 2.34
        self.assertNotEqual(linked.returncode, 0)
        self.assertIn("undefined reference to `close_range'", linked.stderr)

    def test_a_program_of_this_machine_is_told_from_one_for_older_ones(self) -> None:
        source = self.folder / "ours.c"
        source.write_text("int main(void) { return 0; }\n")
        succeed(COMPILER, "-x", "c", source, "-o", self.folder / "ours")
        done = run(sys.executable, "-B", GLIBC / "newest.py", "2.0", self.folder / "ours")
        self.assertEqual(done.returncode, 1)
        self.assertIn("ours needs __libc_start_main of glibc 2.", done.stderr)
        empty = self.folder / "empty.whl"
        empty.write_bytes(b"PK\5\6" + bytes(18))
        done = run(sys.executable, "-B", GLIBC / "newest.py", "2.28", empty)
        self.assertEqual((done.returncode, "no program" in done.stderr), (1, True))
