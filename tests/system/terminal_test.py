# SPDX-License-Identifier: Apache-2.0
"""terminal_test.py ELASTRUN STUB_WORKER: the live line, and the size of the workers' terminals."""
from __future__ import annotations

import re
import shutil
import sys
import termios

from launched import ELASTRUN, LIMIT, Case
from screen import OnTerminal

STATUS = re.compile(r"\[[a-z ,]+\] \d+/\d+ workers")
# Whole lines, and lines in two pieces, between which the live line must keep away. Then it waits
# for the test, so that the live line is to be seen.
TALKER = """
import os, sys, time
rank = os.environ["RANK"]
def say(text, stream=sys.stdout):
    stream.write(text); stream.flush()
for i in range(50):
    say(f"line {rank} {i}.\\n", sys.stderr if i % 5 == 0 else sys.stdout)
if rank == "0":
    say("half of "); time.sleep(1.2); say("a line\\n")
say(f"talked {rank}\\n")
name = "go." + os.environ["TORCHELASTIC_RESTART_COUNT"]
while not os.path.exists(name): time.sleep(0.02)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == "1": sys.exit(3)
"""
# Tells each new size that it sees.
MEASURER = """
import os, sys, time
last = None
while not os.path.exists("go"):
    size = os.get_terminal_size(1).columns
    if size != last:
        print(f"size {size}", flush=True)
        last = size
    time.sleep(0.02)
"""

SILENCER = """
import os, signal, termios
modes = termios.tcgetattr(0)
modes[3] &= ~(termios.ECHO | termios.ICANON)
termios.tcsetattr(0, termios.TCSANOW, modes)
print("silent", flush=True)
"""


