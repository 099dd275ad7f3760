# SPDX-License-Identifier: Apache-2.0
"""Timers of the Python worker package: what goes to the agent, and the LocalTimer pair."""
from __future__ import annotations

import asyncio
import ctypes
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable

from channel_test import PACKAGE, Listener, worker

sys.path.insert(0, PACKAGE)
sys.dont_write_bytecode = True
from elastrun import timer  # noqa: E402


class Recorder(timer.TimerClient):
    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self.calls.append(("acquire", scope_id))

    def release(self, scope_id: str) -> None:
        self.calls.append(("release", scope_id))


class Armed(timer.ChannelTimerClient):
    """What would be armed in the agent."""

    def __init__(self) -> None:
        super().__init__()
        self.armed: dict[int, tuple[str, float]] = {}
        self.most = 0

    def arm(self, number: int, scope: str, after: float) -> None:
        self.armed[number] = (scope, after)
        self.most = max(self.most, len(self.armed))

    def disarm(self, number: int, scope: str) -> None:
        self.armed.pop(number, None)


class Expires(unittest.TestCase):
    def test_v1_without_a_client_nothing_happens_where_torch_raises(self) -> None:
        done = worker("with elastrun.timer.expires(after=0.01): print('in')\n"
                      "print(elastrun.dropped())", None)
        self.assertEqual((done.stdout, done.stderr), ("in\n0\n", ""))

    def test_v2_an_explicit_client_is_asked_once_and_told_once(self) -> None:
        client = Recorder()
        with timer.expires(after=1, scope="test", client=client):
            self.assertEqual(client.calls, [("acquire", "test")])
        self.assertEqual(client.calls, [("acquire", "test"), ("release", "test")])

    def test_v3_an_exception_passes_and_the_timer_is_released(self) -> None:
        client = Recorder()
        with self.assertRaisesRegex(ValueError, "boom"):
            with timer.expires(after=1, scope="test", client=client):
                raise ValueError("boom")
        self.assertEqual(client.calls[-1], ("release", "test"))

    def test_a_configured_client_is_used(self) -> None:
        client = Recorder()
        timer.configure(client)
        self.addCleanup(timer.configure)
        with timer.expires(after=1):
            pass
        line = sys._getframe().f_lineno - 2
        self.assertEqual(client.calls[0], ("acquire", f"{__file__}#{line}"))

    def test_nested_blocks_without_a_scope_are_separate_timers(self) -> None:
        client = Armed()
        with timer.expires(after=60, client=client):
            with timer.expires(after=2, client=client):
                self.assertEqual(sorted(after for _, after in client.armed.values()), [2, 60])
            self.assertEqual([after for _, after in client.armed.values()], [60])
        self.assertEqual(client.armed, {})

    def test_v4_a_function_that_calls_itself_arms_its_timer_again(self) -> None:
        client = Armed()

        def recurse(depth: int) -> None:
            with timer.expires(after=depth, client=client):
                self.assertEqual([after for _, after in client.armed.values()], [depth])
                if depth < 4:
                    recurse(depth + 1)
                self.assertEqual([after for _, after in client.armed.values()], [depth])

        recurse(1)
        self.assertEqual(client.armed, {})

    def test_tasks_that_outlive_their_block_arm_nothing_of_it(self) -> None:
        client = Armed()

        async def block(depth: int, tasks: list[asyncio.Task[None]]) -> None:
            with timer.expires(after=9, scope="s", client=client):
                if depth < 3:
                    for _ in range(2):
                        tasks.append(asyncio.create_task(block(depth + 1, tasks)))
                await asyncio.sleep(0.001 * depth)

        async def main() -> None:
            tasks: list[asyncio.Task[None]] = []
            await block(0, tasks)
            while tasks:
                await tasks.pop()

        asyncio.run(main())
        self.assertGreater(client.most, 1)
        self.assertEqual(client.armed, {})

    def test_a_function_can_be_decorated(self) -> None:
        client = Recorder()

        @timer.expires(after=1, scope="f", client=client)
        def function() -> int:
            return 7

        self.assertEqual((function(), function()), (7, 7))
        self.assertEqual(len(client.calls), 4)


