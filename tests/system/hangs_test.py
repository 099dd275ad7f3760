# SPDX-License-Identifier: Apache-2.0
"""Hangs: a job that stands still is told with the stacks of all workers, and who stands out."""
from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import subprocess
import time
import unittest

from harness import CTL, PACKAGE, Job, fetched, wait_until
from ports import free_port, listening, sockets_of

# Steps until the file `go` is there, but for one rank that stays in its data loader.
TRAINS = """
import os, signal, sys, time
RANK, FIRST = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

def wait_for(name):  # os.path.exists would be a function of its own in a stack
    while not os.access(name, os.F_OK): time.sleep(0.01)

def all_reduce():
    wait_for("reduced")

def load():
    wait_for("loaded")
"""
STANDS = TRAINS + """
import elastrun
elastrun.step(1)
if FIRST:
    load() if RANK == 1 else all_reduce()
print("rank", RANK, "went through", flush=True)
"""
PATTERN = r"No worker of the job has made progress for \S+ m?s: (.*)"


class Standing(unittest.TestCase):
    def go_on(self, *jobs: Job) -> None:
        for job in jobs:
            for name in ("reduced", "loaded"):
                (job.folder / name).touch()
        for job in jobs:
            self.assertEqual(job.end(), 0, job.errors())


class Hangs(Standing):
    def start(self, script: str, *options: str, package: bool = True, **env: str) -> Job:
        if package:
            env["PYTHONPATH"] = PACKAGE
        return self.enterContext(Job("--report=report.json", *options, script=script, env=env))

    def test_a_hang_is_told_with_the_odd_one_out_and_the_job_goes_on(self) -> None:
        """Also beside threads that wait for ever."""
        script = STANDS.replace("import elastrun\n", "import elastrun, threading\nEVER ="
                                " threading.Event()\nfor _ in range(2):\n"
                                "    threading.Thread(target=EVER.wait, daemon=True).start()\n")
        job = self.start(script, "--nproc-per-node=4", "--hang-timeout=1", "--redirects=1",
                         "--log-dir=logs")
        told, = job.wait_for(PATTERN, path=job.err)
        self.assertRegex(told, r"^rank 1 hangs in wait_for \(train.py:\d+\) of load "
                               r"\(train.py:\d+\) while ranks 0, 2, 3 in wait_for .* of all")
        wait_until(lambda: " in load\n" in job.errors(), "the stacks are in the log")
        self.assertRegex(job.errors(), r"hang\]   ranks 0, 2, 3 in wait_for ")
        self.go_on(job)
        hang, = job.report()["hangs"]
        self.assertEqual(hang["culprits"], [1])
        self.assertEqual([group["ranks"] for group in hang["groups"]], [[0, 2, 3], [1]])
        for part in (" in all_reduce", "threading.py"):
            self.assertIn(part, "\n".join(hang["groups"][0]["stack"]))
        self.assertGreaterEqual(hang["standing_s"], 1)
        self.assertEqual(hang["verdict"], told)
        event, = (one for one in job.records() if one["name"] == "job.hang")
        self.assertEqual(event["attributes"]["culprits"], "rank 1")
        self.assertEqual(job.report()["restarts"], 0)

    def test_on_hang_restart_spends_a_restart(self) -> None:
        job = self.start(STANDS, "--nproc-per-node=3", "--hang-timeout=1", "--on-hang=restart",
                         "--max-restarts=1").ended()
        report = job.report()
        self.assertEqual(report["restarts"], 1)
        self.assertRegex(report["attempts"][0]["cause"]["text"], "^rank 1 hangs in wait_for")
        self.assertEqual([hang["attempt"] for hang in report["hangs"]], [0])

    def test_without_a_restart_left_the_job_fails_naming_the_culprit(self) -> None:
        for how in ("restart", "fail"):
            with self.subTest(how=how):
                restarts = f"--max-restarts={int(how == 'fail')}"
                job = self.start(STANDS, "--nproc-per-node=3", "--hang-timeout=1",
                                 f"--on-hang={how}", restarts).ended(1)
                report = job.report()
                self.assertRegex(report["verdict"], "^rank 1 hangs in wait_for")
                self.assertEqual((report["restarts"], report["culprit"]["rank"]), (0, 1))
                self.assertRegex(job.errors(), r"\n  hang      at .* made progress for [0-9.]+ s\n")
                self.assertRegex(job.errors(),
                                 r"\nelastrun: FAILED after [^\n]*: rank 1 hangs in [^\n]*\n$")
                self.assertNotIn("rank -1", job.errors())

    def test_a_limit_that_counts_several_times_until_the_first_step_says_so(self) -> None:
        # Longer than an interpreter takes to import the package.
        job = self.start(TRAINS + "import elastrun\nload()\n", "--hang-timeout=3",
                         "--on-hang=fail").ended(1)
        self.assertRegex(job.errors(), r"\n  note      until the first step it waits 5 times --h")
        self.assertNotIn("shows where a Python script stands", job.errors())

    def test_without_steps_output_is_progress(self) -> None:
        # Three limits long: each line alone is within one.
        script = TRAINS + ("for i in range(12):\n    print('line', i, flush=True)\n"
                           "    time.sleep(0.5)\nprint('quiet', flush=True)\nload()\n")
        job = self.start(script, "--hang-timeout=2", package=False)
        told, = job.wait_for(PATTERN, path=job.err)
        self.assertIn("rank 0 in ", told)  # without our library and py-spy: what the kernel tells
        self.assertIn("quiet", job.output())
        self.assertIn("--goodput auto shows where a Python script stands", job.errors())
        self.assertEqual(len(job.lines("^line ")), 12)
        self.go_on(job)

    def test_a_hang_that_ends_while_the_stacks_are_taken_costs_no_restart(self) -> None:
        script = "import time\ndef line(): print('line', flush=True)\n" \
                 "for _ in range(5): line(); time.sleep(0.2)\ntime.sleep(3)\n" \
                 "for _ in range(25): line(); time.sleep(0.2)\n"
        job = self.enterContext(Job(
            "--hang-timeout=2", "--on-hang=restart", "--max-restarts=1", "--report=report.json",
            script=script, files={"py-spy": "#!/bin/sh\ntouch asked; sleep 3\n"},
            env={"PATH": f".:{os.environ['PATH']}"}))
        (job.folder / "py-spy").chmod(0o755)
        wait_until(lambda: (job.folder / "asked").exists(), "the job is held to hang")
        self.assertEqual(job.end(), 0, job.errors())
        self.assertEqual((job.report()["restarts"], job.report()["hangs"]), (0, []))

    def test_output_that_nobody_reads_is_progress_too(self) -> None:
        script = "import time\nfor i in range(30):\n    print('line', i, flush=True)\n" \
                 "    time.sleep(0.1)\n"
        job = self.enterContext(Job(
            "--hang-timeout=1", "--on-hang=fail", script=script,
            stdout=subprocess.DEVNULL)).ended()

    def test_an_evaluation_between_steps_of_goodput_is_no_hang(self) -> None:
        # Hooks see no evaluation: its output shows that it goes on. A recorder tells of it.
        hooks = ("from elastrun.journal import journal\njournal = journal('')\n"
                 "journal.put(('{\"step_count\":%d,\"step_end_time\":%r}', (1, time.time())))\n"
                 "for _ in range(20): print('batch', flush=True); time.sleep(0.2)\n")
        recorder = ("from elastrun.goodput import GoodputRecorder\n"
                    "recorder = GoodputRecorder('night', 'night', True)\n"
                    "recorder.record_step_start_time(1)\n"
                    "recorder.record_custom_badput_event_start_time(None, 'eval')\n"
                    "time.sleep(4)\n"
                    "recorder.record_custom_badput_event_end_time(None, 'eval')\n")
        for how in (hooks, recorder):
            job = self.start(TRAINS + how + "print('quiet', flush=True)\nload()\n",
                             "--hang-timeout=1")
            job.wait_for("quiet")
            self.assertEqual(job.lines(PATTERN, job.err), [])
            job.wait_for(PATTERN, path=job.err)
            self.go_on(job)

    def test_who_is_stopped_or_evaluates_does_not_hang(self) -> None:
        script = TRAINS + (
            "import elastrun\nelastrun.step(1)\n"
            "if RANK == 0:\n"
            "    with elastrun.phase('eval'): time.sleep(3)\n"
            "    print('evaluated', flush=True)\n"
            "elastrun.step(2)\n"
            "if RANK == 1:\n"
            "    print('stops', os.getpid(), flush=True)\n"
            "    os.kill(os.getpid(), signal.SIGSTOP)\n"
            "load()\n")
        job = self.start(script, "--nproc-per-node=2", "--hang-timeout=1")
        worker = int(job.wait_for(r"stops (\d+)")[0])
        job.wait_for("evaluated")
        job.wait_for(rf"Rank 1 \(pid {worker}\) is stopped by a signal: .* for 10.0 s at most",
                     path=job.err)
        self.assertRaises(AssertionError, wait_for_seconds, 3,
                          lambda: job.lines(PATTERN, job.err))
        os.kill(worker, signal.SIGCONT)
        job.wait_for("Rank 1 goes on", path=job.err)
        job.wait_for(PATTERN, path=job.err)  # and then it does
        self.go_on(job)

    def test_neither_does_one_whose_child_is_stopped(self) -> None:
        job = self.start(TRAINS + (
            "import elastrun\nelastrun.step(1)\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    print('stops', os.getpid(), flush=True)\n"
            "    os.kill(os.getpid(), signal.SIGSTOP)\n"
            "    os._exit(0)\n"
            "os.waitpid(child, 0)\n"), "--hang-timeout=1")
        child = int(job.wait_for(r"stops (\d+)")[0])
        self.assertRaises(AssertionError, wait_for_seconds, 3,
                          lambda: job.lines(PATTERN, job.err))
        os.kill(child, signal.SIGCONT)
        self.assertEqual(job.end(), 0, job.errors())
        self.assertEqual(job.report()["hangs"], [])

    def test_what_a_worker_reports_is_progress_as_output_is(self) -> None:
        # Three limits long: each report alone is within one.
        script = TRAINS + ("import elastrun\n"
                           "for i in range(40):\n"
                           "    if i % 2: elastrun.metric('loss', 1 / (1 + i))\n"
                           "    else:\n"
                           "        with elastrun.timer.expires(after=3600): pass\n"
                           "    time.sleep(0.15)\n"
                           "print('quiet', flush=True)\nload()\n")
        job = self.start(script, "--hang-timeout=2")
        job.wait_for("quiet")
        self.assertEqual(job.lines(PATTERN, job.err), [])
        self.go_on(job)

    def test_a_phase_whose_time_is_over_hides_no_hang(self) -> None:
        # The last progress is the phase's begin, also where rank 0 begins later.
        script = TRAINS + ("import elastrun\n"
                           "if RANK == 1 and FIRST:\n"
                           "    wait_for('stepped')\n"
                           "    elastrun.step(1)\n"
                           "    with elastrun.phase('eval', at_most=2): load()\n"
                           "elif FIRST:\n"
                           "    elastrun.step(1)\n"
                           "    open('stepped', 'w').close()\n"
                           "    all_reduce()\n")
        job = self.start(script, "--nproc-per-node=2", "--hang-timeout=1", "--on-hang=restart",
                         "--max-restarts=1").ended()
        late = r"rank 1 has been in the phase 'eval' since \S+, for \S+ m?s"
        self.assertRegex(job.errors(), late + ": this no longer excuses hangs of the job")
        hang, = job.report()["hangs"]
        self.assertGreaterEqual(hang["standing_s"], 2)
        self.assertRegex(job.report()["attempts"][0]["cause"]["text"], "; " + late)

    def test_a_slow_first_step_is_no_hang(self) -> None:
        for limit in ("auto", "2"):
            job = self.start("import elastrun, time\nprint('imported', flush=True)\ntime.sleep(4)\n"
                             "elastrun.step(1)\n", f"--hang-timeout={limit}").ended()
            self.assertEqual(job.report()["hangs"], [])

    def test_the_flight_recorder_is_asked_where_it_has_its_pipe(self) -> None:
        script = TRAINS + (
            "os.mkfifo(os.environ['TORCH_FR_DUMP_TEMP_FILE'] + str(RANK) + '.pipe')\n"
            "pipe = os.open(os.environ['TORCH_FR_DUMP_TEMP_FILE'] + str(RANK) + '.pipe',"
            " os.O_RDONLY | os.O_NONBLOCK)\n"
            "open(f'ready{RANK}', 'w').close()\nload()\n"
            "print('asked', os.read(pipe, 100), flush=True)\n")
        job = self.start(script, "--hang-timeout=1", "--nproc-per-node=2",
                         TORCH_FR_DUMP_TEMP_FILE="trace_")
        job.wait_for(PATTERN, path=job.err)
        self.go_on(job)
        self.assertEqual(job.lines("asked (.*)"), ["b'1\\n'"] * 2)
        hang, = job.report()["hangs"]
        self.assertEqual(hang["flight_recorder"], ["trace_0", "trace_1"])

    def test_a_dump_that_torch_has_written_by_itself_is_named(self) -> None:
        # Where it writes unless it is told otherwise, in the cache of the worker.
        script = TRAINS + ("folder = os.environ['XDG_CACHE_HOME'] + '/torch'\n"
                           "os.makedirs(folder, exist_ok=True)\n"
                           "open(f'{folder}/comm_lib_trace_rank_{RANK}', 'w').write('dump')\n"
                           "load()\n")
        toml = '[env]\nXDG_CACHE_HOME = "own"\n'
        job = self.enterContext(Job(
            "--report=report.json", "--config=job.toml", "--hang-timeout=1", script=script,
            files={"job.toml": toml}, env={"PYTHONPATH": PACKAGE}))
        job.wait_for(PATTERN, path=job.err)
        self.go_on(job)
        hang, = job.report()["hangs"]
        self.assertEqual(hang["flight_recorder"], ["own/torch/comm_lib_trace_rank_0"])


