#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bad_input_test.py ELASTRUN STUB_WORKER: what a person reads who asked for the impossible.

What is promised, and where it is tried (here, unless another file is named):

  unknown option                   test_unknown_option
  ambiguous option                 test_ambiguous_option
  bad number                       test_numbers_that_are_none, test_numbers_out_of_range
  missing script                   test_no_script
  script not found                 test_a_script_that_is_not_there_is_named_before_anything_starts
  interpreter missing              test_interpreters_that_are_missing
  not executable                   test_a_program_that_may_not_be_executed
  unwritable log directory         test_log_directories_that_cannot_be_written
  port in use                      test_a_port_in_use_names_its_owner
  invalid TOML                     test_job_files
  contradictory options            test_contradictions_name_both_sides
  --nproc-per-node 0               test_numbers_out_of_range
  gpu without GPU                  test_gpus_where_there_are_none
  too few descriptors              test_too_many_workers_for_the_descriptor_limit_leave_nobody
  environment too large for exec   test_an_environment_too_large_for_exec_names_...
  error file with invalid JSON     test_error_files_that_are_no_json_are_shown_as_they_are
  binary output                    test_binary_output_passes_unchanged
  worker that closes its stdout    test_a_worker_that_closes_its_output_goes_on
  worker that stops (SIGSTOP)      ending_test.py: test_a_stopped_worker_...
  clock stepping backwards         kernel_test.py: ClockSetBack
  the mistakes of a first hour     mistakes.py: a table of them
