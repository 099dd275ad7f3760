# SPDX-License-Identifier: Apache-2.0
"""What workers write arrives whole, and trouble with the console is not theirs."""
import array
import fcntl
import json
import os
import resource
import socket
import termios
import unittest

from harness import Job, stub, wait_until

LIMIT_OF_FILES = 20 << 10  # bytes


def waiting(reader: int) -> int:
    """Bytes in a pipe."""
    count = array.array("i", [0])
    fcntl.ioctl(reader, termios.FIONREAD, count)
    return count[0]


class Output(unittest.TestCase):

    def test_the_last_words_of_a_crash_are_not_lost(self) -> None:
        with Job("--nproc-per-node=2", "--tee=1",
                 *stub("flood=200000", "half=last words", "die=KILL")).ended(1) as job:
            self.assertIn("last words", job.output())

    def test_a_hundred_thousand_lines_are_all_there(self) -> None:
        with Job("--nproc-per-node=4", "--tee=1", *stub("flood=2000000")).ended() as job:
            lines = job.output().splitlines()
            self.assertEqual(len(lines), 4 * 25000)
            self.assertTrue(all(line.startswith("[default") for line in lines))

    def test_the_help_is_whole_where_somebody_has_made_stdout_non_blocking(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        try:
            with Job("--help", stdout=writer) as job:
                wait_until(lambda: waiting(reader) == size or job.process.poll() is not None,
                           "the pipe is full")
                os.close(writer)
                writer = -1
                with open(reader, "rb", closefd=False) as file:
                    text = file.read()
                self.assertEqual(job.end(), 0)
            with Job("--help").ended() as job:
                self.assertEqual(job.output().encode(), text)
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)

    def test_a_closed_stdout_does_not_end_the_training(self) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        try:
            for options in (("--tee=1",), ()):
                with self.subTest(options), Job(*options, *stub("flood=300000", "complain=done"),
                                                stdout=writing).ended() as job:
                    self.assertIn("done", job.errors())
                    self.assertIn("cannot write to stdout: its reader has gone", job.errors())
        finally:
            os.close(writing)

    def test_a_full_disk_does_not_end_the_training(self) -> None:
        full = os.open("/dev/full", os.O_WRONLY)
        try:
            with Job("--tee=1", *stub("flood=300000", "complain=done"), stdout=full).ended() as job:
                self.assertIn("done", job.errors())
                self.assertIn("cannot write to stdout", job.errors())
        finally:
            os.close(full)

    def test_a_limit_of_file_size_ends_neither_the_training_nor_the_verdict(self) -> None:
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_OF_FILES, LIMIT_OF_FILES))

        for options in (("--tee=1",), ()):
            with self.subTest(options), Job(*options, *stub("signals", "flood=300000",
                                                            "complain=done", "exit=3"),
                                            before=limit).ended(1) as job:
                self.assertIn("done", job.errors())
                self.assertIn("exitcode  : 3", job.errors())
                self.assertEqual(job.out.stat().st_size, LIMIT_OF_FILES)
                self.assertRegex(job.output(), "(?m)^.*ignored blocked$")  # nothing, for workers

    def test_the_launchers_log_is_in_the_directory_of_the_run(self) -> None:
        with Job("--log-dir=logs", *stub("exit=0"), env={"LOGLEVEL": "ERROR"}).ended() as job:
            self.assertEqual(job.errors(), "")
            [log] = (job.folder / "logs").glob("*/agent.log")
            lines = log.read_text().splitlines()
            self.assertRegex(lines[0], r"^I\d{4} [\d:.]{15} \d+ api\] Starting elastic_operator")
            self.assertRegex(lines[-1], r"^I.* api\] \[default\] The job is over: it succeeded$")

    def test_the_launchers_log_as_json(self) -> None:
        with Job("--log-format=json", "--log-dir=logs", "--rdzv-conf=wrong=1",
                 *stub("exit=4")).ended(1) as job:
            shown = [json.loads(line) for line in job.errors().splitlines() if line[0] == "{"]
            self.assertIn("does not read 'wrong'", shown[0]["message"])
            self.assertEqual({fact["severity"] for fact in shown}, {"WARNING", "ERROR"})
            self.assertNotRegex(job.errors(), r"(?m)^[VIWEC]\d{4} ")
            facts = job.records("logs/*/agent.log")
            self.assertEqual(facts[-1]["message"], "[default] The job is over: it failed")
            self.assertEqual(facts[-1]["host"], socket.gethostname())
