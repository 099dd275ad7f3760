# SPDX-License-Identifier: Apache-2.0
"""What the documents show runs with the imports replaced, and prints what the originals print where
this Python has them. Timers over a FIFO are told by one library and kept by the other.
"""
from __future__ import annotations

import contextlib
import datetime
import functools
import importlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
import unittest
import unittest.mock
from pathlib import Path

import programs
import readme

HERE = Path(__file__).resolve()
PACKAGE = HERE.parents[2] / "lib" / "python"
ORIGINALS = HERE.parents[2] / "build" / "originals"
PLAIN = {k: v for k, v in os.environ.items() if not k.startswith("ELASTRUN_")}
# Without what it talks to clouds with, for which there are stand-ins.
GOODPUT_PACKAGES = ["ml-goodput-measurement==0.2.3", "numpy", "packaging", "protobuf", "scipy",
                    "tensorboardX"]

REPLACED = (("torch.distributed.elastic", "elastrun"), ("torch.monitor", "elastrun.monitor"),
            ("ml_goodput_measurement", "elastrun"))
FIFO = """
import multiprocessing as mp, os, signal, sys, tempfile, time
from SERVERS.timer import FileTimerServer
from CLIENTS import timer
path = tempfile.mkdtemp() + "/fifo"
told = []
server = FileTimerServer(path, "run", 0.05, log_event=lambda name, request: told.append(
    (name, request and request.scope_id)))
server._reap_worker = (lambda kill: lambda pid, number: pid == os.getpid() or kill(pid, number))(
    server._reap_worker)  # torch's would end this process, too
server.start()
def hang():
    timer.configure(timer.FileTimerClient(path, signal=signal.SIGTERM))
    with timer.expires(after=600, scope="released"):
        pass
    with timer.expires(after=0.2, scope="kept"):
        time.sleep(600)
worker = mp.get_context("fork").Process(target=hang)
worker.start()
worker.join()
deadline = time.monotonic() + 60
while ("kill worker process", "kept") not in told and time.monotonic() < deadline:
    time.sleep(0.01)
print(worker.exitcode, [one for one in told if one[1]])
server.stop()
"""


def comparable(said: str) -> str:
    """Without times of day and durations."""
    said = re.sub(r"\[\d{10}\.\d+\]", "[TIME]", said)
    return re.sub(r"(duration\.ms)=\d+", r"\1=MS", said)


def stand_in_for_clouds() -> None:
    """What ml_goodput_measurement imports and these programs do not use."""
    for name in ("google", "google.api_core", "google.api_core.exceptions", "google.cloud",
                 "google.cloud.logging", "google.cloud.monitoring_v3", "google.cloud.storage",
                 "requests", "requests.adapters", "tensorboardX", "urllib3", "urllib3.util",
                 "urllib3.util.retry"):
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = unittest.mock.MagicMock()


def keep_logs_here() -> None:
    """The original's log in a cloud becomes a file in the working directory, whose entries are as
    old as what they tell; there is no cloud to ask where this machine is.
    """
    theirs = importlib.import_module("ml_goodput_measurement.src.goodput")
    tools = importlib.import_module("ml_goodput_measurement.src.goodput_utils")

    class Log(theirs._CloudLogger):  # type: ignore[misc]
        def __init__(self, job_name: str, log_name: str, *_: object, **more: object) -> None:
            self.job_name, self.job_start_time = job_name, None
            self.file = Path("logs." + log_name)

        def write_cloud_logging_entry(self, entry: dict[str, object]) -> None:
            if entry is not None and entry["job_name"] == self.job_name:
                with self.file.open("a") as file:
                    print(json.dumps(entry), file=file)

        def flush(self) -> None:
            pass

        def read_cloud_logging_entries(self, start_time: object = None, end_time: object = None,
                                       last_entry_info: tuple[object, str] | None = None) -> object:
            lines = self.file.read_text().splitlines() if self.file.exists() else []
            found = [json.loads(line) for line in lines]
            begin = 0 if last_entry_info is None else int(last_entry_info[1]) + 1
            told = [(number, one) for number, one in enumerate(found) if number >= begin
                    and (end_time is None or self.time_of(one) <= end_time)]
            payload = [one for _, one in told]
            self._update_job_start_time(payload)
            last = (self.time_of(payload[-1]), str(told[-1][0])) if told else (None, None)
            return payload, last

        @staticmethod
        def time_of(entry: dict[str, object]) -> datetime.datetime:
            return datetime.datetime.fromtimestamp(
                max(value for key, value in entry.items() if key.endswith("_time")),
                datetime.timezone.utc)

    theirs._CloudLogger = Log
    for module in [one for name, one in sys.modules.items() if name.startswith("ml_goodput")]:
        if getattr(module, "_CloudLogger", None) is not None:
            module._CloudLogger = Log
    tools.get_gcp_metadata = lambda *_, **more: None
    os.environ["ML_GOODPUT_CACHE_DIR"] = os.getcwd()


