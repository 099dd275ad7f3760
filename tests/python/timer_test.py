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
import time
import unittest
from collections.abc import Callable

from agent_end import PACKAGE, AgentEnd, InFolder, worker

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
    def test_v1_outside_elastrun_a_block_without_a_client_raises_as_with_torch(self) -> None:
        done = worker("try:\n"
                      "    with elastrun.timer.expires(after=0.01): print('in')\n"
                      "except RuntimeError as error: print(error)\n"
                      "elastrun.timer.configure(timer_client=None)\n"
                      "block = elastrun.timer.expires(after=0.01)\n"
                      "try: block.__enter__()\n"
                      "except RuntimeError: print('again')", None)
        said = ("no timer client: call elastrun.timer.configure(client) before the first "
                "expires(), or run under elastrun\nagain\n")
        self.assertEqual((done.stdout, done.stderr), (said, ""))

    def test_a_time_that_is_no_number_raises_as_torch_does(self) -> None:
        client = Recorder()
        for after in (None, "soon", [1], "nan", float("nan")):
            with self.assertRaises((TypeError, ValueError)):
                timer.expires(after, client=client)
            with self.assertRaises((TypeError, ValueError)):
                timer.expires(after)
        self.assertEqual(client.calls, [])

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


class Channel(AgentEnd):
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

    def test_timers_that_no_agent_hears_of_are_not_kept(self) -> None:
        # 20,000 ends of timers that the agent does not know would be 20,000 packets in memory.
        done = worker("from elastrun.channel import _channel\n"
                      "for i in range(20000):\n"
                      "    with elastrun.timer.expires(after=60): pass\n"
                      "print(len(_channel._owed) < 10)", self.listener.path)
        self.assertEqual((done.stdout, done.stderr), ("True\n", ""))


