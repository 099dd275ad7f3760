# SPDX-License-Identifier: Apache-2.0
"""What all agents of a job must agree on: who is to blame, who may take part, when it is over.
agreement_test.py ELASTRUN STUB_WORKER"""
from __future__ import annotations

import json
import re
from typing import Any

from harness import Job, lives, wait_until
from jobs_test import INFO, REQUEUE, SAY, Elastic

# Whoever is slow is not lost: a lost agent is known by its connection, which ends with it.
SLOW_TO_GIVE_UP = "last_call_timeout=1,keep_alive_max_attempt=60"
RAISES = """
import os, sys, time
sys.stdout.write("RANK=" + os.environ["RANK"] + "\\n")
sys.stdout.write("TORCHELASTIC_RESTART_COUNT=" + os.environ["TORCHELASTIC_RESTART_COUNT"] + "\\n")
while not os.path.exists(sys.argv[1] + os.environ["TORCHELASTIC_RESTART_COUNT"]):
    time.sleep(0.01)
raise ValueError("the loss is not a number")
"""
# Node 0's worker loses its peer, which tells only later why it went.
LOSES_ITS_PEER = """
import os, socket, sys, time
folder = sys.argv[1]
print("begins", flush=True)
if sys.argv[2] == "victim":
    with socket.create_server(("127.0.0.1", 0)) as server:
        with open(folder + "/part", "w") as place:
            place.write(str(server.getsockname()[1]))
        os.rename(folder + "/part", folder + "/port")
        peer = server.accept()[0]
    if not peer.recv(1):
        raise RuntimeError("Connection closed by peer [127.0.0.1]:4711")
while not os.path.exists(folder + "/port") or not os.path.exists(folder + "/go"):
    time.sleep(0.01)
with open(folder + "/port") as place:
    port = int(place.read())
socket.create_connection(("127.0.0.1", port)).close()
time.sleep(0.4)
raise ValueError("the loss is not a number")
"""
# Rank 0 ends at once; the others end seconds after it, and need its agent's store until then.
OUTLIVES = """
import os, socket, struct, sys, time
def text(word):
    return struct.pack("<Q", len(word)) + word.encode()
rank = os.environ["RANK"]
sys.stdout.write(f"RANK={rank}\\npid {os.getpid()}\\n")
sys.stdout.flush()
if rank == "0":
    sys.exit(0)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
time.sleep(3)
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
with socket.create_connection(place) as store:
    store.sendall(b"\\0" + struct.pack("<I", 0x3C85F7CE) + b"\\1" + text("/key") + text("here") +
                  b"\\3" + text("/key"))
    answer = b""
    while len(answer) < 12:
        part = store.recv(12 - len(answer))
        if not part:
            sys.exit(4)
        answer += part
sys.stdout.write(answer[8:].decode() + "\\n")
"""


def report_of(job: Job) -> dict[str, object]:
    """That of group rank 0 is report.json, the others' names tell their node."""
    [report] = job.folder.glob("report*.json")
    return json.loads(report.read_text())


