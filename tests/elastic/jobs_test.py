# SPDX-License-Identifier: Apache-2.0
"""Jobs of several agents, as their users meet them: jobs_test.py ELASTRUN STUB_WORKER."""
from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents import Agents, EtcdServer
from harness import CTL, PACKAGE, Job, fetched, lives, stub, wait_until
from ports import free_port, listens
from strangers_test import Peer

SIDE_BY_SIDE = 3
REQUEUE = 75
INFO = {"LOGLEVEL": "INFO"}
SAY = ["env=RANK", "env=WORLD_SIZE", "env=TORCHELASTIC_RESTART_COUNT"]


class Elastic(Agents):
    conf = "last_call_timeout=1"

    def setUp(self) -> None:
        super().setUp()
        self.where = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]

    def job(self, nodes: str, words: list[str], conf: str = "", run_id: str = "job",
            env: dict[str, str] | None = None) -> Job:
        return self.stack.enter_context(Job(
            *self.where, f"--nnodes={nodes}", f"--rdzv-id={run_id}", "--nproc-per-node=1",
            f"--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=2,{conf or self.conf}",
            *words, env=env))

    def agent(self, nodes: str, *steps: str, options: tuple[str, ...] = (), **more: Any) -> Job:
        return self.job(nodes, [*options, *stub(*steps)], **more)

    def waits(self, nodes: str, **more: Any) -> Job:
        """Its worker says what it has, and waits until it may go."""
        return self.agent(nodes, *SAY, f"wait={self.go}", **more)

    def listening(self, job: Job) -> Job:
        """The agent that hosts the rendezvous: nobody else is there yet."""
        port = int(self.where[1].rsplit(":", 1)[1])
        wait_until(lambda: listens(port), "the host listens")
        return job

    def host(self, nodes: str, *steps: str, **more: Any) -> Job:
        return self.listening(self.agent(nodes, *steps, **more))

    def by_file(self) -> None:
        super().by_file()
        self.conf = "last_call_timeout=1,lease_ttl=1"

    def elected(self, job: Job) -> Job:
        job.wait_for("coordinates the job", path=job.err)
        return job

    def spares(self, nodes: str, count: int = 2) -> list[Job]:
        spares = [self.waits(nodes, env=INFO) for _ in range(count)]
        for spare in spares:
            spare.wait_for("is a spare", path=spare.err)
        return spares

    def kill(self, job: Job) -> None:
        for pid in (job.process.pid, job.agent()):
            os.kill(pid, signal.SIGKILL)
        job.nothing_left()

    def waits_or_begins(self, job: Job, told: int, worlds: int) -> None:
        """Until it says once more that it waits for others to stop, and it has begun no world."""
        wait_until(lambda: job.errors().count("to stop ") > told or len(self.worlds(job)) > worlds,
                   "it waits, or does not")
        self.assertEqual(len(self.worlds(job)), worlds, job.errors())

    def saver(self, nodes: str, **more: Any) -> Job:
        """Its worker saves until self.saved exists when it is told to stop."""
        self.saved = self.folder / "saved"
        return self.job(nodes, [
            "--no-python", "sh", "-c", f"trap 'echo saving; until [ -e {self.saved} ]; do sleep "
            "0.02; done; echo has saved; exit 0' TERM; echo WORLD_SIZE=$WORLD_SIZE; until "
            f"[ -e {self.go} ]; do sleep 0.02; done"], **more)

    def leave_saving(self, leaver: Job, *others: Job) -> None:
        self.world(leaver, *others, size=len(others) + 1)
        before = [len(self.worlds(job)) for job in others]
        leaver.process.send_signal(signal.SIGTERM)
        leaver.wait_for(r"^saving")
        for job, count in zip(others, before):
            self.waits_or_begins(job, 0, count)
        self.saved.touch()
        self.assertNotEqual(leaver.end(), 0)
        self.assertEqual(leaver.lines(r"^has saved"), ["has saved"])
        self.world(*others, size=len(others))
        self.go_on(*others)

    def wait_for_the_saver(self, saver: Job, *others: Job) -> None:
        """The saver's connection or its coordinator is gone: nobody begins before it has saved."""
        counts = {job: len(self.worlds(job)) for job in others}
        told = {job: job.errors().count("to stop ") for job in others}
        wait_until(lambda: any(job.errors().count("to stop ") > told[job]
                               or len(self.worlds(job)) > counts[job] for job in others),
                   "the others wait, or do not")
        for job in others:
            self.assertEqual(len(self.worlds(job)), counts[job], job.errors())
        self.assertEqual(saver.lines(r"^has saved"), [])
        self.saved.touch()
        saver.wait_for(r"^WORLD_SIZE=", 2)
        self.go_on(saver, *others)

    def pair(self, first: list[str], second: list[str], barrier: str = "0") -> None:
        """One that has finished serves the other one beyond its exit barrier."""
        steps, options = [*SAY, "env=MASTER_PORT"], (f"--exit-barrier-timeout={barrier}",)
        one = self.agent("2", *steps, options=(*options, *first), env=INFO)
        if "c10d" in self.where[0]:
            self.listening(one)
        elif not first:
            self.elected(one)
        two = self.agent("2", *steps, f"wait={self.go}", options=(*options, *second))
        self.world(one, two, size=2)
        port = int(two.lines(r"^MASTER_PORT=(\d+)")[0])
        one.wait_for("ends with the last of them", path=one.err)
        self.assertIsNone(one.process.poll(), one.errors())
        self.assertTrue(listens(port))
        self.go_on(two, one)
        for job in (one, two):
            self.assertEqual(len(self.worlds(job)), 1, job.errors())
            self.assertEqual(job.errors().count("ends with the last of them"), int(job is one))

    def name_the_unable(self, first: bool) -> None:
        """The others would wait for half an hour by their options. `first`: it waits for them."""
        conf, unable = self.conf + ",join_timeout=1800", ["--no-python", "./no-such-program"]
        if first:
            one = self.job("2", unable, conf=conf)
            one.wait_for("cannot take part", path=one.err)
            other = self.waits("2", conf=conf)
        else:
            other = self.waits("2", conf=conf, env=INFO)
            other.wait_for("waiting for 1 more", path=other.err)
            one = self.job("2", unable, conf=conf)
        self.all_end(one, other, code=1)
        for job in (one, other):
            self.assertIn("cannot run the program './no-such-program': No such file", job.errors())
        self.assertRegex(other.errors(), r"node \S+ cannot start its workers: ")
        self.assertEqual(other.lines(r"^RANK="), [])

    def tell_a_long_error(self) -> None:
        """It reaches every node, costs its restart and is the verdict."""
        (self.folder / "lament.py").write_text(LAMENT)
        once = "--max-restarts=1"
        victim = self.job("2", [once, f"{self.folder}/lament.py", str(self.go)])
        other = self.agent("2", *SAY, "stay", options=(once,))
        self.world(other, size=2)
        self.go.touch()
        self.all_end(victim, other, code=1)
        self.assertEqual(self.attempts(other), ["0", "1"])
        self.assertIn("\u20ac" * 100, other.errors())

    def outlive_a_freeze(self) -> None:
        """The whole job is frozen for longer than a lease (a suspended machine): when it wakes,
        heartbeats, renewal, look and campaign are due in the same moment. It just goes on."""
        jobs = [self.agent("2", "pid", *SAY, f"wait={self.go}") for _ in range(2)]
        self.world(*jobs, size=2)
        frozen = [pid for job in jobs for pid in
                  (job.process.pid, job.agent(), *map(int, job.lines(r"^pid (\d+)")))]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(5)  # a lease and more; nothing but time can end one
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        time.sleep(3)  # as long as one that is given up is told
        self.go_on(*jobs)
        for job in jobs:
            self.assertEqual((self.worlds(job), self.attempts(job)), (["2"], ["0"]), job.errors())


