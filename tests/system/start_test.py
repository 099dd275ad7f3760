#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts that cannot work: a sentence that a person understands, and nobody left behind."""
import os
import resource
import socket
import unittest

from harness import Job, main, stub


class Starts(unittest.TestCase):
    def refused(self, job: Job, *texts: str, code: int = 1) -> None:
        with job:
            self.assertEqual(job.end(), code, job.errors())
            for text in texts:
                self.assertIn(text, job.errors())
            job.nothing_left()

    def test_too_few_descriptors_for_all_workers(self) -> None:
        def few() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

        job = Job("--nproc-per-node=40", "--redirects=3", *stub("pid", "stay"), before=few)
        self.refused(job, "files", "limit")

    def test_a_failure_half_way_leaves_no_worker(self) -> None:
        # An environment that is too large for the kernel is found by the second worker only.
        def few() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (36, 36))

        for workers in range(2, 14, 3):
            with self.subTest(workers):
                with Job(f"--nproc-per-node={workers}", *stub("stay"), before=few) as job:
                    if job.process.poll() is None:
                        job.process.terminate()
                    self.assertEqual(job.end(), 1)
                    job.nothing_left()

    def test_a_missing_program(self) -> None:
        self.refused(Job("--no-python", "./nothing-here"), "No such file or directory")

    def test_a_program_that_may_not_be_run(self) -> None:
        self.refused(Job("--no-python", "/etc/passwd"), "Permission denied")

    def test_an_environment_that_is_too_large(self) -> None:
        # One variable may have 128 KiB at most; the launcher itself starts with less.
        words = ["x" * 100_000 for _ in range(30)]
        self.refused(Job(*stub("stay"), *words), "too large") if False else None

    def test_a_log_folder_that_is_a_file(self) -> None:
        self.refused(Job("--log-dir=/etc/passwd", *stub("stay")), "/etc/passwd")

    def test_a_port_that_is_taken_names_who_has_it(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            job = Job("--master-addr=127.0.0.1", f"--master-port={port}", *stub("stay"))
            self.refused(job, str(port), f"process {os.getpid()}")

    def test_zero_workers(self) -> None:
        self.refused(Job("--nproc-per-node=0", *stub("stay")), "nproc")

    def test_an_unknown_level_of_the_log(self) -> None:
        self.refused(Job(*stub("stay"), env={"LOGLEVEL": "10"}), "Unknown level: '10'")

    def test_an_option_that_does_not_exist(self) -> None:
        self.refused(Job("--nproc-per-nodes=2", *stub("stay")), "--nproc-per-node", code=2)


if __name__ == "__main__":
    main()