class Verdicts(Elastic):
    """Three agents and a budget of one restart, which one of them uses up."""

    conf = SLOW_TO_GIVE_UP

    def fails(self, *end: str) -> list[str]:
        """Steps of a worker that ends like this in both attempts, each time when it is told to."""
        return ["attempt=0", f"wait={self.folder}/fail0", *end, "all",
                f"wait={self.folder}/fail1", *end]

    def three(self, *workers: list[str], code: str = "torchrun") -> list[Job]:
        options = ("--max-restarts=1", "--report=report.json", f"--exit-code={code}")
        return [self.agent("3", *SAY, *steps, options=options)
                for steps in workers]

    def spend(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.wait_for("^TORCHELASTIC_RESTART_COUNT=0")
        (self.folder / "fail0").touch()
        for job in jobs:
            job.wait_for("^TORCHELASTIC_RESTART_COUNT=1")
        (self.folder / "fail1").touch()

    def reports(self, jobs: list[Job], code: int) -> list[dict[str, object]]:
        self.all_end(*jobs, code=code)
        return [report_of(job) for job in jobs]

    def agree(self, jobs: list[Job], code: int = 1) -> dict[str, object]:
        """The culprit, whom all name alike, in the report and on stderr."""
        reports = self.reports(jobs, code)
        for name in ("culprit", "verdict", "restarts", "max_restarts", "world_size", "requeue"):
            said = [report[name] for report in reports]
            self.assertEqual(said, [said[0]] * len(jobs), name)
        self.assertEqual(reports[0]["restarts"], 1)
        culprit, verdict = reports[0]["culprit"], reports[0]["verdict"]
        for job, report in zip(jobs, reports):
            self.assertRegex(job.errors(),
                             rf"(?m)^elastrun: (FAILED after \S+ \w+: )?{re.escape(str(verdict))}"
                             r"(; 1 restart within .*)?$")
            self.assertRegex(job.errors(), rf"(?m)^  who       rank {culprit['rank']} ")
            self.assertIn("1 of 1 restarts used", job.errors())
            self.assertEqual([attempt["attempt"] for attempt in report["attempts"]], [0, 1])
            self.assertEqual(report["exit_code"], code)
        return culprit  # type: ignore[return-value]

    def check(self, culprit: dict[str, object], job: Job, agent: int, code: int,
              text: str) -> None:
        self.assertEqual(culprit["rank"], int(job.lines(r"^RANK=(\d)")[-1]))
        self.assertEqual(culprit["node"], f"127.0.0.1_{agent}_0")
        self.assertEqual(culprit["exit_code"], code)
        self.assertRegex(str(culprit["text"]), text)

    def one_fails(self, *end: str, status: int, code: int, text: str) -> None:
        jobs = self.three(["stay"], self.fails(*end), ["stay"], code="worker")
        jobs[1].wait_for("^RANK=")
        agent = jobs[1].agent()
        self.spend(jobs)
        self.check(self.agree(jobs, status), jobs[1], agent, code, text)

    def test_of_an_exit_code(self) -> None:
        self.one_fails("exit=3", status=3, code=3, text="rank \\d ended with exit code 3")

    def test_of_a_signal(self) -> None:
        self.one_fails("die=SEGV", status=139, code=-11, text="rank \\d was killed by SIGSEGV")

    def test_of_an_exception(self) -> None:
        script = self.folder / "raises.py"
        script.write_text(RAISES)
        jobs = self.three(["stay"], ["stay"])
        words = [*self.where, "--nnodes=3", "--rdzv-id=job", "--max-restarts=1",
                 "--report=report.json", script, f"{self.folder}/fail"]
        jobs.append(self.stack.enter_context(Job(*words)))
        jobs[2].wait_for("^RANK=")
        agent = jobs[2].agent()
        self.spend(jobs)
        self.check(self.agree(jobs), jobs[2], agent, 1,
                   r"exit code 1 \(ValueError: the loss is not a number\)")

    def test_when_two_nodes_fail_at_once(self) -> None:
        jobs = self.three(["stay"], self.fails("exit=3"), self.fails("exit=4"))
        self.spend(jobs)
        culprit = self.agree(jobs)
        job = jobs[int(culprit["exit_code"]) - 2]  # type: ignore[call-overload]
        self.assertEqual(culprit["rank"], int(job.lines(r"^RANK=(\d)")[-1]))

    def test_when_its_victim_on_another_node_is_quicker(self) -> None:
        script = self.folder / "loses.py"
        script.write_text(LOSES_ITS_PEER)
        jobs = [self.job("2", ["--report=report.json", str(script), str(self.folder), role])
                for role in ("victim", "culprit")]
        jobs[1].wait_for("^begins")
        agent = jobs[1].agent()
        self.go.touch()
        for report in self.reports(jobs, 1):
            culprit = report["culprit"]
            assert isinstance(culprit, dict)
            self.assertEqual(culprit["node"], f"127.0.0.1_{agent}_0")
            self.assertRegex(culprit["text"], r"\(ValueError: the loss is not a number\)")

    def test_when_it_fails_before_the_others_have_begun(self) -> None:
        self.agree(self.three(["stay"], ["exit=3"], ["stay"]))


class Refusals(Elastic):
    """Strangers are told what is wrong, and so is the host; the job goes on without them."""

    conf = SLOW_TO_GIVE_UP
    mine = {"ELASTRUN_SECRET": "mine", **INFO}

    def is_refused(self, host: Job, stranger: Job, told: str, logged: str) -> None:
        self.all_end(stranger, code=1)
        self.assertRegex(stranger.errors(), told)
        self.assertEqual(stranger.output(), "")
        wait_until(lambda: logged in host.errors(), f"{logged!r} is logged:", host.errors)

    def job_goes_on(self, host: Job, **more: Any) -> None:
        other = self.waits("2", **more)
        self.world(host, other, size=2)
        self.go_on(host, other)

    def test_another_run_id(self) -> None:
        host = self.listening(self.waits("2", run_id="mine"))
        named = 'the job that meets here is "mine", not "theirs"'
        self.is_refused(host, self.agent("2", *SAY, run_id="theirs"), named,
                        f"refused 127.0.0.1: {named}")
        self.job_goes_on(host, run_id="mine")

    def another_secret(self) -> None:
        host = self.waits("2", env=self.mine)
        if "c10d" in self.where[0]:
            self.listening(host)
        else:
            wait_until(lambda: list(self.folder.glob("elastrun-*.json")), "one is elected")
        # Another secret, and none at all.
        for count, env in enumerate(({"ELASTRUN_SECRET": "theirs"}, {}), 1):
            stranger = self.agent("2", *SAY, env=env)
            self.is_refused(host, stranger, r'your secret \(ELASTRUN_SECRET, or secret_file in '
                            r'--rdzv-conf\) is not the one of the job "job"',
                            'refused a connection to the job "job": ')
            wait_until(lambda: len(host.lines(r"does not know this job's secret", host.err)) ==
                       count, "each refusal is logged")
        self.job_goes_on(host, env=self.mine)

    def test_another_secret(self) -> None:
        self.another_secret()

    def test_another_secret_where_a_file_tells_the_place(self) -> None:
        self.by_file()
        self.conf += ",join_timeout=20"
        self.another_secret()

    def test_a_secret_in_a_file_is_the_same_secret(self) -> None:
        secret = self.folder / "secret"
        secret.write_text("mine\n")
        secret.chmod(0o600)
        host = self.listening(self.waits("2", env=self.mine))
        self.job_goes_on(host, conf=f"{self.conf},secret_file={secret}")


class Barrier(Elastic):
    def test_the_store_outlives_the_workers_of_its_node(self) -> None:
        script = self.folder / "outlives.py"
        script.write_text(OUTLIVES)
        words = [*self.where, "--nnodes=3", "--rdzv-id=job", script, self.go]
        jobs = [self.stack.enter_context(Job(*words)) for _ in range(3)]
        for job in jobs:
            job.wait_for(r"^pid \d+$")
        first = next(job for job in jobs if job.lines(r"^RANK=(\d)") == ["0"])
        pid = int(first.lines(r"^pid (\d+)")[0])
        wait_until(lambda: not lives(pid), "the worker of rank 0 has ended")
        self.go.touch()
        self.all_end(*jobs)
        for job in jobs:
            self.assertEqual(job.lines("^here$"), [] if job is first else ["here"])


class Requeue(Elastic):
    """The hint for the scheduler, by the variables that Slurm sets in a real allocation."""

    conf = SLOW_TO_GIVE_UP

    def test_is_named_when_the_node_is_lost_that_coordinates(self) -> None:
        env = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "2"}
        options = ("--report=report.json",)
        host = self.host("2", *SAY, "stay", options=options, env=env)
        other = self.agent("2", *SAY, "stay", options=options, env=env)
        self.world(host, other, size=2)
        self.kill(host)
        self.all_end(other, code=REQUEUE)
        self.assertIn("scontrol requeue 4711\n", other.errors())
        report = report_of(other)
        self.assertEqual((report["exit_code"], report["requeue"], report["requeue_command"]),
                         (REQUEUE, True, "scontrol requeue 4711"))

    def test_is_not_named_when_a_worker_fails(self) -> None:
        job = self.agent("1:1", "exit=3", options=("--report=report.json",),
                         env={"SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "1"})
        self.all_end(job, code=1)
        self.assertNotIn("scontrol", job.errors())
        report = report_of(job)
        self.assertIsNone(report["requeue_command"])
