# SPDX-License-Identifier: Apache-2.0
"""--metrics plugin:FILE: plug-ins that work, that cannot be loaded, and that are difficult, in real
jobs. They are compiled here, as a user would: by a compiler of C or C++ and one header."""
from __future__ import annotations

import json
import math
import os
import shutil
import struct
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from harness import LIMIT, Job, main, stub, wait_until
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
CC, CXX = os.environ.get("CC") or "cc", os.environ.get("CXX") or "c++"
WORKER = """import os, sys, time
from elastrun import channel
channel.metric("loss", 0.25 + int(os.environ["RANK"]), "model")
channel.event("epoch", number=3)
"""
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


class Built(unittest.TestCase):
    """Compiles what the tests of a class load, once."""

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="plugin.")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        (cls.folder / "elastrun").symlink_to(ROOT / "lib")

    @classmethod
    def build(cls, source: Path | str, name: str, *words: str) -> Path:
        if isinstance(source, str):
            (cls.folder / f"{name}.c").write_text(source)
            source = cls.folder / f"{name}.c"
        library = cls.folder / f"{name}.so"
        compiler = [CC, "-std=c99"] if source.suffix == ".c" else [CXX, "-std=c++17"]
        subprocess.run([*compiler, *WARNINGS, "-shared", "-fPIC", "-I", cls.folder, *words, source,
                        "-o", library], check=True)
        return library

    @classmethod
    def difficult(cls, name: str = "difficult", *words: str) -> Path:
        library = cls.folder / f"{name}.so"
        if not library.exists():
            cls.build(ROOT / "tests/helpers/difficult_plugin.cpp", name, *words)
        return library


def account(job: Job) -> dict[str, Any]:
    [one] = json.loads((job.folder / "report.json").read_text())["metrics_sinks"]
    return one


class Header(Built):
    def test_it_is_c99_and_cpp_and_compiles_alone(self) -> None:
        header = ROOT / "lib/plugin/elastrun_plugin.h"
        for compiler, language, standard in ((CC, "c", "c99"), (CC, "c", "c17"),
                                             (CXX, "c++", "c++11"), (CXX, "c++", "c++20")):
            subprocess.run([compiler, f"-std={standard}", *WARNINGS, "-fsyntax-only",
                            "-x", language, header], check=True)

    def test_its_structures_stay_as_they_are(self) -> None:
        """A plug-in compiled yesterday runs tomorrow: what is there keeps its place."""
        names = {"elastrun_value": ["type", "as"], "elastrun_attribute": ["key", "value"],
                 "elastrun_record": ["size", "kind", "severity", "no_data", "time_ns", "mono_ns",
                                     "id", "scope", "name", "unit", "value", "attributes",
                                     "attribute_count", "start_ns", "end_ns", "count",
                                     "aggregates", "aggregate_count"],
                 "elastrun_host": ["abi", "size", "version", "argument", "run_id", "role",
                                   "host_name", "own", "log"],
                 "elastrun_plugin": ["abi", "size", "name", "open", "metric", "event", "span",
                                     "window", "series", "flush", "health", "error", "close"]}
        lines = [f'printf("%zu ", offsetof({one}, {member}));'
                 for one, members in names.items() for member in members]
        source = self.folder / "places.c"
        source.write_text("#include <elastrun/plugin/elastrun_plugin.h>\n#include <stdio.h>\n"
                          "int main(void) {" + "\n".join(lines) + "}\n")
        subprocess.run([CC, "-I", self.folder, source, "-o", self.folder / "places"], check=True)
        said = subprocess.run([self.folder / "places"], capture_output=True, text=True, check=True)
        if struct.calcsize("P") != 8:
            self.skipTest("the places are those of machines with 64 bits")
        self.assertEqual([int(one) for one in said.stdout.split()], [
            0, 8, 0, 8,
            0, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 88, 96, 104, 112, 120, 128,
            0, 4, 8, 16, 24, 32, 40, 48, 56,
            0, 4, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88])


