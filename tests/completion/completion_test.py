# SPDX-License-Identifier: Apache-2.0
"""completion_test.py ELASTRUN ELASTRUNCTL: real shells complete the words of both programs."""
from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path

PROGRAMS = {Path(word).name: Path(word).resolve() for word in sys.argv[1:3]}
LIMIT = 60.0  # only ends a test that would otherwise hang
# What is typed, and what must be offered for the last word.
OFFERS = [
    (["elastrun", "--nproc-per"], {"--nproc-per-node"}),
    (["elastrun", "--rdzv-backend", ""], {"static", "c10d", "etcd", "etcd-v2", "file"}),
    (["elastrun", "--numa-binding", "so"], {"socket"}),
    (["elastrun", "--standalone", "tr"], {"train.py"}),
    (["elastrunctl", ""], {"status", "logs", "store"}),
    (["elastrunctl", "st"], {"status", "store"}),
    (["elastrunctl", "--print-completion", ""], {"bash", "zsh", "fish"}),
    (["elastrunctl", "status", "--js"], {"--json"}),
    (["elastrunctl", "logs", "--no"], {"--no-follow"}),
    (["elastrunctl", "store", "--co"], {"--coordinator-only"}),
    (["elastrunctl", "goodput", ""], {"report", "convert", "watch", "what-if"}),
    (["elastrunctl", "goodput", "report", "--ht"], {"--html"}),
    (["elastrunctl", "goodput", "--to", ""], {"chrome-trace", "tensorboard"}),
    (["elastrunctl", "store", "--secret-file", "tr"], {"train.py"}),
    (["elastrun", "--metrics", "pro"], {"prometheus:"}),
    (["elastrun", "--metrics", ""], {"console", "jsonl:", "otlp:", "exec:"}),
    (["elastrun", "--rdzv-conf", "l"], {"last_call_timeout=", "lease_ttl="}),
    (["elastrunctl", "logs", "ni"], {"night"}),
    (["elastrunctl", "stacks", "ni"], {"night"}),
    (["elastrunctl", "status", ""], {"night", "other"}),
    (["elastrunctl", "logs", "two"], {"two words $(touch ran)"}),
]
# What must not be offered: options of the other subcommand.
ALIENS = [(["elastrunctl", "status", "--co"], "--coordinator-only"),
          (["elastrunctl", "store", "--js"], "--json")]


JOBS = tempfile.TemporaryDirectory()


def setUpModule() -> None:
    """Jobs of this machine, whose names are offered."""
    unittest.addModuleCleanup(JOBS.cleanup)
    env = os.environ | {"ELASTRUN_RUNTIME_DIR": JOBS.name}
    for name in ("night", "other", "two words $(touch ran)"):
        job = subprocess.Popen([PROGRAMS["elastrun"], f"--name={name}", "--no-python",
                                "sleep", "600"], env=env, stdin=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
        unittest.addModuleCleanup(job.wait)
        unittest.addModuleCleanup(job.terminate)
        while name not in subprocess.run([PROGRAMS["elastrunctl"], "status"], env=env,
                                         capture_output=True, text=True).stdout:
            assert job.poll() is None
            time.sleep(0.02)


class Case(unittest.TestCase):
    shell = ""

    def setUp(self) -> None:
        if not shutil.which(self.shell):
            self.skipTest(f"there is no {self.shell} here")
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "train.py").touch()
        for name, program in PROGRAMS.items():
            script = subprocess.run([program, "--print-completion", self.shell], check=True,
                                    capture_output=True, text=True).stdout
            (self.folder / f"{name}.script").write_text(script)
        self.env = dict(os.environ, HOME=str(self.folder), XDG_CONFIG_HOME=str(self.folder),
                        TERM="dumb", LC_ALL="C.UTF-8", ELASTRUN_RUNTIME_DIR=JOBS.name,
                        PATH=f"{PROGRAMS['elastrunctl'].parent}:{os.environ['PATH']}")

    def run_shell(self, *words: str) -> list[str]:
        done = subprocess.run([self.shell, *words], capture_output=True, text=True, env=self.env,
                              cwd=self.folder, timeout=LIMIT, stdin=subprocess.DEVNULL)
        self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        return done.stdout.split("\n")[:-1]

    def check_words(self, offers: Callable[[list[str]], set[str]]) -> None:
        for words, expected in OFFERS:
            with self.subTest(words):
                self.assertLessEqual(expected, offers(words))
        self.assertFalse((self.folder / "ran").exists(), "a name is no command")
        for words, alien in ALIENS:
            with self.subTest(words):
                self.assertNotIn(alien, offers(words))


class Bash(Case):
    shell = "bash"

    def offers(self, words: list[str]) -> set[str]:
        typed = " ".join(map(shlex.quote, words))
        # -o filenames means something to readline only, which asks for no completion here.
        return set(self.run_shell("--norc", "-c", f"""
            . ./{words[0]}.script
            COMP_WORDS=({typed}) COMP_CWORD={len(words) - 1}
            _{words[0]}
            [ ${{#COMPREPLY[@]}} = 0 ] || printf '%s\\n' "${{COMPREPLY[@]}}" """))

    def test_words_are_completed(self) -> None:
        self.check_words(self.offers)

    def test_a_value_after_an_equals_sign(self) -> None:
        self.assertIn("c10d", self.offers(["elastrun", "--rdzv-backend", "=", "c1"]))
        self.assertIn("train.py", self.offers(["elastrunctl", "store", "--secret-file", "=", "t"]))


