# SPDX-License-Identifier: Apache-2.0
"""What elastrun is in a pod, by the variables that its operators set: pod_test.py ELASTRUN
STUB_WORKER. Nodes are agents of this machine; the Trainer's controller is a server with TLS."""
from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import harness
from collector import Collector
from harness import Job, stub, wait_until
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "config/examples/kubernetes/kubeflow_progress.py"
TELLS = f"--metrics=exec:{sys.executable} -B {PROGRAM} %s;window=0"
TOKEN = "header.payload.signature"
TRAINS = """import sys, time
from pathlib import Path
import elastrun
from elastrun import channel
for step in range(1, 21):
    channel.metric("loss", 1 / step)
    channel.metric("seen", step, "data")
    elastrun.step(step)
    if step == 5:
        while not Path(sys.argv[1]).exists():
            time.sleep(0.01)
"""


def own_name() -> str:
    """A name of this machine that is not its loopback, as pods have one."""
    for name in (socket.gethostname(), "ip6-localhost"):
        try:
            socket.create_server((name, 0), family=socket.getaddrinfo(name, 0)[0][0]).close()
            return name
        except OSError:
            continue
    raise unittest.SkipTest("this machine has no name but localhost")


class Folder(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="pod.")))

    def install(self, place: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([harness.PROGRAM, "--install-into", place], capture_output=True,
                              text=True)


class Volume(Folder):
    def test_elastrun_copies_itself_as_torchrun(self) -> None:
        place = self.folder / "opt/elastrun"
        before = os.umask(0o077)  # of an init container; the other one may have another user
        self.addCleanup(os.umask, before)
        for _ in range(2):  # a pod that is started again finds what the first start has left
            done = self.install(place)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        for made in (place.parent, place, place / "bin", place / "bin/elastrun"):
            self.assertEqual(made.stat().st_mode & 0o055, 0o055, made)
        own = harness.PROGRAM.read_bytes()
        self.assertEqual((place / "bin/elastrun").read_bytes(), own)
        self.assertEqual(os.readlink(place / "bin/torchrun"), "elastrun")
        self.assertEqual({p.name for p in (place / "bin").iterdir()} - {"elastrunctl"},
                         {"elastrun", "torchrun"})
        self.assertTrue(os.access(place / "bin/torchrun", os.X_OK))
        said = subprocess.run([place / "bin/torchrun", "--no-python", "echo", "worker"],
                              capture_output=True, text=True, check=True).stdout
        self.assertEqual(said, "worker\n")

    def test_it_replaces_a_program_that_runs(self) -> None:
        self.install(self.folder)
        runs = subprocess.Popen([self.folder / "bin/elastrun", *stub("env=RANK", "stay")],
                                stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(runs.communicate)
        self.addCleanup(runs.terminate)
        self.assertEqual(runs.stdout.readline(), "RANK=0\n")
        done = self.install(self.folder)
        self.assertEqual((done.returncode, done.stderr, runs.poll()), (0, "", None))

    def test_what_it_cannot_write_is_an_error_that_names_it(self) -> None:
        (self.folder / "file").write_text("")
        done = self.install(self.folder / "file")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr,
                         r"^elastrun: error: --install-into: cannot make \S*/file(/bin)?: ")


class Trainer(Folder):
    """Two nodes of a TrainJob."""

    def pod(self, rank: int, *words: str | Path, **more: str) -> Job:
        variables = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": str(rank),
                     "PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(rank),
                     "PET_MASTER_ADDR": self.name, "PET_MASTER_PORT": str(self.port)}
        return self.enterContext(Job(*words, env=variables | more))

    def setUp(self) -> None:
        super().setUp()
        self.name, self.port = own_name(), free_port()

    def test_a_pod_that_is_created_again_joins_the_others(self) -> None:
        go = self.folder / "go"
        worker = stub("env=RANK", "env=GROUP_RANK", "env=WORLD_SIZE", f"wait={go}")
        conf = {"PET_RDZV_CONF": "keep_alive_interval=1,keep_alive_max_attempt=2"}
        stays, goes = self.pod(0, *worker, **conf), self.pod(1, *worker, **conf)
        self.assertEqual(stays.wait_for(r"^GROUP_RANK=(\d)"), ["0"])
        self.assertEqual(goes.wait_for(r"^GROUP_RANK=(\d)"), ["1"])
        for pid in (goes.process.pid, goes.agent()):  # as when its machine dies
            os.kill(pid, signal.SIGKILL)
        goes.process.wait()
        again = self.pod(1, *worker, **conf)
        self.assertEqual(again.wait_for(r"^GROUP_RANK=(\d)"), ["1"])
        stays.wait_for(r"^WORLD_SIZE=2", 2)
        go.touch()
        for job in (stays, again):
            self.assertEqual(job.end(), 0, job.errors())

    def test_the_reason_is_shown(self) -> None:
        job = self.pod(1, "--dry-run", "--explain", "train.py").ended()
        self.assertRegex(job.output(), r"rdzv-backend\s+c10d\s+PET_MASTER_ADDR.*Kubeflow")