class FileTimer(InFolder):
    def setUp(self) -> None:
        super().setUp()
        self.path = f"{self.folder}/timers"
        self.told: list[tuple[str, str | None]] = []
        self.server = timer.FileTimerServer(
            self.path, "run", log_event=lambda name, request: self.told.append(
                (name, request and request.scope_id)))
        self.addCleanup(self.server.stop)

    def request(self, pid: int, scope: str, after: float, number: int = 9
                ) -> timer.FileTimerRequest:
        return timer.FileTimerRequest(pid, scope, time.time() + after, number)

    def test_a_block_that_does_not_end_is_ended_when_its_time_is_up(self) -> None:
        self.server.start()  # with passes 10 s apart

        def hang() -> None:
            timer.configure(timer_client=timer.FileTimerClient(self.path, signal.SIGTERM))
            with timer.expires(after=600, scope="other"):
                pass
            with timer.expires(after=0.1, scope="load"):
                time.sleep(600)

        process = multiprocessing.get_context("fork").Process(target=hang)
        process.start()
        process.join()
        self.assertEqual(process.exitcode, -signal.SIGTERM)
        self.server.run_once()
        self.assertEqual(self.told, [("watchdog started", None), ("timer expired", "load"),
                                     ("kill worker process", "load")])
        self.assertFalse(os.path.exists(self.path))

    def test_a_line_is_the_one_of_torch_and_others_are_ignored(self) -> None:
        request = timer.FileTimerRequest(7, "a\u00e9\n", 5.5)
        self.assertEqual(request.to_json(), '{"version": 1, "pid": 7, "scope_id": "a\\u00e9\\n", '
                                            '"expiration_time": 5.5, "signal": 0}')
        self.server.start()
        client = timer.FileTimerClient(self.path)
        with self.assertLogs("elastrun.timer", "WARNING") as logged:
            with open(self.path, "wb") as fifo:
                fifo.write(b'nothing\n[]\n{"pid": 1}\n\xff\n')
            client._send_request(self.request(os.getpid(), "kept", 600))
            self.server.run_once()
        self.assertEqual(len(logged.records), 4)
        self.assertEqual(list(self.server._timers), [(os.getpid(), "kept")])

    def test_a_request_that_kill_would_take_for_others_ends_and_delays_nothing(self) -> None:
        ended: list[int] = []
        self.server._reap_worker = lambda pid, number: ended.append(pid) or True
        self.server.start()
        odd = [(-1, 0, 9), (0, 0, 9), (10**20, 0, 9), (os.getpid(), 0, 10**20),
               (os.getpid(), "NaN", 9)]
        with self.assertLogs("elastrun.timer", "WARNING") as logged:
            with open(self.path, "w") as fifo:
                for pid, time_, number in odd:
                    fifo.write('{"version": 1, "pid": %d, "scope_id": "odd", "expiration_time": %s,'
                               ' "signal": %d}\n' % (pid, time_, number))
            timer.FileTimerClient(self.path)._send_request(self.request(os.getpid(), "due", -1))
            self.server.run_once()
        self.assertEqual(len(logged.records), len(odd))
        self.assertEqual((ended, self.server._timers), ([os.getpid()], {}))

    def test_without_a_signal_it_is_only_told_and_the_first_with_one_counts(self) -> None:
        ended: list[tuple[int, int]] = []
        self.server._reap_worker = lambda pid, number: ended.append((pid, number)) or True
        me = os.getpid()
        self.server.register_timers([self.request(me, "told", -3, 0)])
        self.server.start()
        self.server.run_once()
        self.assertEqual((ended, self.server._timers), ([], {}))
        self.server.register_timers([self.request(me, "late", -1, 9), self.request(me, "b", -2, 15),
                                     self.request(me, "told", -3, 0)])
        os.mkfifo(self.path)
        self.server.start()
        self.server.run_once()
        self.assertEqual((ended, self.server._timers), ([(me, 15)], {}))

    def test_one_without_a_signal_that_expires_leaves_the_others_of_its_process(self) -> None:
        me = os.getpid()
        self.server.register_timers([self.request(me, "told", -3, 0),
                                     self.request(me, "hang", 600, 9)])
        self.server.start()
        self.server.run_once()
        self.assertEqual(list(self.server._timers), [(me, "hang")])
        self.assertEqual([scope for _, scope in self.told if scope], ["told"])

    def test_a_listener_that_raises_keeps_no_process_alive(self) -> None:
        ended: list[int] = []
        self.server._log_event_to = lambda name, request: 1 / 0
        self.server._reap_worker = lambda pid, number: ended.append(pid) or True
        self.server.register_timers([self.request(os.getpid(), "a", -1)])
        with self.assertLogs("elastrun.timer", "ERROR"):
            self.server.start()
            self.server.run_once()
        self.server._log_event_to = None
        self.assertEqual(ended, [os.getpid()])

    def test_timers_of_a_process_that_has_ended_and_released_ones_are_forgotten(self) -> None:
        gone = subprocess.Popen(["true"])
        gone.wait()
        self.server.start()
        client = timer.FileTimerClient(self.path)
        for scope in ("a", "b"):
            client.acquire(scope, time.time() + 600)
        client.release("a")
        client.release("never there")
        client._send_request(self.request(gone.pid, "gone", 600))
        self.server.run_once()
        self.assertEqual(list(self.server._timers), [(os.getpid(), "b")])

    def test_who_cannot_be_ended_is_tried_again_without_spinning(self) -> None:
        tried: list[int] = []
        self.server._reap_worker = lambda pid, number: bool(tried.append(pid))
        self.server._max_interval = 0.05
        self.server.register_timers([self.request(os.getpid(), "a", -1)])
        begin = time.monotonic()
        self.server.start()
        while len(tried) < 3:
            time.sleep(0.01)
        self.assertGreaterEqual(time.monotonic() - begin, 0.05)
        self.assertEqual(len(self.server._timers), 1)

    def test_a_client_without_a_server_and_a_scope_that_is_too_long_fail(self) -> None:
        client = timer.FileTimerClient(f"{self.path}.not")
        with self.assertRaisesRegex(BrokenPipeError, "no timer server takes requests at .*No such"):
            client.acquire("a", 0)
        with self.assertRaisesRegex(RuntimeError, "at most 4096 are possible"):
            client.acquire("a" * 5000, 0)


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

    def test_timers_of_a_worker_that_has_ended_are_forgotten(self) -> None:
        """The next process of that pid has set none."""
        gone = subprocess.Popen(["true"])
        gone.wait()
        server = timer.LocalTimerServer(self.queue, max_interval=0.01)
        server.register_timers([timer.TimerRequest(worker, "a", time.time() + 600)
                                for worker in (gone.pid, os.getpid())])
        server._run_watchdog()
        self.assertEqual([worker for worker, _ in server._timers], [os.getpid()])

    def test_v14_who_cannot_be_reaped_is_tried_again(self) -> None:
        tried: list[int] = []
        one, two, three = (subprocess.Popen(["sleep", "600"]) for _ in range(3))
        for process in (one, two, three):
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)

        class Server(timer.LocalTimerServer):
            def _reap_worker(self, worker_id: int) -> bool:
                tried.append(worker_id)
                if worker_id == one.pid:
                    raise RuntimeError("on purpose")
                return worker_id == two.pid

        server = Server(self.queue, max_interval=0.01)
        server.register_timers([timer.TimerRequest(worker.pid, "a", 1)
                                for worker in (one, two, three)])
        with self.assertLogs("elastrun.timer", "ERROR"):
            server._run_watchdog()
            server._run_watchdog()
        self.assertEqual(tried, [one.pid, two.pid, three.pid, three.pid])

    def test_a_pass_that_fails_at_once_does_not_spin(self) -> None:
        waited: list[float] = []
        server = timer.LocalTimerServer(self.queue)
        passes: list[int] = []

        class Stopping:
            def is_set(self) -> bool:
                return len(waited) == 2 or len(passes) == 9

            wait = waited.append

        server._stopping = Stopping()
        server._run_watchdog = lambda: passes.append(1) or 1 / 0
        with self.assertLogs("elastrun.timer", "ERROR"):
            server._watch()
        self.assertEqual((waited, len(passes)), ([1, 1], 2))

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