def run_all(chosen: dict[str, str]) -> dict[str, str]:
    """In this process, which is a child: what each has printed, or its traceback."""
    said = {}
    if any("ml_goodput_measurement" in text for text in chosen.values()):
        stand_in_for_clouds()
        keep_logs_here()
    for name, text in chosen.items():
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                exec(compile(text, "example.foobar", "exec"), {"__name__": "examples.foobar"})
        except Exception:
            out.write(traceback.format_exc())
        said[name] = comparable(out.getvalue())
    return said


@functools.cache
def python_with(original: str) -> str:
    """This Python, or one of an environment that is made for it once; ImportError: why not."""
    if importlib.util.find_spec(original) is not None:
        return sys.executable
    if original != "ml_goodput_measurement":
        raise ImportError(f"no {original} in this Python")
    python = ORIGINALS / "bin" / "python"
    if not python.exists():
        ORIGINALS.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=ORIGINALS.parent) as folder:
            made = Path(folder, "made")
            for words in ([sys.executable, "-m", "venv", made],
                          [made / "bin/pip", "install", "-q", "--no-deps", "--retries=0",
                           "--timeout=10", "--disable-pip-version-check", *GOODPUT_PACKAGES]):
                done = subprocess.run(words, capture_output=True, text=True, timeout=200)
                if done.returncode != 0:
                    raise ImportError(f"{original} cannot be installed: {done.stderr.strip()}")
            with contextlib.suppress(OSError):  # another test has made it meanwhile
                made.rename(ORIGINALS)
    return str(python)


def in_a_process(chosen: dict[str, str], python: str = sys.executable) -> dict[str, str]:
    env = PLAIN | {"PYTHONPATH": str(PACKAGE)}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([python, "-B", str(HERE), "run"], input=json.dumps(chosen),
                              text=True, capture_output=True, timeout=240, cwd=folder,
                              env=dict(env, TMPDIR=folder))
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    told: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return told


def replaced(text: str) -> str:
    for original, ours in REPLACED:
        text = text.replace(original, ours)
    return text