class Terminal(Case):
    def on_terminal(self, *words: str, program: list[str] | None = None,
                    stdout: int | None = None, columns: int = 100,
                    **variables: str) -> OnTerminal:
        environment = self.environment | {"TERM": "xterm"} | variables
        started = OnTerminal([*(program or [ELASTRUN]), *words], environment, str(self.folder),
                             LIMIT, columns, stdout)
        self.addCleanup(started.close)
        return started

    def script(self, text: str) -> str:
        path = self.folder / "worker.py"
        path.write_text(text)
        return str(path)

    def go(self, name: str = "go") -> None:
        (self.folder / name).touch()

    def test_the_line_tells_phase_workers_restarts_and_time(self) -> None:
        job = self.on_terminal("--nproc-per-node", "2", "--max-restarts", "2", self.script(TALKER))
        job.until_seen("talked 0", "talked 1")
        job.until(r"\[running\] 2/2 workers \| 0/2 restarts \| 0:\d\d$")
        self.go("go.0")
        job.until(r"\[running\] 2/2 workers \| 1/2 restarts( \| [^\n]*)? \| 0:\d\d$")
        self.go("go.1")
        self.assertEqual(job.finish(), 0)
        # Nothing is left of it, and all that the job said is there.
        self.assertFalse([line for line in job.screen.lines if STATUS.search(line)], str(job))
        self.assertEqual(job.screen.unknown, [])
        said = "\n".join(job.screen.lines)
        for rank in (0, 1):
            for number in range(50):
                self.assertEqual(said.count(f"line {rank} {number}."), 2, str(job))
        self.assertEqual(said.count("half of "), 2)

    def test_the_line_goes_on_with_the_time(self) -> None:
        job = self.on_terminal("--nproc-per-node", "1", self.script(TALKER))
        job.until(r"\[running\] 1/1 workers \| 0:0[1-9]$")
        self.go("go.0")
        self.assertEqual(job.finish(), 0)

    def test_the_line_never_stands_in_a_line_of_output(self) -> None:
        job = self.on_terminal("--nproc-per-node", "2", self.script(TALKER))
        job.until_seen("talked 0", "talked 1")
        self.go("go.0")
        job.finish()
        for state in job.seen:
            if STATUS.search(state):
                self.assertRegex(state, r"^\[[^]]*\] \d/\d workers( \| [^|]+)*$")
        # Output comes in pieces, but nothing of it has come behind the live line.
        self.assertNotRegex(job.raw, r"workers[^\r\n]*(line|half|talked)")

    def test_a_narrow_terminal_gets_a_short_line(self) -> None:
        job = self.on_terminal("--nproc-per-node", "2", "--max-restarts", "1", self.script(TALKER),
                               columns=30)
        job.until(r"\[running\] 2/2 workers \| 0:\d\d$")
        job.size(90)
        job.screen.columns = 90
        job.until(r"\[running\] 2/2 workers \| 0/1 restarts \| 0:\d\d$")
        self.go("go.0")
        self.go("go.1")
        job.finish()

    def test_no_line_without_a_terminal_that_can_take_it_away(self) -> None:
        self.go("go.0")
        script = self.script(TALKER)
        for words, variables in ((["--status", "off"], {}), ([], {"TERM": "dumb"})):
            job = self.on_terminal(*words, script, **variables)
            self.assertEqual(job.finish(), 0)
            self.assertNotRegex(job.raw, r"\[running\]")
        done = self.run_elastrun("--status", "on", script)
        self.assertNotIn("\x1b", done.stdout + done.stderr)
        self.assertNotIn("[running]", done.stdout + done.stderr)

    def test_no_colour_is_no_colour(self) -> None:
        self.go("go.0")
        job = self.on_terminal(self.script(TALKER), NO_COLOR="1")
        self.assertEqual(job.finish(), 0)
        self.assertIn("[starting]", job.raw)
        self.assertNotRegex(job.raw, r"\x1b\[[0-9;]*m")

    def test_the_last_line_is_the_verdict_and_red(self) -> None:
        script = self.script("import os, time\n"
                             "if os.environ['RANK'] == '5': raise ValueError('boom')\n"
                             "time.sleep(60)\n")
        for variables in ({}, {"NO_COLOR": "1"}):
            with self.subTest(variables):
                job = self.on_terminal("--nproc-per-node", "8", script, columns=80, **variables)
                self.assertEqual(job.finish(), 1, str(job))
                lines = [line for line in job.screen.lines if line]
                self.assertRegex(lines[-1], r"^elastrun: FAILED after .*: rank 5: ValueError: boom")
                last = job.raw.rstrip().splitlines()[-1]
                self.assertEqual(last.startswith("\x1b[1;31m"), not variables, last)
                self.assertEqual("\x1b[1;31m" in job.raw, not variables)
                # torchrun's block of eight failures would take a screen and more.
                block = lines[lines.index("  and 5 more"):]
                self.assertLess(len(block), 15, str(job))

    def test_stdout_to_a_file_and_the_line_on_stderr(self) -> None:
        path = self.folder / "output"
        with open(path, "wb") as output:
            job = self.on_terminal("--nproc-per-node", "2", self.script(TALKER),
                                   stdout=output.fileno())
            job.until(r"\[running\] 2/2 workers \| 0:\d\d$")
            while path.read_text().count("talked") < 2:
                self.assertTrue(job.read(0.05), str(job))
            self.go("go.0")
            job.finish()
        text = path.read_text()
        self.assertNotIn("\x1b", text)
        self.assertEqual(len(text.splitlines()), 2 * 40 + 3, text)

    def test_workers_see_a_terminal_and_its_new_size(self) -> None:
        job = self.on_terminal(self.script(MEASURER), columns=91)
        job.until(r"size 91\b")
        job.size(132)
        job.until(r"size 132\b")
        self.go()
        self.assertEqual(job.finish(), 0)

    def test_a_signal_of_a_window_is_no_order(self) -> None:
        # Without a terminal nobody listens to it, and it must not end anything either.
        script = self.script("import os, time, signal\n"
                             "print('ready', flush=True)\n"
                             "while not os.path.exists('go'): time.sleep(0.02)\n")
        job = self.start_elastrun(script)
        self.line_with(job.stdout, "ready")
        job.send_signal(28)  # SIGWINCH
        self.go()
        self.assertEqual(job.wait(LIMIT), 0)

    def test_a_terminal_that_is_shared_with_a_prompt_is_not_painted_on(self) -> None:
        # As an interactive shell runs `elastrun ... &`: in a group of its own.
        shell = ("import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:], process_group=0)"
                 ".returncode)")
        environment = self.environment | {"TERM": "xterm"}
        job = OnTerminal([sys.executable, "-c", shell, ELASTRUN, "--nproc-per-node", "1",
                          self.script(TALKER)], environment, str(self.folder), LIMIT)
        self.addCleanup(job.close)
        job.until_seen("talked 0")
        self.go("go.0")
        self.assertEqual(job.finish(), 0)
        self.assertNotIn("\x1b[K", job.raw)

    def test_who_is_killed_without_giving_back_the_echo_leaves_no_silent_terminal(self) -> None:
        # As getpass.getpass() does, or a debugger's prompt; or who goes on to do so in peace.
        for end, code in (("os.kill(os.getpid(), signal.SIGKILL)", 1), ("", 0)):
            with self.subTest(end):
                job = self.on_terminal(self.script(SILENCER + end))
                before = termios.tcgetattr(job.ours)
                self.assertEqual(job.finish(), code, str(job))
                self.assertIn("silent", job.raw)
                changed = before[3] ^ termios.tcgetattr(job.ours)[3]
                self.assertEqual(changed, 0 if code else termios.ECHO | termios.ICANON)

    def test_in_the_background_of_a_script_the_terminal_is_the_scripts(self) -> None:
        # Without job control it is in the group of the script, which asks for a password itself.
        failing = self.script("import os, time\n"
                              "open('runs', 'w').close()\n"
                              "while not os.path.exists('go'): time.sleep(0.02)\n"
                              "raise SystemExit(3)\n")
        text = ('"$0" "$1" >log 2>&1 & until [ -e runs ]; do sleep 0.02; done; '
                'stty -echo; touch go; wait $!; echo "code $?"')
        job = self.on_terminal(failing, program=["/bin/sh", "-c", text, ELASTRUN])
        self.assertEqual(job.finish(), 0, str(job))
        self.assertIn("code 1", job.raw)
        self.assertEqual(termios.tcgetattr(job.ours)[3] & termios.ECHO, 0)

    def test_a_notebook_gets_no_live_line(self) -> None:
        job = self.on_terminal("--nproc-per-node", "1", self.script(TALKER), JPY_PARENT_PID="1")
        job.until_seen("talked 0")
        self.go("go.0")
        self.assertEqual(job.finish(), 0)
        self.assertNotIn("\x1b[K", job.raw)

    def test_a_typescript_gets_no_live_line(self) -> None:
        words = " ".join([ELASTRUN, "--nproc-per-node", "1", self.script(TALKER)])
        self.go("go.0")
        job = OnTerminal([shutil.which("script") or "script", "-qefc", words, "typescript"],
                         self.environment | {"TERM": "xterm"}, str(self.folder), LIMIT)
        self.addCleanup(job.close)
        self.assertEqual(job.finish(), 0)
        self.assertIn("talked 0", job.raw)
        self.assertNotIn("\x1b[K", (self.folder / "typescript").read_text())