class Asked(Standing):
    """elastrunctl stacks"""

    def setUp(self) -> None:
        self.registry = self.enterContext(Job("--version")).folder / "registry"
        self.env = {"PYTHONPATH": PACKAGE, "ELASTRUN_RUNTIME_DIR": str(self.registry)}

    def start(self, script: str, *options: str) -> Job:
        return self.enterContext(Job(*options, script=TRAINS + script, env=self.env))

    def ctl(self, *words: str, what: str = "stacks") -> tuple[int, str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTRUN_"))}
        done = subprocess.run([CTL, what, *words], env=env | self.env, capture_output=True,
                              text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    def stacks(self, *words: str) -> dict:
        code, out, err = self.ctl("--json", *words)
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def test_a_job_of_this_machine_by_its_name_or_as_the_only_one(self) -> None:
        job = self.start("import elastrun\nprint('ready', flush=True)\nload()\n",
                         "--nproc-per-node=2")
        job.wait_for("ready", 2)
        wait_until(lambda: self.ctl()[0] == 0, "the run is registered")
        name = json.loads(next(self.registry.glob("*.json")).read_text())["run_id"]
        code, out, err = self.ctl(name[:8])
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"^ranks 0, 1 in wait_for \(train.py:\d+\)\n  \| Thread ")
        self.assertEqual([group["ranks"] for group in self.stacks()["groups"]], [[0, 1]])
        # Of workers that are well nobody wants the frames of the kernel, unless asked for them.
        self.assertNotRegex(out, r"\n  \| threads? \d")
        self.assertRegex(self.ctl("--kernel")[1],
                         r"wait_for[^|]*\n  \| Thread (.|\n)*\n  \| thread \d")
        self.go_on(job)
        code, out, err = self.ctl()
        self.assertEqual((code, out), (1, ""))
        self.assertIn("no job of this user runs on this machine", err)

    def test_several_who_ask_at_once_get_the_same_answer(self) -> None:
        job = self.start("import elastrun\nprint('ready', flush=True)\nload()\n")
        job.wait_for("ready")
        wait_until(lambda: self.ctl()[0] == 0, "the run is registered")
        with concurrent.futures.ThreadPoolExecutor(8) as asks:
            for code, out, err in asks.map(lambda _: self.ctl(), range(24)):
                self.assertEqual((code, err), (0, ""))
                self.assertRegex(out, r"^rank 0 in wait_for ")
        self.go_on(job)

    def test_status_tells_at_once_who_is_stopped(self) -> None:
        # Also without --hang-timeout.
        job = self.start("if RANK == 1: os.kill(os.getpid(), signal.SIGSTOP)\n"
                         "load()\n", "--nproc-per-node=2", "--http=0")

        def held() -> list[str | None]:
            status = json.loads(fetched(job.page() + "status"))
            return [worker["held"] for worker in status["workers"]]

        stopped, = job.wait_for(r"Rank 1 \(pid (\d+)\) is stopped by a signal$", path=job.err)
        wait_until(lambda: "  rank 1 is stopped by a signal\n" in self.ctl(what="status")[1],
                   "status tells of it")
        self.assertNotIn("rank 0 is", self.ctl(what="status")[1])
        self.assertEqual(held(), [None, "stopped by a signal"])
        os.kill(int(stopped), signal.SIGCONT)
        job.wait_for("Rank 1 goes on", path=job.err)
        self.assertEqual(held(), [None, None])
        self.go_on(job)

    def nodes(self, script: str, *options: str,
              limit: tuple[str, ...] = ("--hang-timeout=2",)) -> tuple[list[Job], str]:
        endpoint = f"127.0.0.1:{free_port()}"
        jobs = [self.start(script, "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d",
                           *limit, f"--rdzv-endpoint={endpoint}", "--rdzv-id=night", *options)
                for _ in range(2)]
        for job in jobs:
            job.wait_for("ready", 2)
        return jobs, endpoint

    def test_all_nodes_of_a_job_by_its_endpoint_and_a_hang_of_it(self) -> None:
        jobs, endpoint = self.nodes("import elastrun\nprint('ready', flush=True)\n"
                                    "elastrun.step(1)\nload() if RANK == 3 else all_reduce()\n")
        stacks = self.stacks(endpoint)
        self.assertEqual(sorted(rank for group in stacks["groups"] for rank in group["ranks"]),
                         [0, 1, 2, 3])
        for job in jobs:
            told, = job.wait_for(PATTERN, path=job.err)
            self.assertRegex(told, r"^rank 3 hangs in wait_for .* while ranks 0-2 in wait_for ")
        self.go_on(*jobs)

    def test_the_status_of_all_nodes_tells_of_a_worker_that_is_stopped(self) -> None:
        # Also without --hang-timeout, and of the node that does not host the rendezvous.
        jobs, endpoint = self.nodes("print('ready', RANK, os.getpid(), flush=True)\nload()\n",
                                    limit=())
        pids = dict(map(int, line.split()) for job in jobs for line in job.lines("ready (.*)"))
        text = "  rank {} is stopped by a signal\n".format
        shown = lambda: self.ctl(endpoint, what="status")[1]  # noqa: E731
        for rank in (0, 3):
            os.kill(pids[rank], signal.SIGSTOP)
        wait_until(lambda: text(0) in shown() and text(3) in shown(), "status tells of them")
        self.assertNotIn("rank 1 is", shown())
        os.kill(pids[0], signal.SIGCONT)
        wait_until(lambda: text(0) not in shown(), "status tells that one goes on")
        held = json.loads(self.ctl("--json", endpoint, what="status")[1])["jobs"][0]["held"]
        self.assertEqual(held, [{"rank": 3, "by": "stopped by a signal"}])
        os.kill(pids[3], signal.SIGCONT)
        wait_until(lambda: "rank" not in shown(), "status tells that all go on")
        self.go_on(*jobs)

    def test_nodes_that_hang_are_ended_although_the_first_one_has_finished(self) -> None:
        jobs, _ = self.nodes("import elastrun\nprint('ready', flush=True)\n"
                             "elastrun.step(1)\nif RANK > 1: load()\n", "--on-hang=fail")
        for job in jobs:
            self.assertEqual(job.end(), 1, job.errors())
            self.assertIn("ranks 2, 3 in wait_for", job.errors())

    def test_a_node_that_does_not_answer_is_named(self) -> None:
        jobs, endpoint = self.nodes("import elastrun\nprint('ready', flush=True)\n"
                                    "elastrun.step(1)\nload()\n")
        # The one that does not host the rendezvous, which would answer nobody.
        code, out, _ = self.ctl("--json", endpoint)
        self.assertEqual(code, 0)
        port = int(endpoint.rsplit(":", 1)[1])
        hosts = {one for one, where in listening().items() if where == port}
        quiet = next(job for job in jobs if not hosts & sockets_of(job.agent()))
        agent = quiet.agent()
        os.kill(agent, signal.SIGSTOP)
        try:
            stacks = self.stacks(endpoint)
        finally:
            os.kill(agent, signal.SIGCONT)
        silent, = stacks["silent"]
        self.assertEqual(len(silent["ranks"]), 2)
        self.assertEqual(stacks["culprits"], silent["ranks"])
        self.assertIn("does not answer", stacks["text"])

    def test_somebody_who_asks_costs_a_healthy_job_no_step(self) -> None:
        job = self.start("import elastrun\nprint('ready', flush=True)\nstep = 0\n"
                         "while not os.path.exists('loaded'):\n"
                         "    step += 1; time.sleep(0.001); elastrun.step(step)\n"
                         "print('steps', step, flush=True)\n", "--nproc-per-node=8")
        job.wait_for("ready", 8)
        wait_until(lambda: self.ctl()[0] == 0, "the run is registered")
        for _ in range(5):
            ranks = [rank for group in self.stacks()["groups"] for rank in group["ranks"]]
            self.assertEqual(sorted(ranks), list(range(8)))
        self.go_on(job)

    def test_where_nobody_can_answer_that_is_said(self) -> None:
        code, _, err = self.ctl(f"127.0.0.1:{free_port()}")
        self.assertEqual(code, 1)
        self.assertIn("no answer from", err)


def wait_for_seconds(seconds: float, condition) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not come")
        time.sleep(0.05)