class Seeds(unittest.TestCase):
    maxDiff = None

    def test_programs_that_only_elastrun_can_run_do_what_the_documents_say(self) -> None:
        said = in_a_process(programs.OURS)
        self.assertEqual(said, programs.EXPECTED)

    def compare(self, original: str, chosen: dict[str, str]) -> None:
        ours = in_a_process({name: replaced(text) for name, text in chosen.items()})
        for name, said in ours.items():
            self.assertNotIn("Traceback", said, name)
            self.assertNotEqual(said, "", name)
        try:
            python = python_with(original)
        except ImportError as error:
            print(f"they run, and are compared with nothing: {error}", file=sys.stderr)
            self.skipTest(str(error))
        theirs = in_a_process(chosen, python)
        for name in chosen:
            with self.subTest(name):
                self.assertEqual(ours[name], theirs[name])

    def test_programs_of_torch(self) -> None:
        self.compare("torch", programs.TORCH)

    def test_programs_of_ml_goodput_measurement(self) -> None:
        self.compare("ml_goodput_measurement", programs.GOODPUT)

    def test_examples_of_the_readme_of_ml_goodput_measurement(self) -> None:
        self.compare("ml_goodput_measurement", readme.README)

    def test_under_elastrun_they_do_the_same_and_their_metrics_reach_its_sinks(self) -> None:
        """But that a timer needs no client, as the agent is there."""
        program = shutil.which("elastrun")
        if program is None:
            self.skipTest("no elastrun in PATH")
        chosen = {name: replaced(text) for name, text in
                  {**programs.TORCH, **programs.GOODPUT, **readme.README,
                   **programs.OURS}.items()}
        expected = in_a_process(chosen)
        client = "timer: no client, and one of the user's"
        self.assertIn("RuntimeError\n", expected[client])
        expected[client] = expected[client].replace("RuntimeError\n", "never\n")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "chosen.json").write_text(json.dumps(chosen))
            done = subprocess.run(
                [program, "--worker-lib", "--log-dir=logs", "--metrics=jsonl:records.jsonl",
                 str(HERE), "run", "chosen.json"], cwd=folder, text=True, capture_output=True,
                timeout=240, env=PLAIN | {"TMPDIR": folder, "PYTHON_EXEC": sys.executable})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(Path(folder, "said.json").read_text()), expected)
            records = [json.loads(line)
                       for line in Path(folder, "records.jsonl").read_text().splitlines()]
        told = {(one.get("scope"), one["name"]) for one in records}
        self.assertLessEqual({("goodput", "badput_time"), ("goodput", "interval_goodput"),
                              ("torchelastic", "foobar.foo.success")}, told)

    def test_without_a_log_directory_calculators_find_what_a_recorder_has_told(self) -> None:
        """In the worker and after the run: with one they read the journal."""
        program = shutil.which("elastrun")
        if program is None:
            self.skipTest("no elastrun in PATH")
        ask = ("from elastrun import goodput\n"
               "calculator = goodput.GoodputCalculator('seed', 'goodput_seed')\n"
               "print('last', calculator.get_job_goodput()[2])\n")
        train = ("from elastrun.measurement import Event, GoodputRecorder\n"
                 "recorder = GoodputRecorder('seed', 'goodput_seed', logging_enabled=True)\n"
                 "with recorder.record_event(Event.JOB):\n"
                 "    for step in range(3):\n"
                 "        with recorder.record_event(Event.STEP, step): pass\n"
                 "recorder.flush()\n")
        env = PLAIN | {"PYTHONPATH": str(PACKAGE), "PYTHON_EXEC": sys.executable}
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "train.py").write_text(train + ask)
            Path(folder, "ask.py").write_text(ask)
            for words in ([program, "--worker-lib", "train.py"], [sys.executable, "-B", "ask.py"]):
                done = subprocess.run(words, cwd=folder, env=env, text=True, timeout=120,
                                      capture_output=True)
                self.assertIn("last 2\n", done.stdout, done.stderr)

    def test_timers_over_a_fifo_with_either_side_of_torch(self) -> None:
        torch, ours = "torch.distributed.elastic", "elastrun"
        pairs = [(ours, ours)]
        if importlib.util.find_spec("torch") is not None:
            pairs += [(ours, torch), (torch, ours)]
        chosen = {f"server of {server}, client of {client}":
                  FIFO.replace("SERVERS", server).replace("CLIENTS", client)
                  for server, client in pairs}
        expected = "-15 [('timer expired', 'kept'), ('kill worker process', 'kept')]\n"
        self.assertEqual(in_a_process(chosen), dict.fromkeys(chosen, expected))


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        print(json.dumps(run_all(json.load(sys.stdin))))
    elif sys.argv[1:2] == ["run"]:
        said = run_all(json.loads(Path(sys.argv[2]).read_text()))
        Path("said.json").write_text(json.dumps(said))
    else:
        unittest.main()