class Elected(Elastic):
    """What jobs go through whose coordinator is elected."""

    def elect_first(self, nodes: str, *options: str) -> Job:
        return self.elected(self.waits(nodes, options=options, env=INFO))

    def leave_the_successor(self) -> None:
        """The coordinator is killed while a member saves: who follows must know of that, too."""
        first, leaver = self.elect_first("1:3"), self.saver("1:3")
        last = self.waits("1:3", env=INFO)
        self.world(first, leaver, last, size=3)
        count = len(self.worlds(last))
        leaver.process.send_signal(signal.SIGTERM)
        leaver.wait_for(r"^saving")
        last.wait_for("to stop its workers", path=last.err)
        told = last.errors().count("to stop ")
        self.kill(first)
        self.elected(last)
        self.waits_or_begins(last, told, count)
        self.saved.touch()
        leaver.end()
        self.assertEqual(leaver.lines(r"^has saved"), ["has saved"])
        # Nobody can tell the successor: it waits as long as the save might have taken.
        self.world(last, size=1)
        self.go_on(last)

    def restart_after(self, harm: Callable[[], None]) -> None:
        """Harm is done to the register, and at once a round is to be formed."""
        fail = self.folder / "fail"
        failing = ["attempt=0", f"wait={fail}", "exit=3", "all"]
        jobs = [self.agent("2", *SAY, *steps, f"wait={self.go}", options=("--max-restarts=1",))
                for steps in ([], failing)]
        self.world(*jobs, size=2)
        harm()
        fail.touch()
        for job in jobs:
            job.wait_for(r"^TORCHELASTIC_RESTART_COUNT=1")
        self.go_on(*jobs)