class Fish(Case):
    shell = "fish"

    def test_words_have_descriptions(self) -> None:
        for typed, line in (("elastrun --metrics js", "jsonl:\tsink"),
                            ("elastrun --rdzv-conf is", "is_host=\tkey of --rdzv-conf"),
                            ("elastrunctl logs ni", "night\tjob of this machine")):
            with self.subTest(typed):
                script = typed.split()[0]
                self.assertIn(line, self.run_shell("--no-config", "-c", f"source ./{script}.script;"
                                                                        f" complete -C '{typed}'"))

    def offers(self, words: list[str]) -> set[str]:
        typed = " ".join(words)
        lines = self.run_shell("--no-config", "-c",
                               f"source ./{words[0]}.script; complete -C '{typed}'")
        return {line.split("\t")[0] for line in lines}

    def test_words_are_completed(self) -> None:
        self.check_words(self.offers)


class Zsh(Case):
    shell = "zsh"

    def setUp(self) -> None:
        super().setUp()
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.chdir(self.folder)
            os.execvpe("zsh", ["zsh", "-f", "-i"], self.env)
        self.addCleanup(os.waitpid, self.child, 0)
        self.addCleanup(os.close, self.terminal)  # the shell ends by that
        self.seen = ""
        self.type("unset zle_bracketed_paste; PS1='$ '; stty cols 500; LISTMAX=0\n"
                  "autoload -Uz compinit && compinit -u -D\n"
                  ". ./elastrun.script; . ./elastrunctl.script; print rea''dy\n")
        self.see("ready")

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def see(self, pattern: str) -> None:
        """Reads what the shell shows until it matches."""
        while not re.search(pattern, self.seen):
            ready, _, _ = select.select([self.terminal], [], [], LIMIT)
            self.assertTrue(ready, f"{pattern} not in {self.seen!r}")
            self.seen += os.read(self.terminal, 65536).decode(errors="replace")
        self.seen = re.split(pattern, self.seen, maxsplit=1)[1]

    def test_a_unique_word_is_completed(self) -> None:
        for typed, rest in (("elastrun --nproc-per", "-node"),
                            ("elastrun --rdzv-backend c1", "0d"),
                            ("elastrun tr", "ain.py"),
                            ("elastrunctl stat", "us"),
                            ("elastrunctl status --js", "on"),
                            ("elastrunctl logs ni", "ght"),
                            ("elastrun --metrics pro", "metheus:"),
                            ("elastrun --rdzv-conf is_h", "ost="),
                            ("elastrunctl store --co", "ordinator-only"),
                            ("elastrunctl store --secret-file tr", "ain.py")):
            with self.subTest(typed):
                # The line as it stands after the completion, printed by the shell itself. (The
                # blank or "=" after it goes when something else than a word follows.)
                self.type(f"{typed}\t\x01print -r -- '<\x05>'\n")
                self.see(re.escape(f"\n<{typed}{rest}>"))

    def test_subcommands_are_offered_with_what_they_do(self) -> None:
        self.type("elastrunctl st\t\t")
        self.see(r"status +-- Who is in, who is missing")
        self.see(r"store +-- Host the rendezvous")


class Tcsh(unittest.TestCase):
    def test_it_takes_the_words(self) -> None:
        if not shutil.which("tcsh"):
            self.skipTest("there is no tcsh here")
        script = subprocess.run([PROGRAMS["elastrun"], "--print-completion", "tcsh"], check=True,
                                capture_output=True, text=True).stdout
        # What is typed, a Tab, Ctrl+A and a word before it: the shell prints the completed line.
        typed = [("elastrun --nproc-per", "--nproc-per-node"),
                 ("elastrun --rdzv-backend c1", "--rdzv-backend c10d"),
                 ("elastrun --standalone tr", "--standalone train.py"),
                 ("elastrun --rdzv-conf is_h", "--rdzv-conf is_host=")]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "train.py").touch()
            (Path(folder) / "script").write_text(script)
            child, terminal = pty.fork()
            if child == 0:
                os.chdir(folder)
                os.execvpe("tcsh", ["tcsh", "-f", "-i"], os.environ | {"TERM": "vt100"})
            self.addCleanup(os.close, terminal)
            os.write(terminal, b"source script\n")
            for line, _ in typed:
                os.write(terminal, f"{line}\t\x01echo \n".encode())
            os.write(terminal, b"exit\n")
            seen = b""
            with contextlib.suppress(OSError):  # its end
                while select.select([terminal], [], [], LIMIT)[0]:
                    seen += os.read(terminal, 65536)
            os.waitpid(child, 0)
        lines = [line.strip() for line in seen.decode(errors="replace").splitlines()]
        for _, expected in typed:
            self.assertIn(f"elastrun {expected}", lines, seen)


class Refusal(unittest.TestCase):
    def test_another_shell_is_a_mistake(self) -> None:
        for program in PROGRAMS.values():
            done = subprocess.run([program, "--print-completion", "csh"], capture_output=True,
                                  text=True)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("fish", done.stderr)