SAVES = """import os, sys, time
import elastrun
for step in range(100000):
    time.sleep(0.01)
    if step == 3:
        print("runs", flush=True)
    if elastrun.should_save(step):
        with open(f"{sys.argv[1]}/saved.{os.environ['RANK']}", "w") as file:
            file.write(str(step))
        elastrun.checkpoint_done(step)
        break
"""


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare"), "needs root and unshare(1)")
class End(Folder):
    def test_a_pod_that_is_deleted_saves_in_its_grace(self) -> None:
        """The kubelet signals the first process of the container alone."""
        (self.folder / "train.py").write_text(SAVES)
        pod = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", harness.PROGRAM,
             "--worker-lib", "--nproc-per-node=2", "--preempt-signals=SIGTERM",
             "--preempt-timeout=25", "train.py", self.folder],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder,
            env={**os.environ, "PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1"})
        self.addCleanup(pod.communicate)
        self.addCleanup(pod.kill)
        said = [pod.stdout.readline() for _ in range(2)]
        self.assertEqual(said, ["runs\n"] * 2)
        (first,) = Path(f"/proc/{pod.pid}/task/{pod.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        out, _ = pod.communicate(timeout=harness.LIMIT)
        self.assertEqual(pod.returncode, 75, out)
        steps = {path.read_text() for path in self.folder.glob("saved.*")}
        self.assertEqual(len(steps), 1, out)
        self.assertIn(f"preempted (SIGTERM): saved at step {steps.pop()} after", out)


class Controller(Collector):
    """Takes what a TrainJob tells of its progress. `status`: its answer."""

    def __init__(self, folder: Path, status: int = 200) -> None:
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=it",
                        "-addext", "subjectAltName=DNS:localhost", "-keyout", folder / "key.pem",
                        "-out", folder / "ca.crt"], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "ca.crt", folder / "key.pem")
        super().__init__(status, tls=context)
        (folder / "token").write_text(TOKEN + "\n")
        self.variables = {
            "KUBEFLOW_TRAINER_SERVER_URL":
                f"https://localhost:{self.server_address[1]}/jobs/bert/status",
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(folder / "ca.crt"),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(folder / "token")}

    def last(self) -> dict[str, Any]:
        """What was told at last."""
        status: dict[str, Any] = self.requests[-1][2]["trainerStatus"]
        return status


