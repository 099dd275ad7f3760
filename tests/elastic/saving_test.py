# SPDX-License-Identifier: Apache-2.0
"""Workers that save use their store until they have: saving_test.py ELASTRUN STUB_WORKER.

The node that serves the store has ended its own workers long before the others have.
"""
from __future__ import annotations

import signal
import sys
from pathlib import Path

from harness import Job, wait_until
from jobs_test import INFO, Elastic
from ports import free_port

SAVER = str(Path(__file__).with_name("saver.py"))
FORMS = "to stop their workers"  # this node has asked for the next round, and waits for others
# The store stays, and so does a leader that has heard first that the other node leaves.
STAYS = "it stays until they have ended|coordinates the job until they have ended"


class Saving(Elastic):
    conf = "last_call_timeout=1,close_timeout=1"

    def by_file(self) -> None:
        super().by_file()
        self.conf += ",close_timeout=1"

    def agent(self, nodes: str, *options: str) -> Job:
        return self.job(nodes, [*options, "--no-python", sys.executable, "-S", SAVER,
                                str(self.folder)], env=INFO)

    def pair(self, nodes: str = "2", *options: str, first: tuple[str, ...] = (),
             second: tuple[str, ...] = ()) -> tuple[Job, Job]:
        """Two agents that work: that of group rank 0, and the other one."""
        jobs = [self.agent(nodes, *options, *first)]
        if "file" in self.where[0]:
            self.elected(jobs[0])
        jobs.append(self.agent(nodes, *options, *second))
        for job in jobs:
            job.wait_for("^WORLD_SIZE=2")
        ranks = [job.lines(r"^GROUP_RANK=(\d)")[-1] for job in jobs]
        return (jobs[0], jobs[1]) if ranks[0] == "0" else (jobs[1], jobs[0])

    def save(self, server: Job, saver: Job, sign: str) -> None:
        """The server of the store has no workers any more, the other node's save."""
        saver.wait_for("^saving")
        wait_until(lambda: server.lines(sign, server.err) or server.process.poll() is not None,
                   f"the server says {sign!r}")
        (self.folder / "saved").touch()
        wait_until(lambda: saver.lines("^has saved|^lost.*|^counts.*"), "it has saved, or not")
        self.assertEqual(saver.lines("^has saved|^lost.*|^counts.*"), ["has saved"],
                         server.errors())

    def goes_on(self, *jobs: Job) -> None:
        self.world(*jobs, size=len(jobs))
        self.go_on(*jobs)

    def has_ended(self, *jobs: Job) -> None:
        for job in jobs:
            self.assertNotEqual(job.end(), 0, job.errors())
            job.nothing_left()

    def insist(self, job: Job) -> int:
        job.process.send_signal(signal.SIGINT)
        return len(job.lines("waiting for the other nodes no longer|lose the store", job.err))

    def break_worker(self) -> None:
        (self.folder / "fail").touch()

    def test_growth(self) -> None:
        server, saver = self.pair("2:3")
        third = self.agent("2:3")
        self.save(server, saver, FORMS)
        self.goes_on(server, saver, third)

    def test_a_failure_with_a_restart_left(self) -> None:
        for by_file in (False, True):
            with self.subTest(by_file=by_file):
                self.setUp()
                if by_file:
                    self.by_file()
                server, saver = self.pair("2", "--max-restarts=1")
                self.break_worker()
                self.save(server, saver, FORMS)
                self.goes_on(server, saver)

    def test_a_failure_with_a_restart_left_of_static_nodes(self) -> None:
        self.where = ["--rdzv-backend=static", "--master-addr=127.0.0.1",
                      f"--master-port={free_port()}"]
        server, saver = self.pair("2", "--max-restarts=1", first=("--node-rank=0",),
                                  second=("--node-rank=1",))
        self.break_worker()
        self.save(server, saver, FORMS)
        self.goes_on(server, saver)

    def test_the_last_failure(self) -> None:
        server, saver = self.pair()
        self.break_worker()
        self.save(server, saver, STAYS)
        self.has_ended(server, saver)

    def test_what_a_server_has_to_tell_is_told_before_it_stays(self) -> None:
        report = self.folder / "report"
        server, saver = self.pair("2", f"--report={report}")
        self.break_worker()
        saver.wait_for("^saving")
        wait_until(lambda: server.lines(STAYS, server.err), "the server stays")
        self.assertIsNone(server.process.poll())
        self.assertRegex(server.errors(), r"(?m)^elastrun: .*exit")
        self.assertTrue(report.exists())
        (self.folder / "saved").touch()
        self.has_ended(server, saver)

    def test_the_last_failure_where_another_node_leads(self) -> None:
        self.by_file()
        server, saver = self.pair("2", first=("--local-addr=127.0.0.2",),
                                  second=("--local-addr=127.0.0.1",))
        self.assertIn("coordinates the job", saver.errors())
        self.break_worker()
        self.save(server, saver, STAYS)
        self.has_ended(server, saver)

    def test_the_next_start_of_a_job_waits_for_the_end_of_the_one_before(self) -> None:
        for by_file in (False, True):
            with self.subTest(by_file=by_file):
                self.setUp()
                if by_file:
                    self.by_file()
                server, saver = self.pair()
                self.break_worker()
                saver.wait_for("^saving")
                server.wait_for("has ended|ended with exit code", 1, server.err)
                first = self.agent("2")
                first.wait_for("just ending", 1, first.err)
                (self.folder / "fail").unlink()
                (self.folder / "saved").touch()
                self.has_ended(server, saver)
                self.goes_on(first, self.agent("2"))

    def test_a_preempted_server(self) -> None:
        self.by_file()
        server, saver = self.pair("1:2")
        server.process.send_signal(signal.SIGTERM)
        self.save(server, saver, STAYS)
        self.goes_on(saver)
        self.has_ended(server)

    def test_a_signal_to_all(self) -> None:
        for by_file in (False, True):
            with self.subTest(by_file=by_file):
                self.setUp()
                if by_file:
                    self.by_file()
                server, saver = self.pair()
                for job in (server, saver):
                    job.process.send_signal(signal.SIGTERM)
                self.save(server, saver, STAYS)
                self.has_ended(server, saver)

    def test_whoever_insists_does_not_wait(self) -> None:
        server, saver = self.pair()
        self.break_worker()
        saver.wait_for("^saving")
        wait_until(lambda: server.lines(STAYS, server.err), "the server stays")
        said = self.insist(server)
        wait_until(lambda: self.insist(server) != said or server.process.poll() is not None,
                   "it is heard that somebody insists")
        self.assertNotEqual(server.end(), 0)
        (self.folder / "saved").touch()
        self.has_ended(saver)
