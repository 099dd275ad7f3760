#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts that cannot work: a sentence that a person understands, and nobody left behind."""
import os
import resource
import socket
import unittest

from harness import Job, main, stub, wait_until


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
        ended_by_themselves = 0
        for limit in range(24, 64, 4):
            def few(limit: int = limit) -> None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

            with self.subTest(limit), Job("--nproc-per-node=8", *stub("pid", "stay"),
                                          before=few) as job:
                wait_until(lambda: job.process.poll() is not None or len(job.lines("^pid")) == 8,
                           "it runs or has ended")
                ended_by_themselves += job.process.poll() is not None
                job.process.terminate()
                self.assertEqual(job.end(), 1, job.errors())
                job.nothing_left()
        self.assertGreater(ended_by_themselves, 0)

    def test_a_missing_program(self) -> None:
        self.refused(Job("--no-python", "./nothing-here"), "No such file or directory")

    def test_a_program_that_may_not_be_run(self) -> None:
        self.refused(Job("--no-python", "/etc/passwd"), "Permission denied")

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
        self.refused(Job(*stub("stay"), env={"LOGLEVEL": "LOUD"}), "Unknown level: 'LOUD'")

    def test_an_option_that_does_not_exist(self) -> None:
        self.refused(Job("--nproc-per-nodes=2", *stub("stay")), "--nproc-per-node", code=2)


if __name__ == "__main__":
    main()