class Channel(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.listener = Listener(folder.name)
        self.addCleanup(self.listener.socket.close)

    def test_a_block_is_two_packets_and_stacks_are_offered_once(self) -> None:
        done = worker("import time\nt = time.monotonic()\n"
                      "with elastrun.timer.expires(after=60, scope='a' * 300 + '\\u00e9'):\n"
                      "    pass\n"
                      "with elastrun.timer.expires(after=5): pass\n"
                      "print(t, time.monotonic())", self.listener.path)
        self.assertEqual(done.stderr, "")
        begin, end = map(float, done.stdout.split())
        (offer, *packets), = self.listener.packets(with_offers=True)
        self.assertEqual(offer["kind"], "stacks")
        self.assertIn(offer["signal"], range(signal.SIGRTMIN + 1, signal.SIGRTMAX))
        self.assertEqual([packet["id"] for packet in packets], [1, 1, 2, 2])
        self.assertEqual(packets[0]["scope"], "a" * 254 + "\u00e9")
        self.assertEqual((packets[0]["after"], packets[0]["signal"]), (60, 9))
        self.assertTrue(begin + 60 <= packets[0]["deadline"] <= end + 60)
        self.assertNotIn("deadline", packets[1])
        self.assertEqual(packets[2]["scope"], "<string>#6")

    def start(self, code: str) -> subprocess.Popen[str]:
        env = dict(os.environ, ELASTRUN_CHANNEL=self.listener.path, PYTHONPATH=PACKAGE)
        process = self.enterContext(subprocess.Popen(
            [sys.executable, "-B", "-c", "import elastrun\n" + code], env=env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def accept(self) -> socket.socket:
        self.listener.socket.setblocking(True)
        connection, _ = self.listener.socket.accept()
        self.addCleanup(connection.close)
        return connection

    def ask(self, process: subprocess.Popen[str]) -> Callable[[bool], str]:
        """Asks its main thread alone, or the thread for all; what it writes ends with a newline
        after the frame of the script."""
        offer = json.loads(self.accept().recv(65536))
        file = self.enterContext(open(f"/proc/{process.pid}/fd/{offer['descriptor']}", "rb"))
        tgkill = ctypes.CDLL(None).tgkill

        def look(main: bool) -> str:
            tgkill(process.pid, process.pid if main else offer["thread"], offer["signal"])
            text = b""
            while not text.endswith(b" in <module>\n"):
                self.assertIsNone(process.poll())
                text += file.read()
            return text.decode()

        return look

    def test_the_stacks_come_also_while_the_process_hangs(self) -> None:
        process = self.start("import threading, time\n"
                             "def load(): time.sleep(600)\n"
                             "threading.Thread(target=load, daemon=True).start()\n"
                             "def hang():\n"
                             "    with elastrun.timer.expires(after=60):\n"
                             "        print('ready', flush=True); time.sleep(600)\n"
                             "hang()")
        look = self.ask(process)
        main = 'line 7 in hang\n  File "<string>", line 8 in <module>\n'
        text = look(False)
        self.assertRegex(text, r"(?s)^Thread 0x\w+.* in load\n.*\n\nThread 0x\w+ \(most ")
        self.assertTrue(text.endswith(main), text)
        self.assertNotIn("stacks.py", text)
        self.assertEqual(look(True),
                         'Stack (most recent call first):\n  File "<string>", ' + main)

    def test_1000_looks_at_threads_that_run_cost_none_its_life(self) -> None:
        process = self.start("import sys, threading\n"
                             "sys.setswitchinterval(0.0001)\n"
                             "def deep(n): return n and deep(n - 1)\n"
                             "def work():\n"
                             "    while True:\n"
                             "        deep(9); [one for one in range(9)]\n"
                             "threading.Thread(target=work, daemon=True).start()\n"
                             "print('ready', flush=True); work()")
        look = self.ask(process)
        for _ in range(1000):
            self.assertIn(" in work\n", look(False))

    def test_the_thread_that_answers_is_in_nobodys_way(self) -> None:
        done = worker("import os, signal, threading\n"
                      "print(threading.enumerate() == [threading.main_thread()])\n"
                      "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n"
                      "os.kill(os.getpid(), signal.SIGUSR1)\n"
                      "print(signal.sigwait({signal.SIGUSR1}).name)\n"
                      "if os.fork() == 0: os._exit(0 if elastrun.offer_stacks() else 1)\n"
                      "print(os.wait()[1])", self.listener.path)
        self.assertEqual(done.stdout, "True\nSIGUSR1\n0\n")
        offers = [packet for packets in self.listener.packets(with_offers=True)
                  for packet in packets]
        self.assertEqual(len({one["thread"] for one in offers}), 2)

    def test_greenlets_in_place_of_threads_do_not_hang_the_import(self) -> None:
        done = worker("import _thread, threading\n"
                      "calls = []\n"
                      "class Event:\n"
                      "    def set(self): pass\n"
                      "    def wait(self): calls.pop()()\n"
                      "threading.Event = Event\n"
                      "_thread.start_new_thread = lambda call, args: calls.append(call)\n"
                      "elastrun.stacks._made_by = 0\n"
                      "print(elastrun.offer_stacks())", self.listener.path)
        self.assertEqual(done.stdout, "True\n")
        offers = [packet for packets in self.listener.packets(with_offers=True)
                  for packet in packets]
        self.assertEqual(offers[-1]["thread"], 0)

    def test_a_release_is_not_lost_when_the_agent_is_behind(self) -> None:
        self.start("import sys\n"
                   "with elastrun.timer.expires(after=60):\n"
                   "    while elastrun.dropped() == 0: elastrun.step(1)\n"
                   "print('ready', flush=True)\n"
                   "sys.stdin.read()")
        connection = self.accept()
        timers: list[dict[str, object]] = []
        while len(timers) < 2:
            packet = json.loads(connection.recv(65536))
            timers += [packet] if packet["kind"] == "timer" else []
        self.assertEqual(["deadline" in packet for packet in timers], [True, False])


class LocalTimer(unittest.TestCase):
    def setUp(self) -> None:
        self.context = multiprocessing.get_context("fork")
        self.queue = self.context.Queue()

    def test_v5_a_block_that_does_not_end_is_ended(self) -> None:
        server = timer.LocalTimerServer(self.queue, max_interval=0.01)
        server.start()
        self.addCleanup(server.stop)

        def hang() -> None:
            with timer.expires(after=0.1, client=timer.LocalTimerClient(self.queue)):
                time.sleep(600)

        process = self.context.Process(target=hang)
        process.start()
        process.join()
        self.assertEqual(process.exitcode, -signal.SIGKILL)

    def test_v12_released_timers_and_vacuous_releases_end_nobody(self) -> None:
        server = timer.LocalTimerServer(self.queue, max_interval=0.01)
        client = timer.LocalTimerClient(self.queue)
        with timer.expires(after=0, client=client):
            pass
        client.release("never there")
        for _ in range(3):
            server._run_watchdog()
        self.assertEqual(server.get_expired_timers(time.time()), {})

    def test_v14_who_cannot_be_reaped_is_tried_again(self) -> None:
        tried: list[int] = []

        class Server(timer.LocalTimerServer):
            def _reap_worker(self, worker_id: int) -> bool:
                tried.append(worker_id)
                if worker_id == 1:
                    raise RuntimeError("on purpose")
                return worker_id == 2

        server = Server(self.queue, max_interval=0.01)
        server.register_timers([timer.TimerRequest(worker, "a", 1) for worker in (1, 2, 3)])
        with self.assertLogs("elastrun.timer", "ERROR"):
            server._run_watchdog()
            server._run_watchdog()
        self.assertEqual(tried, [1, 2, 3, 3])

    def test_v15_a_queue_gives_no_more_than_asked_and_ends_by_its_timeout(self) -> None:
        queue = timer.MultiprocessingRequestQueue(self.queue)
        self.assertEqual(queue.get(3, 0), [])
        requests = [timer.TimerRequest(worker, "a", 1.5) for worker in range(3)]
        for request in requests:
            self.queue.put(request)
        self.assertEqual(queue.get(2, 60), requests[:2])
        self.assertEqual(queue.get(2, 0.2), requests[2:])


if __name__ == "__main__":
    unittest.main()
