# SPDX-License-Identifier: Apache-2.0
"""The recorder of goodput: what it writes, where, and that it never waits."""
from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
from agent_end import PACKAGE, AgentEnd, Listener  # noqa: E402
from elastrun import journal  # noqa: E402
from elastrun.goodput import ElasticGoodputRecorder, GoodputRecorder  # noqa: E402
from elastrun.measurement import Event  # noqa: E402

AT = datetime.fromtimestamp(1_700_000_000.25, timezone.utc)
SECONDS = 1_700_000_000.25


class Kept:
    """What a program may give instead of a cloud."""

    def __init__(self) -> None:
        self.entries: list[dict[str, object]] = []
        self.flushed = 0

    def write_cloud_logging_entry(self, entry: dict[str, object]) -> None:
        self.entries.append(entry)

    def flush(self) -> None:
        self.flushed += 1


def record_everything(recorder: ElasticGoodputRecorder) -> list[dict[str, object]]:
    """Each call once; the members that each is to write."""
    recorder.record_job_start_time(AT)
    recorder.record_tpu_init_start_time(AT)
    recorder.record_tpu_init_end_time(AT)
    recorder.record_training_preparation_start_time(AT)
    recorder.record_training_preparation_end_time(AT)
    recorder.record_data_loading_start_time(AT)
    recorder.record_data_loading_end_time(AT)
    recorder.record_step_start_time(7.9, AT)  # type: ignore[arg-type]
    recorder.record_custom_badput_event_start_time(AT)
    recorder.record_custom_badput_event_end_time(AT, 'ev"al %d')
    recorder.record_checkpoint_progress(7, AT)
    recorder.record_elastic_slice_counts(3, 4, 5, AT)
    recorder.record_elastic_wait_start_time("slice_down", AT)
    recorder.record_elastic_wait_end_time("slice_down", AT)
    recorder.record_elastic_reinit_start_time(AT)
    recorder.record_elastic_reinit_end_time(AT)
    recorder.record_job_end_time(AT)
    return [
        {"job_start_time": SECONDS}, {"tpu_init_start_time": SECONDS},
        {"tpu_init_end_time": SECONDS}, {"training_prep_start_time": SECONDS},
        {"training_prep_end_time": SECONDS}, {"data_loading_start_time": SECONDS},
        {"data_loading_end_time": SECONDS}, {"step_count": 7, "step_start_time": SECONDS},
        {"custom_badput_event_type": "unknown", "custom_badput_event_start_time": SECONDS},
        {"custom_badput_event_type": 'ev"al %d', "custom_badput_event_end_time": SECONDS},
        {"active_slices": 3, "total_slices": 4, "available_slices": 5,
         "elastic_slice_counts_timestamp": SECONDS},
        {"elastic_wait_event_type": "slice_down", "elastic_wait_start_time": SECONDS},
        {"elastic_wait_event_type": "slice_down", "elastic_wait_end_time": SECONDS},
        {"elastic_reinit_start_time": SECONDS}, {"elastic_reinit_end_time": SECONDS},
        {"job_end_time": SECONDS}]