class Registers:
    """What holds for each register that elects: see ByFile and Etcd."""

    def test_a_job_outlives_each_of_its_coordinators(self) -> None:
        jobs = [self.waits("2:3") for _ in range(3)]
        self.world(*jobs, size=3)
        # One of them coordinates. Killing all but two in turn, with a newcomer each, meets it.
        for _ in range(3):
            self.kill(jobs.pop(0))
            jobs.append(self.waits("2:3"))
            jobs[-1].wait_for(r"^WORLD_SIZE=3")
            self.world(*jobs, size=3)
        self.go_on(*jobs)

    def test_a_paused_coordinator_does_no_harm_when_it_wakes(self) -> None:
        """The one that is paused while another is elected finds out, when it wakes, that it was
        succeeded: it stops its old group, and becomes a member again."""
        say = ["pid", *SAY, f"wait={self.go}"]
        first = self.elected(self.agent("2:3", *say, env=INFO))
        others = [self.agent("2:3", *say) for _ in range(2)]
        self.world(first, *others, size=3)
        paused = first.agent()
        os.kill(paused, signal.SIGSTOP)
        try:
            self.world(*others, size=2)
        finally:
            os.kill(paused, signal.SIGCONT)
        first.wait_for(r"^WORLD_SIZE=3", 2)
        self.world(*others, size=3)
        for job in (first, *others):
            *old, new = (int(pid) for pid in job.lines(r"^pid (\d+)"))
            self.assertEqual([lives(pid) for pid in (*old, new)], [False] * len(old) + [True])
        self.go_on(first, *others)
        for job in (first, *others):
            self.assertEqual(set(self.attempts(job)), {"0"})
            self.assertLessEqual(set(self.worlds(job)), {"2", "3"})

    def test_a_frozen_job_goes_on_when_it_wakes(self) -> None:
        self.outlive_a_freeze()

    def test_a_long_foreign_error_is_told_to_everybody(self) -> None:
        self.tell_a_long_error()

    def test_a_program_that_is_missing_on_one_node_is_named(self) -> None:
        self.name_the_unable(first=True)

    def test_whoever_has_finished_serves_the_others(self) -> None:
        for barrier in ("0", "1"):
            self.pair([], [], barrier=barrier)
            self.go.unlink()

    def test_no_world_begins_while_the_coordinator_that_leaves_saves(self) -> None:
        first = self.elected(self.saver("1:3", env=INFO))
        self.leave_saving(first, *(self.waits("1:3", env=INFO) for _ in range(2)))

    def test_a_deleted_entry_delays_a_round_and_no_more(self) -> None:
        self.restart_after(self.delete_entry)