class Refused(Built):
    def refusal(self, sink: str) -> str:
        with Job("--metrics", sink, *stub("pid", "exit=0")) as job:
            self.assertEqual(job.end(), 2, sink)
            self.assertEqual(job.output(), "")  # no worker was started
            said = job.errors()
            self.assertIn(f"--metrics {sink}: ", said)
            self.assertNotIn("Traceback", said)
            return said

    def test_one_that_is_not_there(self) -> None:
        said = self.refusal("plugin:./nowhere.so?argument")
        self.assertIn("./nowhere.so", said)
        self.assertIn("No such file or directory", said)
        self.assertIn("./nowhere.so", self.refusal("plugin:nowhere.so"))  # no system library

    def test_a_file_that_is_no_library(self) -> None:
        (self.folder / "text.so").write_text("words\n")
        self.assertIn("text.so", self.refusal(f"plugin:{self.folder}/text.so"))

    def test_a_library_that_is_no_plugin(self) -> None:
        library = self.build("int x(void); int x(void) { return 1; }\n", "other")
        self.assertIn("it has no function elastrun_plugin_describe",
                      self.refusal(f"plugin:{library}"))

    def test_one_for_another_version(self) -> None:
        library = self.difficult("newer", "-DABI=2")
        self.assertIn("made for version 2 of the plug-in interface, and this elastrun has "
                      "version 1", self.refusal(f"plugin:{library}"))

    def test_one_that_lacks_a_symbol(self) -> None:
        library = self.build("int nobody(void); int elastrun_plugin_describe(void);\n"
                             "int elastrun_plugin_describe(void) { return nobody(); }\n", "lacks")
        self.assertIn("undefined symbol: nobody", self.refusal(f"plugin:{library}"))

    def test_one_that_takes_nothing(self) -> None:
        library = self.difficult("nothing", "-DTAKES_NOTHING", "-Wno-unused-function")
        self.assertIn("it takes nothing", self.refusal(f"plugin:{library}"))

    def test_one_that_refuses_what_it_is_given(self) -> None:
        library = self.difficult()
        self.assertIn("cannot be opened: it is Monday", self.refusal(f"plugin:{library}?refuse"))
        self.assertIn("open(): it threw: no table free",
                      self.refusal(f"plugin:{library}?throw-open"))

    def test_the_job_file_refuses_the_same(self) -> None:
        files = {"job.toml": '[metrics]\nsinks = ["plugin:./nowhere.so"]\n'}
        with Job("--config=job.toml", *stub("pid", "exit=0"), files=files) as job:
            self.assertEqual(job.end(), 2)
            self.assertIn("--metrics plugin:./nowhere.so: ", job.errors())

    def test_a_name_without_a_file_is_shown_an_example(self) -> None:
        for sink in ("plugin", "plugin:", "plugin:?argument"):
            with Job("--metrics", sink, *stub("exit=0")) as job:
                self.assertEqual(job.end(), 2, sink)
                self.assertIn("for example plugin:./sink.so", job.errors())


class Working(Built):
    def test_one_gets_everything_on_one_thread_in_order(self) -> None:
        with Job("--nproc-per-node=2", "--report=report.json", "--rdzv-id=seven",
                 "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--role=trainer",
                 f"--metrics=plugin:{self.difficult()}?out=said", "worker.py",
                 files={"worker.py": WORKER}, env={"PYTHONPATH": str(ROOT / "lib/python")}) as job:
            self.assertEqual(job.end(), 0, job.errors())
            said = (job.folder / "said").read_text().splitlines()
            self.assertEqual(said[0], "open seven trainer")
            self.assertEqual(said[-1], "close")
            self.assertEqual(said[-2], "flush")
            self.assertNotIn("another thread", said)
            self.assertEqual(said.count("metric model.loss"), 2)
            self.assertEqual(said.count("event epoch"), 2)
            self.assertIn("span job took time", said)
            self.assertIn("window elastrun.run.count 1", said)
            self.assertIn("series loss rank=0 0.250000", said)
            self.assertIn("series elastrun.run.count outcome=success retried=false 1", said)
            one = account(job)
            self.assertEqual(one["lost"], 0)
            records = sum(line.startswith(("metric", "event", "span", "window", "series"))
                          for line in said)
            self.assertEqual(one["delivered"], records)
            self.assertEqual(one["sink"], f"plugin:{self.difficult()}?out=said")

    def test_routes_of_the_job_file_select(self) -> None:
        files = {"job.toml": f"""[[metrics.route]]
sink = "plugin:{self.difficult()}?out=said"
name = "worker.ended"
"""}
        with Job("--config=job.toml", *stub("exit=0"), files=files) as job:
            self.assertEqual(job.end(), 0, job.errors())
            said = (job.folder / "said").read_text().splitlines()
            told = [line for line in said if line.split()[0] not in ("open", "flush", "close")]
            self.assertEqual(told, ["event worker.ended"])

    def test_one_library_is_opened_for_each_argument(self) -> None:
        library = self.difficult()
        with Job(f"--metrics=plugin:{library}?out=a", f"--metrics=plugin:{library}?out=b-%i",
                 "--rdzv-id=seven", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
                 *stub("exit=0")) as job:
            self.assertEqual(job.end(), 0, job.errors())
            for name in ("a", "b-seven"):
                self.assertIn("event job.ended", (job.folder / name).read_text())

    def test_its_lines_are_in_the_log_and_harmless(self) -> None:
        with Job(f"--metrics=plugin:{self.difficult()}?log", *stub("exit=0")) as job:
            self.assertEqual(job.end(), 0)
            self.assertRegex(job.errors(), r"W.*metrics\] plugin:.*\?log: opened")
            self.assertRegex(job.errors(), r"E.*metrics\] plugin:.*\?log: job.ended")
            self.assertNotIn("\x1b[31m", job.errors())

    def test_the_example_writes_its_file_and_sees_a_loss_that_is_none(self) -> None:
        library = self.build(ROOT / "config/examples/plugin/loss_watch.c", "loss_watch")
        worker = ("import time\nfrom elastrun import channel\n"
                  "channel.metric('loss', float('nan'), 'model')\ntime.sleep(1000)\n")
        with Job("--http=0", f"--metrics=plugin:{library}?loss.csv", "worker.py",
                 files={"worker.py": worker}, env={"PYTHONPATH": str(ROOT / "lib/python")}) as job:
            wait_until(lambda: "is shown at" in job.errors(), "the page is served")
            address = job.errors().split("is shown at ")[1].split()[0]
            wait_until(lambda: health(address)[0] == 503, "the health check has failed")
            why = health(address)[1]["why"]
            self.assertEqual(why, [f"plugin:{library}?loss.csv: the loss is not a number"])
            job.process.terminate()
            job.end()
            lines = [one.split(",") for one in (job.folder / "loss.csv").read_text().splitlines()]
            [loss] = [line for line in lines if line[2] == "loss"]
            self.assertEqual(loss[1:4], ["model", "loss", "0"])
            self.assertTrue(math.isnan(float(loss[4])))