class Recorder(AgentEnd):
    def lines(self, path: Path) -> list[dict[str, object]]:
        text = path.read_text()
        self.assertTrue(text.endswith("\n"))
        return [json.loads(line) for line in text.splitlines()]

    def run_code(self, code: str, **env: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("ELASTRUN_")}
        kept |= {"PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1"} | env
        return subprocess.run([sys.executable, "-c", code], env=kept, cwd=self.folder, text=True,
                              capture_output=True, timeout=60)

    def test_it_is_called_as_the_original(self) -> None:
        def names(call: object) -> list[tuple[str, object]]:
            return [(one.name, one.default) for one in
                    inspect.signature(call).parameters.values()]  # type: ignore[arg-type]
        nothing = inspect.Parameter.empty
        self.assertEqual(names(GoodputRecorder)[:7], [
            ("job_name", nothing), ("logger_name", nothing), ("logging_enabled", False),
            ("cloud_logger", None), ("background_grace_period_s", 5.0),
            ("background_batch_size", 100), ("background_max_latency_s", 2.0)])
        for what in ("job", "tpu_init", "training_preparation", "data_loading"):
            for end in ("start", "end"):
                call = getattr(GoodputRecorder, f"record_{what}_{end}_time")
                self.assertEqual(names(call), [("self", nothing), (f"{end}_time", None)])
        for end in ("start", "end"):
            self.assertEqual(
                names(getattr(GoodputRecorder, f"record_custom_badput_event_{end}_time")),
                [("self", nothing), (f"{end}_time", None),
                 ("custom_badput_event_type", "unknown")])
        self.assertEqual(names(GoodputRecorder.record_step_start_time),
                         [("self", nothing), ("step", nothing), ("start_time", None)])

    def test_unless_enabled_it_does_nothing(self) -> None:
        kept = Kept()
        recorder = ElasticGoodputRecorder("j", "l", cloud_logger=kept, path=self.folder / "j")
        record_everything(recorder)
        recorder.flush()
        self.assertEqual((kept.entries, kept.flushed, list(self.folder.iterdir())), ([], 0, []))

    def test_the_members_of_each_entry(self) -> None:
        kept = Kept()
        recorder = ElasticGoodputRecorder("j", "l", True, kept)
        wanted = [{"job_name": "j", **one} for one in record_everything(recorder)]
        self.assertEqual(kept.entries, wanted)
        self.assertEqual([next(iter(one)) for one in kept.entries], ["job_name"] * len(wanted))
        recorder.flush()
        self.assertEqual(kept.flushed, 1)
        file = self.folder / "j.jsonl"
        recorder = ElasticGoodputRecorder("j", "l", True, path=file)
        record_everything(recorder)
        recorder.flush()
        self.assertEqual(self.lines(file), wanted)

    def test_now_and_naive_local_times(self) -> None:
        kept = Kept()
        recorder = GoodputRecorder("j", "l", True, kept)
        before = time.time()
        recorder.record_step_start_time(1)
        recorder.record_job_start_time(datetime(2026, 5, 4, 3, 2, 1))
        self.assertTrue(before <= kept.entries[0]["step_start_time"] <= time.time())
        self.assertEqual(kept.entries[1]["job_start_time"],
                         datetime(2026, 5, 4, 3, 2, 1).timestamp())

    def test_deviation_what_cannot_be_recorded_is_counted_and_does_not_raise(self) -> None:
        class Raises:
            def __str__(self) -> str:
                raise RuntimeError("on purpose")
            __int__ = __float__ = __index__ = timestamp = __str__

        class Never:
            def timestamp(self) -> float:
                return float("nan")

        kept = Kept()
        recorder = ElasticGoodputRecorder("j", "l", True, kept)
        bad: list[Any] = ["x", float("nan"), float("inf"), 10**400, -1, None, Raises()]
        for one in bad:
            recorder.record_step_start_time(one)
            recorder.record_elastic_slice_counts(one, 1, 1)
        for when in (Raises(), Never(), "now"):
            recorder.record_job_start_time(when)
            recorder.record_step_start_time(1, when)
        recorder.record_custom_badput_event_start_time(None, Raises())
        self.assertEqual((kept.entries, recorder.lost), ([], 2 * len(bad) + 7))
        recorder.record_custom_badput_event_start_time(None, "\ud800")
        self.assertEqual(kept.entries[0]["custom_badput_event_type"], "?")

    def test_under_an_agent_entries_go_in_packets_and_all_are_there_at_the_end(self) -> None:
        done = self.run_code(
            "from elastrun.goodput import GoodputRecorder\n"
            "recorder = GoodputRecorder('night', 'l', True)\n"
            "for step in range(1000): recorder.record_step_start_time(step)\n"
            "recorder.record_custom_badput_event_start_time(None, 'x' * 9000)\n"
            "print(recorder.lost)\n", ELASTRUN_CHANNEL=self.listener.path)
        self.assertEqual((done.stdout, done.stderr), ("0\n", ""))
        connection, = self.listener.packets()
        self.assertEqual({(one["kind"], one["job"]) for one in connection},
                         {("goodput", "night")})
        entries = [entry for one in connection for entry in one["entries"]]
        self.assertEqual([one.get("step_count") for one in entries], [*range(1000), None])
        self.assertEqual(entries[-1]["custom_badput_event_type"], "x" * 256)
        times = [one["step_start_time"] for one in entries[:-1]]
        self.assertEqual(times, sorted(times))
        self.assertLess(len(connection), 100)
        self.assertEqual(list(self.folder.glob("*.jsonl")), [])

    def test_an_agent_without_a_journal_has_all_and_so_has_a_file_unless_it_hangs(self) -> None:
        """A FIFO with a full pipe stands for a file system that hangs."""
        code = ("import fcntl, os, sys\n"
                "hangs = sys.argv[1:] == ['hangs']\n"
                "if hangs:\n"
                "    os.mkfifo('j.goodput.jsonl')\n"
                "    full = os.open('j.goodput.jsonl', os.O_RDWR | os.O_NONBLOCK)\n"
                "    fcntl.fcntl(full, 1031, 4096)\n"  # F_SETPIPE_SZ, fcntl(2)
                "    try:\n"
                "        while True: os.write(full, b'x' * 4096)\n"
                "    except BlockingIOError: pass\n"
                "from elastrun.goodput import GoodputRecorder\n"
                "recorder = GoodputRecorder('j', 'l', True)\n"
                "for step in range(300): recorder.record_step_start_time(step)\n"
                "recorder.flush()\n"
                "os._exit(recorder.lost)\n")
        for words in ([], ["hangs"]):
            with self.subTest(words=words), tempfile.TemporaryDirectory() as folder:
                listener = Listener(folder)
                env = {k: v for k, v in os.environ.items() if not k.startswith("ELASTRUN_")}
                env |= {"PYTHONPATH": PACKAGE, "ELASTRUN_CHANNEL": listener.path,
                        "ELASTRUN_RUN_DIR": f"{folder}/run/attempt_0/0"}
                done = subprocess.run([sys.executable, "-Bc", code, *words], env=env, timeout=120,
                                      cwd=folder, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                told = [entry for connection in listener.packets() for one in connection
                        for entry in one.get("entries", [])]
                listener.socket.close()
                self.assertEqual([one["step_count"] for one in told], list(range(300)))
                if not words:
                    kept = Path(folder, "j.goodput.jsonl").read_text().splitlines()
                    self.assertEqual([json.loads(one)["step_count"] for one in kept],
                                     list(range(300)))

    def test_an_agent_that_has_gone_costs_the_entries_and_no_time(self) -> None:
        begin = time.monotonic()
        done = self.run_code(
            "from elastrun.goodput import GoodputRecorder\n"
            "recorder = GoodputRecorder('night', 'l', True)\n"
            "for step in range(10_500): recorder.record_step_start_time(step)\n"
            "print(400 <= recorder.lost <= 500)\n", ELASTRUN_CHANNEL=f"{self.folder}/channel")
        self.assertEqual((done.stdout, done.returncode), ("True\n", 0), done.stderr)
        self.assertLess(time.monotonic() - begin, 30)  # with a second for each packet it were 100

    def test_the_file_has_a_name_of_the_job_unless_one_is_given(self) -> None:
        code = ("from elastrun.goodput import GoodputRecorder\n"
                "GoodputRecorder('my/job', 'l', True).record_job_start_time()\n")
        self.assertEqual(self.run_code(code).stderr, "")
        self.assertEqual(self.run_code(code, ELASTRUN_GOODPUT_FILE="mine").stderr, "")
        self.assertEqual(sorted(one.name for one in self.folder.iterdir()),
                         ["mine", "my_job.goodput.jsonl"])
        self.assertEqual(len(self.lines(self.folder / "mine")), 1)

    def test_the_next_start_goes_on_after_a_torn_line(self) -> None:
        file = self.folder / "f"
        file.write_text('{"job_name":"j","job_sta')
        recorder = GoodputRecorder("j", "l", True, path=file)
        recorder.record_job_start_time(AT)
        recorder.flush()
        self.assertEqual(file.read_text().splitlines()[1:],
                         ['{"job_name":"j","job_start_time":1700000000.25}'])

    def test_one_process_at_a_time_writes_the_file(self) -> None:
        file = self.folder / "f"
        recorder = GoodputRecorder("j", "l", True, path=file)
        recorder.record_job_start_time()
        recorder.flush()
        done = self.run_code(
            "from elastrun.goodput import GoodputRecorder\n"
            f"GoodputRecorder('j', 'l', True, path='{file}',\n"
            "                background_grace_period_s=0.1).record_job_end_time()\n"
            "from elastrun import journal\njournal._GRACE = 0.1\n")
        self.assertIn("another process writes it", done.stderr)
        self.assertEqual(len(self.lines(file)), 1)

    def test_recorders_of_one_process_share_a_file(self) -> None:
        done = self.run_code(
            "import os\nfrom elastrun.goodput import GoodputRecorder\n"
            "one, two = (GoodputRecorder(job, 'l', True, path='f') for job in ('a', 'b'))\n"
            "for step in range(3000):\n"
            "    one.record_step_start_time(step), two.record_step_start_time(step)\n"
            "one.flush(), two.flush()\n"
            "if (child := os.fork()): os.waitpid(child, 0)\n"
            "else: two.record_job_end_time()\n"
            "one.record_job_end_time()\n")
        self.assertEqual((done.stdout, done.stderr.count("another process")), ("", 1))  # the child
        lines = self.lines(self.folder / "f")
        for job, more in (("a", [None]), ("b", [])):
            self.assertEqual([one.get("step_count") for one in lines if one["job_name"] == job],
                             [*range(3000), *more])

    def test_a_file_that_is_removed_or_renamed_is_made_again(self) -> None:
        file = self.folder / "f"
        recorder = GoodputRecorder("j", "l", True, path=file)
        recorder.record_step_start_time(0)
        recorder.flush()
        file.rename(self.folder / "moved")
        recorder.record_step_start_time(1)
        recorder.flush()
        file.unlink()
        recorder.record_step_start_time(2)
        recorder.flush()
        self.assertEqual([one["step_count"] for one in self.lines(self.folder / "moved")], [0])
        self.assertEqual([one["step_count"] for one in self.lines(file)], [2])

    def test_a_file_that_is_refused_holds_up_neither_flush_nor_the_end(self) -> None:
        done = self.run_code(
            "import time\nfrom elastrun.goodput import GoodputRecorder\n"
            "recorder = GoodputRecorder('j', 'l', True, path='no/such/folder/f',\n"
            "                           background_grace_period_s=100)\n"
            "from elastrun import journal\njournal._GRACE = 100\n"
            "recorder.record_job_end_time()\nrecorder.flush()\n")  # or run_code() ends it
        self.assertIn("No such file or directory", done.stderr)

    def test_a_forked_child_does_not_write_what_its_parent_has_recorded(self) -> None:
        done = self.run_code(
            "import os\nfrom elastrun.goodput import GoodputRecorder\n"
            "recorder = GoodputRecorder('j', 'l', True, path='f')\n"
            "recorder.record_step_start_time(1)\n"
            "child = os.fork()\n"
            "if child == 0: raise SystemExit(0)\n"
            "os.waitpid(child, 0)\n"
            "recorder.record_step_start_time(2)\n")
        self.assertEqual(done.stderr, "")
        self.assertEqual([one["step_count"] for one in self.lines(self.folder / "f")], [1, 2])

    def test_a_forked_child_waits_for_no_lock_of_its_parent(self) -> None:
        done = self.run_code(
            "import os, signal, sys, threading\n"
            "from elastrun import journal\nfrom elastrun.goodput import GoodputRecorder\n"
            "held, done = threading.Event(), threading.Event()\n"
            "def hold():\n"
            "    with journal._making:\n        held.set()\n        done.wait()\n"
            "threading.Thread(target=hold).start()\n"
            "held.wait()\n"
            "if os.fork() == 0:\n"
            "    signal.alarm(60)\n"
            "    GoodputRecorder('j', 'l', True, path='f').record_step_start_time(1)\n"
            "    sys.exit()\n"
            "print(os.wait()[1])\ndone.set()\n")
        self.assertEqual((done.stdout, done.stderr), ("0\n", ""))
        self.assertEqual(len(self.lines(self.folder / "f")), 1)

    def test_where_no_thread_can_start_a_later_entry_tries_again(self) -> None:
        done = self.run_code(
            "import threading\nfrom elastrun.goodput import GoodputRecorder\n"
            "recorder = GoodputRecorder('j', 'l', True, path='f')\n"
            "start = threading.Thread.start\n"
            "def refuse(thread): raise RuntimeError('no more threads')\n"
            "threading.Thread.start = refuse\n"
            "recorder.record_step_start_time(1)\n"
            "threading.Thread.start = start\n"
            "recorder.record_step_start_time(2)\n"
            "print(recorder._journal._outbox.is_alive())\n")
        self.assertEqual((done.stdout, done.stderr), ("True\n", ""))
        self.assertEqual([one["step_count"] for one in self.lines(self.folder / "f")], [1, 2])

    def test_a_queue_that_the_script_replaces_later_is_what_the_thread_waits_at(self) -> None:
        done = self.run_code(  # as gevent does; its greenlet would hold up all others at the first
            "import queue\nfrom elastrun.goodput import GoodputRecorder\n"
            "recorder = GoodputRecorder('j', 'l', True, path='f')\n"
            "class Green(queue.SimpleQueue): pass\n"
            "queue.SimpleQueue = Green\n"
            "recorder.record_step_start_time(1)\n"
            "print(type(recorder._journal._outbox._wakes).__name__)\n")
        self.assertEqual((done.stdout, done.stderr), ("Green\n", ""))
        self.assertEqual([one["step_count"] for one in self.lines(self.folder / "f")], [1])

    def test_what_a_child_of_multiprocessing_records_last_is_written(self) -> None:
        done = self.run_code(
            "import multiprocessing\nfrom elastrun.goodput import GoodputRecorder\n"
            "def train():\n"
            "    recorder = GoodputRecorder('j', 'l', True, path='f')\n"
            "    for step in range(5): recorder.record_step_start_time(step)\n"
            "    recorder.record_job_end_time()\n"
            "one = multiprocessing.get_context('fork').Process(target=train)\n"
            "one.start()\none.join()\n")
        self.assertEqual((done.stdout, done.stderr), ("", ""))
        self.assertEqual(len(self.lines(self.folder / "f")), 6)

    def test_a_process_that_connects_at_its_end_loses_nothing(self) -> None:
        done = self.run_code(
            "import os, sys\nfrom elastrun.goodput import GoodputRecorder\n"
            "recorder = GoodputRecorder('j', 'l', True)\n"
            "for step in range(15):\n"  # as many connections as the listener keeps
            "    if os.fork() == 0:\n"
            "        recorder.record_step_start_time(step)\n"
            "        sys.exit()\n"
            "    os.wait()\n", ELASTRUN_CHANNEL=self.listener.path)
        self.assertEqual((done.stdout, done.stderr), ("", ""))
        self.assertEqual([entry["step_count"] for packets in self.listener.packets()
                          for one in packets for entry in one["entries"]], list(range(15)))

    def test_what_is_lost_is_counted_and_written(self) -> None:
        file = self.folder / "f"
        held = journal.File(str(file))
        self.addCleanup(held.forget)
        held.write("j", ['{"job_start_time":1.5}'], 0)
        recorder = GoodputRecorder("j", "l", True, path=file)
        with self.assertLogs("elastrun.goodput", "WARNING") as said:
            for step in range(10_500):
                recorder.record_step_start_time(step)
            lost = recorder.lost
            self.assertTrue(400 <= lost <= 500, lost)
            held.forget()
            recorder.flush()
        lines = self.lines(file)
        told = [one["lost_entries"] for one in lines if "lost_entries" in one]
        self.assertRegex("\n".join(said.output), f":{told[0]} entries about goodput are lost: they "
                         "came faster than they could be written, or had no valid")
        self.assertEqual(sum(told), lost)  # in parts, where the thread looks while steps are put
        self.assertEqual(len(lines), 1 + len(told) + 10_500 - lost)

    def test_a_signal_handler_may_record_and_flush_at_any_point_of_both(self) -> None:
        done = self.run_code("""
import faulthandler, signal, time
from elastrun.goodput import GoodputRecorder
faulthandler.dump_traceback_later(40, exit=True)
recorder = GoodputRecorder("j", "l", True, path="f", background_grace_period_s=0.002)
inside, count = False, 0
def handler(*_):
    global inside, count
    if not inside:
        inside = True
        recorder.record_step_start_time(1)
        recorder.flush()
        inside, count = False, count + 1
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
end = time.monotonic() + 3
while time.monotonic() < end:
    recorder.record_step_start_time(2)
    recorder._journal.start()
    recorder.flush()
signal.setitimer(signal.ITIMER_REAL, 0)
print(count > 100)
""")
        self.assertEqual((done.stdout, done.stderr), ("True\n", ""))

    def test_the_training_loop_of_the_documentation_records_what_its_calls_would(self) -> None:
        kept = Kept()
        recorder = GoodputRecorder("j", "l", True, kept)
        with self.assertRaisesRegex(ValueError, "mine"), recorder.record_event(Event.JOB):
            with recorder.record_event(Event.ACCELERATOR_INIT):
                pass
            with recorder.record_event(Event.TRAINING_PREP):
                pass
            for step in range(2):
                with recorder.record_event(Event.DATA_LOADING):
                    pass
                with recorder.record_event(Event.STEP, step):
                    pass
            with recorder.record_event(Event.CUSTOM, "eval_step"):
                raise ValueError("mine")
        loading = ["data_loading_start_time", "data_loading_end_time"]
        self.assertEqual([list(one)[-1] for one in kept.entries], [
            "job_start_time", "tpu_init_start_time", "tpu_init_end_time",
            "training_prep_start_time", "training_prep_end_time", *loading, "step_start_time",
            *loading, "step_start_time", "custom_badput_event_start_time",
            "custom_badput_event_end_time", "job_end_time"])
        self.assertEqual([one["step_count"] for one in kept.entries if "step_count" in one], [0, 1])
        self.assertEqual([one["custom_badput_event_type"] for one in kept.entries
                          if "custom_badput_event_type" in one], ["eval_step"] * 2)

    def test_an_event_that_cannot_be_recorded_is_counted_and_its_block_runs(self) -> None:
        kept, ran = Kept(), []
        recorder = GoodputRecorder("j", "l", True, kept)
        for event, detail in ((Event.STEP, None), ("lunch", None), (None, 1)):
            with recorder.record_event(event, detail):  # type: ignore[arg-type]
                ran.append(event)
        with GoodputRecorder("j", "l").record_event(Event.JOB):
            ran.append(None)
        self.assertEqual((len(ran), kept.entries, recorder.lost), (4, [], 3))

    def test_what_has_begun_is_withdrawn_or_told(self) -> None:
        told: list[str] = []
        target = mock.Mock(refused=False)
        target.write = lambda _job, entries, _lost: told.extend(entries) or len(entries)
        kept = journal.Journal("j", target)
        kept.begun.append(("withdrawn", ()))
        kept.begun.pop()
        kept.drain()
        self.assertEqual(told, [])
        kept.begun.append(("begun", ()))
        self.assertFalse(kept.flush(0) and not told)
        kept.drain()
        self.assertEqual((told, kept.begun), (["begun"], []))


if __name__ == "__main__":
    unittest.main()