class Members(Elastic):
    def test_a_spare_that_is_never_needed_ends_well(self) -> None:
        first = self.waits("1:1")
        self.world(first, size=1)
        [spare] = self.spares("1:1", 1)
        self.go_on(first, spare)
        self.assertEqual(spare.output(), "")

    def test_a_spare_takes_over_from_one_that_dies(self) -> None:
        host, victim = self.listening(self.waits("2:2")), self.waits("2:2")
        self.world(host, victim, size=2)
        spare = self.waits("2:2")
        self.kill(victim)
        spare.wait_for(r"^WORLD_SIZE=2")
        host.wait_for(r"^WORLD_SIZE=2", 2)
        self.go_on(host, spare)
        self.assertEqual(set(self.attempts(host)), {"0"})

    def test_a_replacement_is_waited_for(self) -> None:
        host, victim = self.listening(self.waits("2")), self.waits("2")
        self.world(host, victim, size=2)
        self.kill(victim)
        late = self.waits("2")
        late.wait_for(r"^WORLD_SIZE=2")
        self.go_on(host, late)

    def test_a_preempted_node_leaves_the_others_at_work(self) -> None:
        host, leaver = self.listening(self.waits("1:2")), self.waits("1:2")
        self.world(host, leaver, size=2)
        leaver.process.send_signal(signal.SIGTERM)
        self.world(host, size=1)
        self.all_end(leaver, code=1)
        self.go_on(host)
        self.assertEqual(set(self.attempts(host)), {"0"})

    def test_a_node_rank_taken_twice_is_refused_by_name(self) -> None:
        self.where = ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
        # Which of the two with rank 1 comes first is open; exactly one of them is refused.
        first, one, twin = (self.agent("3", *SAY, options=(f"--node-rank={rank}",))
                            for rank in (0, 1, 1))
        wait_until(lambda: any(j.process.poll() is not None for j in (one, twin)), "a refusal")
        refused, kept = (twin, one) if twin.process.poll() is not None else (one, twin)
        self.all_end(refused, code=1)
        self.assertIn("--node-rank 1 is already taken", refused.errors())
        self.all_end(first, kept, self.agent("3", *SAY, options=("--node-rank=2",)))


REPORTER = """
import os, time
from elastrun import channel, metrics
world, attempt = os.environ["WORLD_SIZE"], os.environ["TORCHELASTIC_RESTART_COUNT"]
channel.metric("here", 1)
channel.metric("world_" + world + "_" + attempt, 1)
metrics.count_metric("starts")
print("RANK=" + os.environ["RANK"], "WORLD_SIZE=" + world, sep="\\n", flush=True)
while not os.path.exists("go" + attempt): time.sleep(0.02)
raise SystemExit(3 if attempt == "0" else 0)
"""


class Pages(Elastic):
    """What a scraper of all nodes sees of the ranks of their workers."""

    def node(self) -> tuple[Job, str]:
        job = self.job("2:3", ["--nproc-per-node=2", "--max-restarts=1", "--http=0", "train.py"],
                       env={"PYTHONPATH": PACKAGE})
        (job.folder / "train.py").write_text(REPORTER)
        return job, job.page()

    def series(self, *addresses: str) -> dict[str, list[tuple[int, float]]]:
        """By name: rank and value of each sample, of all nodes."""
        found: dict[str, list[tuple[int, float]]] = {}
        for address in addresses:
            text = fetched(address + "metrics")
            for name, rank, value in re.findall(r'^(\w+){.*?\brank="(\d+)".*} (\S+)$', text, re.M):
                found.setdefault(name, []).append((int(rank), float(value)))
        return found

    def show(self, addresses: list[str], world: int, attempt: int) -> None:
        own = f"world_{world}_{attempt}"
        wait_until(lambda: len(self.series(*addresses).get(own, [])) == world, f"all tell {own}")
        shown = self.series(*addresses)
        self.assertLess(max(rank for samples in shown.values() for rank, _ in samples), world)
        for name in ("here", own):
            self.assertEqual(sorted(shown[name]), [(rank, 1.0) for rank in range(world)])
        self.assertEqual({re.sub("_samples_(sum|count)$", "", name)
                              for name in shown if name.startswith("world_")}, {own})

    def test_series_of_ranks_end_with_their_round(self) -> None:
        nodes = [self.node()]
        self.listening(nodes[0][0])
        nodes += [self.node(), self.node()]
        self.world(*(job for job, _ in nodes), size=6)
        self.show([address for _, address in nodes], 6, 0)
        # One that is not last: of those that stay, one gets other ranks.
        leaver = min(nodes[1:], key=lambda node: min(map(int, node[0].lines("^RANK=(.*)"))))
        nodes.remove(leaver)
        leaver[0].process.send_signal(signal.SIGTERM)
        self.world(*(job for job, _ in nodes), size=4)
        self.show([address for _, address in nodes], 4, 0)
        for job, _ in nodes:  # all fail, and begin again
            (job.folder / "go0").touch()
        self.show([address for _, address in nodes], 4, 1)
        for job, _ in nodes:
            (job.folder / "go1").touch()
        self.all_end(*(job for job, _ in nodes))
        self.assertNotEqual(leaver[0].end(), 0)