"""
from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

import mistakes
from launched import STUB, Case, main

# What no person should have to read: names of our libraries, types and exceptions.
INNARDS = ("terminate called", "what():", "std::", "boost", "CLI::", "toml::", "Assertion",
           "AddressSanitizer", "basic_string")


class Refusals(Case):
    def refused(self, *words: str, code: int, says: tuple[str, ...], nothing_ran: bool = True,
                **more) -> str:
        done = self.run_elastrun(*words, **more)
        self.assertEqual(done.returncode, code, done.stderr)
        for text in says:
            self.assertIn(text, done.stderr)
        for text in INNARDS:
            self.assertNotIn(text, done.stderr)
        if nothing_ran:
            self.assertEqual(done.stdout, "")
            self.assertNotIn("Root Cause", done.stderr)
            sentences = [line for line in done.stderr.splitlines()
                         if line.startswith("elastrun: ")]
            self.assertEqual(len(sentences), 1, done.stderr)
        return done.stderr

    def test_unknown_option(self) -> None:
        self.refused("--nonesuch", STUB, code=2, says=(
            "unrecognized arguments: --nonesuch", "arguments of the script follow the script"))

    def test_ambiguous_option(self) -> None:
        self.refused("--ma", "x.py", code=2, says=(
            "ambiguous option: --ma could match", "--master-addr", "--max-restarts",
            "write the option in full"))

    def test_numbers_that_are_none(self) -> None:
        self.refused("--max-restarts", "abc", "x.py", code=2, says=(
            "--max-restarts", "'abc'", "expected a whole number"))
        self.refused("--nproc-per-node", "two", "x.py", code=1, says=(
            "two", "expected a number, auto, gpu, cpu, xpu, or what torch calls"))
        self.refused("--nnodes", "a", "x.py", code=1, says=("--nnodes", "'a'", "range such as"))
        self.refused("x.py", env={"PET_MAX_RESTARTS": "many"}, code=2, says=("many",))

    def test_numbers_out_of_range(self) -> None:
        for number in ("0", "-3"):
            self.refused("--nproc-per-node", number, "x.py", code=1, says=(
                f"nproc_per_node must be > 0, got {number}", "see --nproc-per-node"))
        self.refused("--nnodes", "3:1", "x.py", code=1, says=("min_nodes=3, max_nodes=1",))
        self.refused("--monitor-interval", "-1", "x.py", code=1, says=("must be > 0, got -1",))

    def test_no_script(self) -> None:
        self.refused(code=2, says=("required: training_script",))

    def test_a_script_that_is_not_there_is_named_before_anything_starts(self) -> None:
        text = self.refused("gone.py", code=1, nothing_ran=False, says=())
        first = text.splitlines()[0]
        self.assertIn("the script 'gone.py' does not exist in the current directory", first)

    def test_a_script_that_python_cannot_parse_is_named_with_its_line(self) -> None:
        (self.folder / "broken.py").write_text("x = 1\ny = = 2\n")
        done = self.run_elastrun("broken.py")
        self.assertEqual(done.returncode, 1)
        self.assertIn("SyntaxError: invalid syntax (broken.py:2)", done.stderr)

    def test_an_exit_code_of_a_shell_is_explained(self) -> None:
        done = self.run_elastrun("--no-python", "sh", "-c", "exit 137")
        self.assertEqual(done.returncode, 1)
        self.assertIn("137 is 128 + 9: so a shell says that SIGKILL ended", done.stderr)

    def test_a_dry_run_warns_as_a_run_does(self) -> None:
        done = self.run_elastrun("--dry-run", "--rdzv-backend", "c10d", "--rdzv-conf", "foo=3",
                                 STUB)
        self.assertEqual(done.returncode, 0)
        self.assertIn("the c10d backend does not read 'foo'", done.stderr)

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

    def test_contradictions_name_both_sides(self) -> None:
        self.refused("-m", "--no-python", STUB, code=1, says=(
            "--no-python on the command line and --module on the command line",))
        self.refused("--standalone", "--nnodes", "2", "x.py", code=1, says=(
            "--standalone is for one node, but --nnodes 2", "leave one of the two out"))

    def test_gpus_where_there_are_none(self) -> None:
        if Path("/proc/driver/nvidia").exists() or Path("/dev/nvidia0").exists():
            self.skipTest("this machine has a GPU")
        self.refused("--nproc-per-node", "gpu", "x.py", env={"CUDA_VISIBLE_DEVICES": ""}, code=1,
                     says=("no GPU is visible here", "takes a number, cpu or auto"))

    def test_unknown_choices_list_the_known_ones(self) -> None:
        for option, code, says in (("--rdzv-backend", 1, "c10d"), ("--start-method", 2, "spawn"),
                                   ("--tee", 1, "expected 0 (none)"),
                                   ("--exit-code", 2, "worker")):
            self.refused(option, "nonsense", "x.py", code=code, says=(says,))
        self.refused("x.py", env={"LOGLEVEL": "loud"}, code=1, says=("LOGLEVEL is one of",))

    def test_job_files(self) -> None:
        job = self.folder / "job.toml"
        for text, place, says in (
                ("x = = 3", "1:5", "text stands in double quotes"),
                ('[job]\nscript = "unclosed', "2:", "unescaped|unterminated|end-of-file"),
                ("[jobs]\n", "1:", r"\[job\]"),
                ("[job]\nnproc_per_nod = 2\n", "2:", "nproc_per_node"),
                ("[job]\nnproc_per_node = true\n", "2:", "expected"),
                ("nproc_per_node = 2\n", "1:1", r"belongs into the section \[job\]")):
            job.write_text(text)
            said = self.refused("--config", "job.toml", code=2, says=(f"job.toml:{place}",))
            self.assertRegex(said, says)
        self.refused("--config", "gone.toml", code=2, says=(
            "cannot read the job file gone.toml", "--config on the command line"))

    def test_each_mistake_of_a_first_hour_is_answered(self) -> None:
        (self.folder / "ok.py").write_text("pass\n")
        cases = [(words.split(), {}, code, says) for words, code, says in mistakes.OPTIONS]
        cases += [(["ok.py"], dict([pair.split("=")]), code, says)
                  for pair, code, says in mistakes.VARIABLES]
        for words, variables, code, says in cases:
            with self.subTest(words=words, variables=variables):
                done = self.run_elastrun("--dry-run", *words, env=variables)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertRegex(done.stderr + done.stdout, says)
        for text, says in mistakes.JOB_FILES:
            with self.subTest(text):
                (self.folder / "job.toml").write_text(text)
                done = self.run_elastrun("--dry-run", "--config", "job.toml", "ok.py")
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertRegex(done.stderr, says)

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
        for count in range(14, 130, 9):
            with self.subTest(limit=count):
                done = self.run_with_descriptors(count, "--nproc-per-node", "100", "--no-python",
                                                 STUB, "ignore=TERM", "child=setsid", "stay")
                self.assertEqual(done.returncode, 1, done.stderr)
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


if __name__ == "__main__":
    main()