def health(address: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(address + "healthz", timeout=LIMIT) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except urllib.error.URLError:  # not served yet: the workers do not wait for it
        return 0, {}


class Difficult(Built):
    def run_with(self, word: str, *more: str) -> tuple[dict[str, Any], str, list[str], float]:
        begun = time.monotonic()
        with Job("--report=report.json", f"--metrics=plugin:{self.difficult()}?{word},out=said",
                 *more, "worker.py", files={"worker.py": WORKER},
                 env={"PYTHONPATH": str(ROOT / "lib/python")}) as job:
            self.assertEqual(job.end(), 0, job.errors())
            job.nothing_left()
            said = (job.folder / "said").read_text().splitlines()
            return account(job), job.errors(), said, time.monotonic() - begun

    def test_what_throws_is_counted_and_shown_once(self) -> None:
        for word, why in (("throw", "metric(): it threw: thrown on purpose"),
                          ("throw-int", "metric(): it threw something that does not derive "
                           "from std::exception"),
                          ("fail", "the disk is full of eels")):
            one, errors, said, _ = self.run_with(word)
            metrics = sum(line.startswith("metric") for line in said)
            self.assertGreater(metrics, 3, word)  # it goes on being called
            self.assertEqual(one["lost"], metrics)
            self.assertGreater(one["delivered"], 3)
            self.assertEqual(one["trouble"], why)
            self.assertEqual(errors.count("what fails is lost"), 1)
            self.assertEqual(said[-1], "close")

    def test_one_that_blocks_for_ever_delays_neither_job_nor_end(self) -> None:
        one, errors, said, seconds = self.run_with("block")
        self.assertEqual(sum(line.startswith("event") for line in said), 1)
        self.assertEqual(said.count("close"), 0)
        self.assertEqual(one["delivered"], 0)
        self.assertGreater(one["lost"], 10)
        self.assertIn("lost: it is too slow", errors)
        self.assertLess(seconds, 20)

    def test_one_that_blocks_at_the_end_has_two_seconds(self) -> None:
        one, _, said, seconds = self.run_with("block-flush")
        self.assertEqual(said.count("flush"), 1)
        self.assertGreater(seconds, 2)
        self.assertLess(seconds, 20)
        self.assertGreater(one["lost"], 0)

    def test_one_whose_destructors_crash_changes_no_result(self) -> None:
        one, _, said, _ = self.run_with("trap")
        self.assertEqual(said[-1], "close")
        self.assertEqual(one["lost"], 0)

    def test_a_failed_job_keeps_its_exit_code_while_one_blocks(self) -> None:
        with Job(f"--metrics=plugin:{self.difficult()}?block", "--exit-code=worker",
                 *stub("exit=7")) as job:
            self.assertEqual(job.end(), 7, job.errors())

    def test_one_that_crashes_takes_no_worker_along(self) -> None:
        """It is a crash of the launcher: the guardian ends what is left."""
        with Job(f"--metrics=plugin:{self.difficult()}?crash", *stub("pid", "stay")) as job:
            self.assertNotEqual(job.end(), 0)
            job.nothing_left()

    def test_an_ill_node_is_told_to_who_asks(self) -> None:
        port = free_port()
        with Job(f"--metrics=plugin:{self.difficult()}?ill", *stub("pid", "stay"),
                 env={"TORCHELASTIC_HEALTH_CHECK_PORT": str(port)}) as job:
            job.wait_for("^pid")
            address = f"http://127.0.0.1:{port}/"
            wait_until(lambda: health(address)[0] == 503, "the node is ill")
            self.assertEqual(health(address)[1]["why"],
                             [f"plugin:{self.difficult()}?ill: GPU 3 has fallen off the bus"])
            job.process.terminate()
            job.end()

    def test_nobody_asks_for_health_that_nobody_serves(self) -> None:
        _, _, said, _ = self.run_with("ill")
        self.assertNotIn("health", said)


if __name__ == "__main__":
    if shutil.which(CXX) is None or shutil.which(CC) is None:
        raise SystemExit(f"{CC} and {CXX} are not both here")
    main()
