# SPDX-License-Identifier: Apache-2.0
"""What elastrun is in a pod, by the variables that its operators set: pod_test.py ELASTRUN
STUB_WORKER. Nodes are agents of this machine; the Trainer's controller is a server with TLS."""
from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "system"))
import harness  # noqa: E402
from harness import Job, main, stub, wait_until  # noqa: E402
from ports import free_port  # noqa: E402

LIBRARY = Path(__file__).resolve().parents[2] / "lib" / "python"
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
        job = self.pod(1, "--dry-run", "--explain", "train.py")
        self.assertEqual(job.end(), 0, job.errors())
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


class Controller(http.server.ThreadingHTTPServer):
    """Takes what a TrainJob tells of its progress. `status`: its answer."""

    daemon_threads = True

    def __init__(self, folder: Path, status: int = 200) -> None:
        self.status, self.told = status, []
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=it",
                        "-addext", "subjectAltName=DNS:localhost", "-keyout", folder / "key.pem",
                        "-out", folder / "ca.crt"], check=True, capture_output=True)
        super().__init__(("localhost", 0), Take)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "ca.crt", folder / "key.pem")
        self.socket = context.wrap_socket(self.socket, server_side=True)
        (folder / "token").write_text(TOKEN + "\n")
        place = f"localhost:{self.server_address[1]}"
        self.variables = {
            "KUBEFLOW_TRAINER_SERVER_URL": f"https://{place}/jobs/bert/status",
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(folder / "ca.crt"),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(folder / "token")}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Take(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Controller

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.told.append((self.path, self.headers["Authorization"], body["trainerStatus"]))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@unittest.skipUnless(shutil.which("openssl"), "no openssl, which makes a certificate")
class Progress(Folder):
    def train(self, controller: Controller, *options: str, **more: str) -> Job:
        script = self.folder / "train.py"
        script.write_text(TRAINS)
        env = {"PYTHONPATH": str(LIBRARY), "PYTHON_EXEC": sys.executable,
               "PYTHONDONTWRITEBYTECODE": "1", **controller.variables, **more}
        return self.enterContext(Job("--report=report.json", *options, script, self.folder / "go",
                                     env=env))

    def account(self, job: Job) -> dict[str, object]:
        report = json.loads((job.folder / "report.json").read_text())
        return next(s for s in report["metrics_sinks"] if s["sink"].startswith("kubeflow"))

    def test_the_controller_hears_how_far_it_is(self) -> None:
        with Controller(self.folder) as controller:
            job = self.train(controller, "--metrics=kubeflow:20", "--nproc-per-node=2")
            wait_until(lambda: controller.told, "it is told", job.errors)
            (self.folder / "go").touch()
            self.assertEqual(job.end(), 0, job.errors())
            path, authorization, last = controller.told[-1]
            self.assertEqual((path, authorization), ("/jobs/bert/status", f"Bearer {TOKEN}"))
            self.assertEqual(last["progressPercentage"], 100)
            self.assertEqual(last["estimatedRemainingSeconds"], 0)
            self.assertRegex(last["lastUpdatedTime"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
            values = {m["name"]: m["value"] for m in last["metrics"]}
            self.assertEqual(values, {"step": "20", "loss": "0.05", "data/seen": "20"})
            # One at once, one at the end, and one for each 5 s of a machine that is slow.
            shown = self.account(job)
            self.assertEqual((shown["lost"], shown["delivered"]), (0, len(controller.told)))
            self.assertLess(len(controller.told), 10)

    def test_a_controller_that_refuses_costs_the_job_nothing(self) -> None:
        (self.folder / "go").touch()
        with Controller(self.folder, status=403) as controller:
            job = self.train(controller, "--metrics=kubeflow")
            self.assertEqual(job.end(), 0, job.errors())
            self.assertNotIn("progressPercentage", controller.told[-1][2])
            self.assertIn("answers with status 403", self.account(job)["trouble"])
        gone = self.train(controller, "--metrics=kubeflow")
        self.assertEqual(gone.end(), 0, gone.errors())
        self.assertEqual(self.account(gone)["delivered"], 0)

    def test_a_stranger_gets_no_token(self) -> None:
        (self.folder / "go").touch()
        with Controller(self.folder) as controller:
            other = self.folder / "other"
            other.mkdir()
            with Controller(other) as stranger:
                job = self.train(controller, "--metrics=kubeflow", KUBEFLOW_TRAINER_SERVER_URL=(
                    stranger.variables["KUBEFLOW_TRAINER_SERVER_URL"]))
                self.assertEqual(job.end(), 0, job.errors())
                self.assertEqual((stranger.told, self.account(job)["delivered"]), ([], 0))

    def test_outside_of_a_trainjob_the_start_says_what_is_missing(self) -> None:
        for name, value, why in (
                ("KUBEFLOW_TRAINER_SERVER_URL", "", "TrainJobStatus"),
                ("KUBEFLOW_TRAINER_SERVER_URL", "http://it:1/a", "https://"),
                ("KUBEFLOW_TRAINER_SERVER_TOKEN", "", "names no file"),
                ("KUBEFLOW_TRAINER_SERVER_CA_CERT", "/none", "/none")):
            variables = {"KUBEFLOW_TRAINER_SERVER_URL": "https://it:1/a",
                         "KUBEFLOW_TRAINER_SERVER_TOKEN": "/token"} | {name: value}
            with self.subTest(name, value=value):
                job = self.enterContext(Job("--metrics=kubeflow", *stub("exit=0"), env=variables))
                self.assertEqual(job.end(), 2, job.errors())
                self.assertIn("--metrics kubeflow", job.errors())
                self.assertIn(why, job.errors())


if __name__ == "__main__":
    main()