@unittest.skipUnless(shutil.which("openssl"), "no openssl, which makes a certificate")
class Progress(Folder):
    def train(self, controller: Controller, *options: str, **more: str) -> Job:
        script = self.folder / "train.py"
        script.write_text(TRAINS)
        env = {"PYTHONPATH": harness.PACKAGE, "PYTHON_EXEC": sys.executable,
               **controller.variables, **more}
        return self.enterContext(Job("--report=report.json", *options, script, self.folder / "go",
                                     env=env))

    def account(self, job: Job) -> dict[str, object]:
        return next(s for s in job.report()["metrics_sinks"] if s["sink"].startswith("exec:"))

    def test_the_controller_hears_how_far_it_is(self) -> None:
        with Controller(self.folder) as controller:
            job = self.train(controller, TELLS % 20, "--nproc-per-node=2")
            wait_until(lambda: controller.requests, "it is told", job.errors)
            (self.folder / "go").touch()
            self.assertEqual(job.end(), 0, job.errors())
            self.assertEqual({path for path, _, _ in controller.requests}, {"/jobs/bert/status"})
            self.assertEqual(controller.authorizations, {f"Bearer {TOKEN}"})
            last = controller.last()
            self.assertEqual(last["progressPercentage"], 100)
            self.assertEqual(last["estimatedRemainingSeconds"], 0)
            self.assertRegex(last["lastUpdatedTime"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
            values = {m["name"]: m["value"] for m in last["metrics"]}
            self.assertEqual(values, {"step": "20", "loss": "0.05", "data/seen": "20"})
            # One at once, one or two at the end, and one for each 5 s of a machine that is slow.
            self.assertEqual(self.account(job)["lost"], 0)
            self.assertLess(len(controller.requests), 10)

    def test_a_controller_that_refuses_costs_the_job_nothing(self) -> None:
        (self.folder / "go").touch()
        with Controller(self.folder, status=403) as controller:
            job = self.train(controller, TELLS % "").ended()
            self.assertNotIn("progressPercentage", controller.last())
            self.assertRegex(job.errors(), "(?m)kubeflow: localhost:.* answers with status 403$")
        gone = self.train(controller, TELLS % "")
        self.assertEqual(gone.end(), 0, gone.errors())
        self.assertIn("kubeflow: ", gone.errors())

    def test_a_stranger_gets_no_token(self) -> None:
        (self.folder / "go").touch()
        with Controller(self.folder) as controller:
            other = self.folder / "other"
            other.mkdir()
            with Controller(other) as stranger:
                job = self.train(controller, TELLS % "", KUBEFLOW_TRAINER_SERVER_URL=(
                    stranger.variables["KUBEFLOW_TRAINER_SERVER_URL"])).ended()
                self.assertEqual(stranger.requests, [])
                self.assertIn("CERTIFICATE_VERIFY_FAILED", job.errors())

    def test_outside_of_a_trainjob_it_says_what_is_missing(self) -> None:
        for name, value, why in (
                ("URL", "", "no TrainJobStatus?"), ("URL", "http://it:1/a", "https:"),
                ("TOKEN", "", "_TOKEN"), ("CA_CERT", "/none", "No such file")):
            variables = {"KUBEFLOW_TRAINER_SERVER_" + known: text for known, text in (
                ("URL", "https://it:1/a"), ("TOKEN", "/token"), (name, value))}
            with self.subTest(name, value=value):
                done = subprocess.run([sys.executable, "-B", PROGRAM], env=variables, text=True,
                                      stdin=subprocess.DEVNULL, capture_output=True)
                self.assertEqual(done.returncode, 1)
                self.assertIn(why, done.stderr)


sys.path.insert(0, str(PROGRAM.parent))
from kubeflow_progress import Progress as Told


def step(number: int, second: float) -> dict[str, object]:
    return {"kind": "sample", "scope": "elastrun.worker", "name": "step", "value": number,
            "mono_ns": int(second * 1e9)}


def entry(name: str, number: int, second: float) -> dict[str, object]:
    return {"kind": "event", "scope": "elastrun.goodput", "name": name,
            "mono_ns": int(second * 1e9), "attributes": {"step_count": number, "rank": 0}}


def metric(scope: str, name: str, value: object, rank: int = 0) -> dict[str, object]:
    return {"kind": "sample", "scope": scope, "name": name, "value": value, "mono_ns": 0,
            "attributes": {"rank": rank}}


def status(progress: Told) -> dict[str, object]:
    shown: dict[str, object] = json.loads(progress.body(1763690000))["trainerStatus"]
    return shown


class Account(unittest.TestCase):
    """What the program makes of records."""

    def share(self, progress: Told, percent: int | None, left: int | None = None) -> None:
        shown = status(progress)
        self.assertEqual(shown.get("progressPercentage"), percent)
        self.assertEqual(shown.get("estimatedRemainingSeconds"), left)

    def test_share_and_time_that_is_left_follow_from_steps(self) -> None:
        progress = Told(200)
        self.assertEqual(status(progress), {"metrics": [],
                                            "lastUpdatedTime": "2025-11-21T01:53:20Z"})
        self.assertTrue(progress.take(step(10, 5)))
        self.share(progress, 5)
        self.assertEqual(status(progress)["metrics"], [{"name": "step", "value": "10"}])
        progress.take(step(50, 25))  # half a second for each
        self.share(progress, 25, 75)

    def test_a_start_from_a_checkpoint_begins_the_pace_again(self) -> None:
        progress = Told(100)
        for number, second in ((10, 0), (20, 1000), (15, 2000)):
            progress.take(step(number, second))
        self.share(progress, 15)
        progress.take(step(25, 2010))
        self.share(progress, 25, 75)
        progress.take(step(300, 2011))  # more than was said
        self.share(progress, 100, 0)

    def test_the_last_of_steps_from_0_is_all_of_them(self) -> None:
        progress = Told(10)
        for number in range(10):
            progress.take(step(number, number))
        self.share(progress, 100, 0)
        self.assertEqual(status(progress)["metrics"], [{"name": "step", "value": "9"}])

    def test_hooks_and_recorders_tell_steps_too(self) -> None:
        hooks = Told(4)
        for number in range(2):
            self.assertTrue(hooks.take(entry("step_end_time", number, number + 1)))
        self.share(hooks, 50, 2)
        self.assertFalse(hooks.take(entry("checkpoint_save_start_time", 1, 3)))
        recorder = Told(4)
        self.assertFalse(recorder.take(entry("step_start_time", 0, 0)))
        self.assertTrue(recorder.take(entry("step_start_time", 1, 1)))
        self.share(recorder, 25)
        recorder.take(entry("step_start_time", 3, 3))
        self.assertTrue(recorder.take(entry("job_end_time", 0, 4)))
        self.share(recorder, 100, 0)
        from_one = Told(4)
        from_one.take(entry("step_start_time", 1, 0))
        self.share(from_one, 0)
        from_one.take(entry("step_start_time", 3, 2))
        self.share(from_one, 50, 2)
        both = Told(4)
        self.assertTrue(both.take(step(2, 2)))
        self.assertFalse(both.take(entry("step_start_time", 2, 2)))  # heard later than its end
        self.assertFalse(Told(4).take({**entry("step_end_time", 3, 3), "scope": "worker"}))

    def test_without_the_number_of_steps_there_is_no_share(self) -> None:
        progress = Told()
        for number in (1, 2):
            progress.take(step(number, number))
        self.share(progress, None)
        self.assertEqual(status(progress)["metrics"], [{"name": "step", "value": "2"}])

    def test_metrics_are_those_of_rank_0_and_fit_the_fields(self) -> None:
        progress = Told()
        self.assertTrue(progress.take(metric("worker", "loss", 0.123456789)))
        self.assertTrue(progress.take(metric("eval", "accuracy", 1)))
        for odd in (metric("worker", "loss", 9, 1), metric("elastrun.worker", "other", 9),
                    metric("worker", "", 9), metric("worker", "name", "bert"),
                    metric("worker", "nan", None), {**metric("worker", "e", 1), "kind": "event"}):
            self.assertFalse(progress.take(odd), odd)
        self.assertEqual(status(progress)["metrics"], [{"name": "eval/accuracy", "value": "1"},
                                                       {"name": "loss", "value": "0.123457"}])
        # Cut before the character that would not fit as a whole.
        progress.take(metric("worker", 63 * "a" + "\u00e9", 2))
        self.assertIn(63 * "a", [one["name"] for one in status(progress)["metrics"]])
        for number in range(1000):
            progress.take(metric("worker", f"m{number}", number))
        progress.take(step(1, 1))
        self.assertEqual(len(status(progress)["metrics"]), 256)