class Preemption(Elected):
    """A node that leaves saves as long as it may; no other world begins meanwhile."""

    def test_a_member(self) -> None:
        host = self.listening(self.waits("1:2", env=INFO))
        self.leave_saving(self.saver("1:2"), host)

    def test_a_member_whose_coordinator_dies(self) -> None:
        self.by_file()
        self.leave_the_successor()


class Finished(Elastic):
    """A node that has finished serves the others until they have, whatever its exit barrier."""

    def test_c10d(self) -> None:
        for barrier in ("0", "1"):
            with self.subTest(barrier):
                self.setUp()
                self.pair([], [], barrier=barrier)

    def test_nobody_is_said_to_work_who_has_finished_too(self) -> None:
        options, host_go = ("--exit-barrier-timeout=0",), self.folder / "host_go"
        host = self.host("2", *SAY, f"wait={host_go}", options=options, env=INFO)
        other = self.waits("2", env=INFO)
        self.world(host, other, size=2)
        self.go.touch()
        other.wait_for("Waiting .* for other agents", path=other.err)
        host_go.touch()
        self.all_end(host, other)
        self.assertNotIn("other nodes still work", host.errors())

    def test_static(self) -> None:
        self.where = ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
        self.pair(["--node-rank=0"], ["--node-rank=1"])

    def test_a_node_that_nobody_needs_is_let_go(self) -> None:
        host = self.listening(self.waits("2"))
        # Which of them has group rank 0, and so the store, is decided by their names.
        seen = self.folder / "seen"
        other = self.agent("2", *SAY, f"wait={seen}", options=("--exit-barrier-timeout=0",),
                           env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
        self.world(host, other, size=2)
        seen.touch()
        self.all_end(other)
        self.assertIsNone(host.process.poll(), host.errors())
        self.go_on(host)


class Unable(Elastic):
    """A node that cannot start its workers, beside others that can."""

    def test_a_program_that_is_missing_on_one_node(self) -> None:
        for first in (False, True):
            with self.subTest(first=first):
                self.setUp()
                self.name_the_unable(first)

    def test_a_program_that_cannot_be_executed(self) -> None:
        strange = self.folder / "strange"
        strange.write_bytes(b"\x7fELF nonsense")
        strange.chmod(0o755)
        self.conf = "join_timeout=1800"
        other = self.waits("2")
        self.all_end(self.job("2", ["--no-python", str(strange)]), other, code=1)
        self.assertRegex(other.errors(),
                         r"node \S+ has left: its workers could not be started: .*Exec format")

    def test_an_elastic_job_goes_on_without_it(self) -> None:
        host = self.listening(self.waits("1:2"))
        self.world(host, size=1)
        self.all_end(self.job("1:2", ["--no-python", "./no-such-program"]), code=1)
        self.go_on(host)
        self.assertEqual(self.attempts(host), ["0"])


class Failures(Elastic):
    def test_a_finished_node_starts_again_with_one_that_failed(self) -> None:
        fail = ["attempt=0", f"wait={self.go}", "exit=3", "all"]
        jobs = [self.agent("2", *SAY, *steps, options=("--max-restarts=1",))
                for steps in ([], fail)]
        self.world(*jobs, size=2)
        self.go_on(*jobs)
        self.assertEqual([self.attempts(job) for job in jobs], [["0", "1"]] * 2)

    def test_a_finished_node_hears_at_once_that_the_job_has_failed(self) -> None:
        jobs = [self.agent("2", *SAY, *steps) for steps in ([], [f"wait={self.go}", "exit=3"])]
        self.world(*jobs, size=2)
        self.go.touch()
        self.all_end(*jobs, code=1)
        for job in jobs:
            rank = jobs[1].lines(r"^RANK=(\d)")[0]
            self.assertRegex(job.errors(), rf"rank\W+{rank}\b")

    def test_a_signal_ends_the_wait_for_others(self) -> None:
        waiting, working = self.agent("2", *SAY, env=INFO), self.waits("2", env=INFO)
        self.world(waiting, working, size=2)
        # Before that, it would be a node that leaves: the other one waits for another in its place.
        waiting.wait_for("Waiting .* for other agents", path=waiting.err)
        waiting.process.send_signal(signal.SIGTERM)
        self.assertIsNotNone(waiting.end())
        waiting.nothing_left()
        self.go.touch()
        working.end()

    def test_a_signal_to_all_nodes_reads_alike_everywhere(self) -> None:
        host, other = self.host("2", *SAY, "stay"), self.agent("2", *SAY, "stay")
        self.world(host, other, size=2)
        host.process.send_signal(signal.SIGTERM)
        # It is the last to hear, and its coordinator has gone already.
        other.wait_for("Sending 1 process closing signal SIGTERM", path=other.err)
        host.end()
        other.process.send_signal(signal.SIGTERM)
        self.all_end(host, other, code=1)


# 3 bytes a letter: no limit in bytes ends between two of them by chance.
LAMENT = """import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)
raise ValueError('\u20ac' * 3000)
"""


class Words(Elastic):
    def test_a_long_foreign_error_is_told_to_everybody(self) -> None:
        self.tell_a_long_error()

    def test_a_host_that_waits_for_others_after_the_end_goes_when_told_twice(self) -> None:
        host = self.host("2", *SAY, f"wait={self.go}", "exit=3", env=INFO)
        deaf = self.agent("2", "ignore=TERM", *SAY, "stay", options=("--shutdown-timeout=1000",))
        self.world(host, deaf, size=2)
        self.go.touch()
        deaf.wait_for("closing signal SIGTERM", path=deaf.err)  # it has heard the verdict
        wait_until(lambda: len(host.alive()) == 2, "the host has no workers any more")
        time.sleep(0.5)
        host.process.send_signal(signal.SIGTERM)
        host.wait_for("this node waits until the others know", path=host.err)
        time.sleep(1.1)  # sooner, it could be the same end by another way
        host.process.send_signal(signal.SIGTERM)
        self.all_end(host, code=1)
        self.assertIn("waiting for the other nodes no longer", host.errors())


class Stores(Elastic):
    """The coordinator stands alone, and is killed and begun again."""

    conf = "last_call_timeout=1,is_host=0"

    def setUp(self) -> None:
        super().setUp()
        self.port = free_port()
        self.where = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}"]
        self.addCleanup(self.stop_store)
        self.start_store()

    def start_store(self) -> None:
        self.store = subprocess.Popen([CTL, "store", "--listen", f"127.0.0.1:{self.port}",
                                       f"--state={self.folder}/state"],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: listens(self.port), "the store listens")

    def stop_store(self) -> None:
        self.store.kill()
        self.store.wait()

    def begin_again(self) -> None:
        self.stop_store()
        self.start_store()

    def test_a_store_that_is_begun_again_waits_for_who_saves(self) -> None:
        quick, saver = self.waits("1:2", env=INFO), self.saver("1:2")
        self.world(quick, saver, size=2)
        self.begin_again()
        saver.wait_for(r"^saving")
        self.wait_for_the_saver(saver, quick)

    def test_one_that_meets_strangers_first_remembers_who_may_save(self) -> None:
        self.conf += ",keep_alive_max_attempt=60"  # for as long they look
        savers = [self.saver("1:2") for _ in range(2)]
        self.world(*savers, size=2)
        # Killed, and begun again where the old members do not find it for the time being.
        self.stop_store()
        for saver in savers:
            saver.wait_for(r"^saving")
        old, self.port = self.port, free_port()
        self.where = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}"]
        self.start_store()
        fresh = [self.waits("1:2", env=INFO) for _ in range(2)]
        for job in fresh:
            wait_until(lambda j=job: "none of the 2 nodes of the last round" in j.errors()
                       or self.worlds(j), "it waits, or does not")
            self.assertEqual(self.worlds(job), [], job.errors())
        self.forward("127.0.0.1", old, "127.0.0.1", self.port)
        for job in fresh:
            job.wait_for("to stop (its|their) workers", path=job.err)
            self.assertEqual(self.worlds(job), [], job.errors())
        self.assertEqual([saver.lines(r"^has saved") for saver in savers], [[], []])
        self.saved.touch()
        for saver in savers:
            saver.wait_for(r"^WORLD_SIZE=2", 2)
        self.go_on(*savers)
        for job in fresh:
            job.end()
            self.assertEqual(self.worlds(job), [], job.errors())
        # Over: who comes next under this name waits for nobody.
        wait_until(lambda: json.loads((self.folder / "state").read_text()) == {"worlds": []},
                   "the job is forgotten")

    def test_its_spares_tell_it_of_the_world_that_was(self) -> None:
        savers = [self.saver("2") for _ in range(2)]
        self.world(*savers, size=2)
        spares = self.spares("2")
        self.begin_again()
        for saver in savers:
            saver.wait_for(r"^saving")
        self.wait_for_the_saver(savers[0], *spares)
        self.all_end(savers[1])


