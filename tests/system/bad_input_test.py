# SPDX-License-Identifier: Apache-2.0
"""bad_input_test.py ELASTRUN STUB_WORKER: what a person reads who asked for the impossible.

Words and variables that mean nothing, job files and scripts with a mistake: the table of
mistakes.py. A worker that stops is in ending_test.py, a clock set back in kernel_test.py.
"""
from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

import mistakes
from launched import STUB, Case

# What no person should have to read: names of our libraries, types and exceptions.
INNARDS = ("terminate called", "what():", "std::", "boost", "CLI::", "toml::", "Assertion",
           "AddressSanitizer", "basic_string")


class Refusals(Case):
    def refused(self, *words: str, code: int, says: tuple[str, ...],
                **more) -> str:
        done = self.run_elastrun(*words, **more)
        self.assertEqual(done.returncode, code, done.stderr)
        for text in says:
            self.assertIn(text, done.stderr)
        for text in INNARDS:
            self.assertNotIn(text, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertNotIn("Root Cause", done.stderr)
        sentences = [line for line in done.stderr.splitlines() if line.startswith("elastrun: ")]
        self.assertEqual(len(sentences), 1, done.stderr)
        return done.stderr

    def test_an_exit_code_of_a_shell_is_explained(self) -> None:
        done = self.run_elastrun("--no-python", "sh", "-c", "exit 137")
        self.assertEqual(done.returncode, 1)
        self.assertIn("137 is 128 + 9: so a shell says that SIGKILL ended", done.stderr)

    def test_a_program_that_is_not_there(self) -> None:
        self.refused("--no-python", "./gone", code=1, says=(
            "cannot run the program './gone': No such file or directory",
            "relative to the current directory"))

    def test_a_program_that_may_not_be_executed(self) -> None:
        (self.folder / "plain").write_text("hello\n")
        self.refused("--no-python", "./plain", code=1, says=(
            "cannot run the program './plain': Permission denied", "chmod +x"))

    def test_interpreters_that_are_missing(self) -> None:
        (self.folder / "train.py").touch()
        self.refused("train.py", env={"PYTHON_EXEC": "/no/python"}, code=1, says=(
            "cannot run the interpreter '/no/python'", "correct or unset the variable"))
        script = self.folder / "tool"
        script.write_text("#!/no/such/interpreter\n")
        script.chmod(0o755)
        self.refused("--no-python", "./tool", code=1, says=(
            "its first line asks for /no/such/interpreter, which is missing",))

    def test_log_directories_that_cannot_be_written(self) -> None:
        (self.folder / "plain").touch()
        for place in ("plain/logs", "/proc/logs"):
            text = self.refused("--log-dir", place, "--redirects", "3", "--no-python", STUB,
                                "say=started", code=1, says=(place, "--log-dir"))
            self.assertRegex(text, "Not a directory|No such file|Permission|not permitted")

    def test_a_port_in_use_names_its_owner(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            self.refused("--master-addr", "127.0.0.1", "--master-port", port, "--no-python", STUB,
                         "say=started", code=1, says=(
                             f"cannot listen on 127.0.0.1:{port}: the port is in use",
                             f"by process {os.getpid()} (", "choose another port"))

    def test_gpus_where_there_are_none(self) -> None:
        if Path("/proc/driver/nvidia").exists() or Path("/dev/nvidia0").exists():
            self.skipTest("this machine has a GPU")
        self.refused("--nproc-per-node", "gpu", "x.py", env={"CUDA_VISIBLE_DEVICES": ""}, code=1,
                     says=("no GPU is visible here", "takes a number, cpu or auto"))

    def test_each_mistake_of_a_first_hour_is_answered(self) -> None:
        (self.folder / "ok.py").write_text("pass\n")
        cases = [(words.split(), {}, code, says) for words, code, says in mistakes.OPTIONS]
        cases += [(["ok.py"], dict([pair.split("=")]), code, says)
                  for pair, code, says in mistakes.VARIABLES]
        for words, variables, code, says in cases:
            with self.subTest(words=words, variables=variables):
                if code != 0:
                    said = self.refused("--dry-run", *words, env=variables, code=code, says=())
                else:
                    done = self.run_elastrun("--dry-run", *words, env=variables)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    said = done.stderr + done.stdout
                self.assertRegex(said, says)
        for text, says in mistakes.JOB_FILES:
            with self.subTest(text):
                (self.folder / "job.toml").write_text(text)
                self.assertRegex(self.refused("--config", "job.toml", "ok.py", code=2, says=()),
                                 says)

    def test_each_script_of_a_first_hour_ends_with_its_reason(self) -> None:
        for text, says in mistakes.SCRIPTS:
            with self.subTest(text):
                (self.folder / "train.py").write_text(text)
                done = self.run_elastrun("train.py")
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertRegex(done.stderr, f"elastrun: FAILED after [^:\n]*: {says}\n$")

    def test_an_environment_too_large_for_exec_names_the_largest_variable(self) -> None:
        size = 200 * 1024  # more than one text may have: 32 pages
        (self.folder / "job.toml").write_text(
            f'[job]\nno_python = true\nscript = "{STUB}"\n[env]\nBIG = "{"x" * size}"\n')
        text = self.refused("--config", "job.toml", code=1, says=(
            "Argument list too long", "the largest variable is BIG", "unset or shorten it"))
        self.assertLess(len(text), 2000)


class Limits(Case):
    def run_with_descriptors(self, count: int, *words: str):
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
        return self.run_elastrun(*words, preexec_fn=limit)

    def test_too_many_workers_for_the_descriptor_limit_leave_nobody(self) -> None:
        # Each limit breaks the start at another place; with the lowest no worker is started at all,
        # with the highest many run already. run_elastrun looks for survivors.
        for count in (4, 5, *range(14, 130, 9)):
            with self.subTest(limit=count):
                done = self.run_with_descriptors(count, "--nproc-per-node", "100", "--no-python",
                                                 STUB, "ignore=TERM", "child=setsid", "stay")
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertEqual(list((self.folder / "tmp").iterdir()), [])
                if count < 24:
                    self.assertIn(f"the limit of open files is {count}, and a job of one worker "
                                  "takes 24: raise it (ulimit -n)", done.stderr)
                    continue
                self.assertIn("the workers could not be started", done.stderr)
                self.assertIn("Too many open files", done.stderr)
                self.assertIn("raise the limit: ulimit -n", done.stderr)


class Outputs(Case):
    def failed(self, *steps: str) -> str:
        done = self.run_elastrun("--no-python", STUB, *steps, "exit=3")
        self.assertEqual(done.returncode, 1)
        self.assertIn("exit code 3", done.stderr)
        return done.stderr

    def test_error_files_that_are_no_json_are_shown_as_they_are(self) -> None:
        for text in ("{nonsense", "[1,2]", '{"message": 3}', "null"):
            with self.subTest(text=text):
                shown = text.replace('"', '\\"')
                said = self.failed(f"error={text}")
                self.assertIn(f'not in torch\'s form; it begins: "{shown}"', said)
        # What a full disk leaves says nothing.
        self.assertIn("it wrote nothing on stderr", self.failed("error="))
        message = '{"message": {"message": "RuntimeError: no", "extraInfo": {"timestamp": "x"}}}'
        self.assertIn("RuntimeError: no", self.failed(f"error={message}"))

    def test_binary_output_passes_unchanged(self) -> None:
        done = self.run_elastrun("--tee", "1", "--log-dir", "logs", "--no-python", STUB,
                                 "binary=100000", text=False, errors=None)
        self.assertEqual(done.returncode, 0)
        (log,) = self.folder.glob("logs/**/stdout.log")
        self.assertEqual(log.read_bytes(), bytes(i % 256 for i in range(100000)))
        # The console shows what a terminal would in the end: no text that a CR overwrites.
        lines = [line.removeprefix(b"[default0]:") for line in done.stdout.split(b"\n")]
        told = [line.rpartition(b"\r")[2] for line in log.read_bytes().split(b"\n")]
        self.assertEqual(b"\n".join(lines).rstrip(b"\n"), b"\n".join(told).rstrip(b"\n"))

    def test_a_worker_that_closes_its_output_goes_on(self) -> None:
        done = self.run_elastrun("--tee", "3", "--no-python", STUB, "say=before", "close=stdout",
                                 "complain=after", "file=done:yes", "exit=0")
        self.assertEqual((done.returncode, done.stdout), (0, "[default0]:before\n"))
        self.assertIn("[default0]:after\n", done.stderr)
        self.assertEqual((self.folder / "done").read_text(), "yes")

    def test_a_worker_in_a_script_that_asks_for_input_sees_its_end(self) -> None:
        done = self.run_elastrun("--no-python", STUB, "read")
        self.assertEqual((done.returncode, done.stdout), (0, "read 0\n"))