class OddPeers(Elastic):
    """A peer that speaks the protocol, and claims what no coordinator here can know."""

    def says_hello(self, left: int) -> Peer:
        """Its group is at work in a world of three nodes, for so many seconds more."""
        peer = self.stack.enter_context(Peer(int(self.where[1].rsplit(":", 1)[1])))
        peer.say(
            type="hello", run="job", who="agent", epoch=0, start="", host="odd", user="odd",
            stacks=True, saves=True, at_work={
                "node": {"id": "odd_1_0", "instance": "odd", "address": "127.0.0.1",
                         "store_port": 1, "role": "default", "workers": 1, "node_rank": -1},
                "previous": {"epoch": 1, "round": 7, "attempt": 0, "nodes": 3},
                "rules": {"min_nodes": 2, "max_nodes": 2}, "grace": 0, "left": left})
        return peer

    def test_join_timeout_is_kept(self) -> None:
        for stays in (True, False):
            with self.subTest(stays=stays):
                self.where[1] = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
                host = self.host("2", "exit=0", conf="join_timeout=4", env=INFO)
                peer = self.says_hello(3000)
                wait_until(lambda j=host: "odd_1_0" in j.errors(), "it is taken in", host.errors)
                if not stays:
                    peer.socket.close()
                # Well before the time that it has claimed, which ends no test.
                self.assertEqual(host.end(), 1, host.errors())
                self.assertIn("within 4.0 s (join_timeout)", host.errors())


class Limits(Elastic):
    def group_of(self, processes: int) -> Path:
        """A control group that may have so many."""
        places = [Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")]
        for place in places:
            group = place / f"elastrun.{os.getpid()}"
            try:
                group.mkdir()
                self.addCleanup(group.rmdir)
                (group / "pids.max").write_text(str(processes))
            except OSError:
                continue
            return group
        self.skipTest("no control group with pids.max can be made here (needs root)")

    def test_no_more_threads_is_an_error_that_is_told(self) -> None:
        members = self.group_of(2) / "cgroup.procs"  # the agent and its guardian
        job = self.stack.enter_context(Job(
            "--rdzv-backend=c10d", "--rdzv-endpoint=some.host.invalid:29400", "--nnodes=2",
            "--rdzv-id=job", "--rdzv-conf=join_timeout=1", *stub(*SAY),
            before=lambda: members.write_text(str(os.getpid())) and None))
        self.all_end(job, code=1)
        self.assertRegex(job.errors(), "cannot look up .*cannot make a thread")


class Coordinators(Elastic):
    def test_without_an_election_the_job_goes_back_to_the_scheduler(self) -> None:
        host, other = self.host("2", *SAY, "stay"), self.agent("2", *SAY, "stay")
        self.world(host, other, size=2)
        self.kill(host)
        self.all_end(other, code=REQUEUE)

    def test_a_job_at_a_fixed_endpoint_goes_on_when_it_wakes(self) -> None:
        self.outlive_a_freeze()


class ByFile(Registers, Elected):
    def setUp(self) -> None:
        super().setUp()
        self.by_file()

    def delete_entry(self) -> None:
        (self.folder / "elastrun-job.json").unlink()

    def test_nobody_begins_while_a_member_of_a_leader_that_left_saves(self) -> None:
        """The coordinator ends in order while a member saves that it told to stop."""
        first, saver = self.elect_first("2"), self.saver("2")
        self.world(first, saver, size=2)
        spares = self.spares("2")
        first.process.send_signal(signal.SIGTERM)
        saver.wait_for(r"^saving")
        self.wait_for_the_saver(saver, *spares)

    def test_nobody_begins_while_a_member_of_a_dead_leader_saves(self) -> None:
        """The coordinator is killed: one member is back at once, another one saves."""
        first, quick, saver = self.elect_first("3"), self.waits("3", env=INFO), self.saver("3")
        self.world(first, quick, saver, size=3)
        spares = self.spares("3")
        self.kill(first)
        saver.wait_for(r"^saving")
        self.wait_for_the_saver(saver, quick, *spares)

    def test_who_had_stopped_before_the_leader_died_is_not_waited_for(self) -> None:
        patient = ("--shutdown-timeout=600",)  # for which a successor that knew nothing would wait
        first = self.elect_first("4", *patient)
        others = [self.waits("4", options=patient) for _ in range(3)]
        self.world(first, *others, size=4)
        self.kill(others.pop())

        def broken_up() -> bool:
            text = (self.folder / "elastrun-job.json").read_text()
            slots = [json.loads(line) for line in text.splitlines()]
            record = json.loads(max(slots, key=lambda slot: slot["version"])["record"])
            return record.get("stopping") == 0

        wait_until(broken_up, "all have stopped, and that is recorded:", first.errors)
        self.kill(first)
        others += [self.waits("4", options=patient) for _ in range(2)]
        for job in others[:2]:
            job.wait_for(r"^WORLD_SIZE=4", 2)
        self.world(*others, size=4)
        self.go_on(*others)

    def test_a_leader_whose_guardian_is_killed_is_not_waited_for(self) -> None:
        patient = ("--shutdown-timeout=600",)  # for which those who follow would wait
        first = self.elect_first("2:3", *patient)
        others = [self.waits("2:3", options=patient) for _ in range(2)]
        self.world(first, *others, size=3)
        first.process.kill()
        first.nothing_left()
        self.world(*others, size=2)
        for job in others:
            self.assertRegex(job.errors(), "was lost: the process that started it was killed")
        self.go_on(*others)


@unittest.skipUnless(shutil.which("etcd"), "no etcd in PATH (Debian: etcd-server)")
class Etcd(Registers, Elected):
    conf = "last_call_timeout=1,lease_ttl=2"

    def setUp(self) -> None:
        super().setUp()
        self.server = EtcdServer(self.folder)
        self.addCleanup(self.server.end)
        self.where = self.server.where

    def delete_entry(self) -> None:
        key = base64.b64encode(b"/elastrun/job/coordinator").decode()
        self.server.ask("/v3/kv/deleterange", key=key)

    def test_a_spare_takes_over_from_a_whole_world_whose_end_can_be_seen(self) -> None:
        # The coordinator dies with its world, so nobody comes back who could say that it has ended;
        # its port does. Without that the spare would wait for isolation_timeout, which is longer
        # than this test may take.
        self.conf += ",isolation_timeout=3600"
        first = self.waits("1:1")
        self.world(first, size=1)
        [spare] = self.spares("1:1", 1)
        self.kill(first)
        self.world(spare, size=1)
        self.go_on(spare)

    def test_an_etcd_that_has_forgotten_everything_elects_above_what_members_know(self) -> None:
        def forget() -> None:
            self.server.end()
            shutil.rmtree(self.server.folder)
            self.server.begin()

        wait_until(self.server.answers, "etcd answers")
        for _ in range(50):  # revisions, which are the epochs
            self.server.ask("/v3/kv/put", key=base64.b64encode(b"something").decode())
        self.restart_after(forget)

    def test_a_restart_of_etcd_disturbs_nobody(self) -> None:
        self.restart_after(lambda: (self.server.end(), self.server.begin()))
