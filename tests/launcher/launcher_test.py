# SPDX-License-Identifier: Apache-2.0
"""Launchers in Python, as their users write them: launcher_test.py ELASTRUN STUB_WORKER [TEST ...].

Each test is a program in a folder of its own. A test waits for a line or an end, never for time.
"""
from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

from harness import PACKAGE, wait_until
from launched import ELASTRUN, LIMIT, Case
from ports import free_port

# What most of the programs below begin with.
HEAD = """
import os, signal, sys, time
from elastrun.agent.server import LocalElasticAgent, WorkerSpec
from elastrun.launcher import LaunchConfig, elastic_launch, launch_agent
from elastrun.multiprocessing import DefaultLogsSpecs, SignalException
from elastrun.multiprocessing.errors import ChildFailedError
from elastrun.rendezvous import (RendezvousHandler, RendezvousInfo, RendezvousParameters,
                                 get_rendezvous_handler)

class Mine(RendezvousHandler):
    def get_backend(self): return "mine"
    def get_run_id(self): return "run-8"
    def next_rendezvous(self): return RendezvousInfo(None, 0, 1, None)
    def is_closed(self): return False
    def set_closed(self): pass
    def num_nodes_waiting(self): return 0
    def shutdown(self): return True

def alone(workers=2, **more):
    more.setdefault("max_restarts", 0)
    more.setdefault("start_method", os.environ.get("TEST_START_METHOD", "spawn"))
    return LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=workers, run_id="t",
                        rdzv_backend="c10d", rdzv_endpoint="localhost:0", **more)

def tell(call, *args):
    try:
        print(call(*args), flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)

def handler():
    return get_rendezvous_handler(RendezvousParameters("c10d", "localhost:0", "t", 1, 1))
"""
# Workers that say so and wait until they are ended.
WAITING = """
def wait_for_end(*_):
    # One write: with PYTHONUNBUFFERED print() makes several, among which others' may come.
    os.write(1, f"up {os.environ['RANK']} {os.getpid()}\\n".encode())
    time.sleep(1000)
"""


def children_of(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Launcher(Case):
    def setUp(self) -> None:
        super().setUp()
        self.environment |= {"PYTHONPATH": PACKAGE, "ELASTRUN_BINARY": ELASTRUN,
                             "PYTHONDONTWRITEBYTECODE": "1"}

    def nothing_left(self) -> None:
        wait_until(lambda: not self.alive(), "nothing of the job is alive")

    def program(self, text: str, name: str = "launch.py") -> str:
        self.write(name, HEAD + WAITING + text)
        return name

    def start(self, text: str, *words: str, name: str = "launch.py", text_errors: str = "strict",
              **more) -> subprocess.Popen:
        return self.start_words(sys.executable, self.program(text, name), *words,
                                errors=text_errors, start_new_session=True, **more)

    def run_program(self, text: str, *words: str, code: int = 0, **more) -> str:
        child = self.start(text, *words, **more)
        out, err = child.communicate(timeout=LIMIT)
        self.assertEqual(child.returncode, code, out + err)
        self.err = err
        self.nothing_left()
        return out

    def prints(self, expected: str, text: str) -> None:
        self.assertEqual(self.run_program(text), expected)

    def agent_of(self, launcher: int) -> int:
        [guardian] = children_of(launcher)
        [agent] = children_of(guardian)
        self.assertEqual(os.path.realpath(f"/proc/{agent}/exe"), os.path.realpath(ELASTRUN))
        return agent

    def wait_for(self, child: subprocess.Popen, beginning: "str | tuple[str, ...]",
                 count: int = 1) -> list[str]:
        found = []
        late = threading.Timer(LIMIT, child.kill)  # which ends its output
        late.start()
        self.addCleanup(late.cancel)
        for line in child.stdout:
            if line.startswith(beginning):
                found.append(line.strip())
                if len(found) == count:
                    late.cancel()
                    return found
        self.fail(f"no {count} lines {beginning!r}: {found}\n{child.stderr.read()}")

    def end_of(self, child: subprocess.Popen) -> tuple[int, str]:
        out, err = child.communicate(timeout=LIMIT)
        self.nothing_left()
        return child.returncode, out + err


class Runs(Launcher):
    def test_functions_return_by_rank(self) -> None:
        out = self.run_program("""
def train(first, second):
    return {"rank": int(os.environ["RANK"]), "sum": first + second,
            "world": os.environ["WORLD_SIZE"]}

if __name__ == "__main__":
    print(elastic_launch(alone(), train)(2, 3))
""")
        self.assertEqual(out.strip(), "{0: {'rank': 0, 'sum': 5, 'world': '2'}, "
                                      "1: {'rank': 1, 'sum': 5, 'world': '2'}}")

    def test_a_program_with_words(self) -> None:
        out = self.run_program("""
if __name__ == "__main__":
    print(elastic_launch(alone(), "sh")("-c", "echo $RANK of $WORLD_SIZE: $0", 7))
""")
        self.assertEqual(sorted(out.split("\n")), sorted(["", "0 of 2: 7", "1 of 2: 7",
                                                          "{0: None, 1: None}"]))

    def test_a_caller_without_its_standard_streams(self) -> None:
        """As a daemon, whose next files get their numbers."""
        self.run_program("""
import multiprocessing

def rank(queue):
    queue.put("heard")
    return int(os.environ["RANK"])

if __name__ == "__main__":
    os.close(0)
    queue = multiprocessing.get_context("spawn").SimpleQueue()  # which itself needs the others
    os.close(1)
    os.close(2)
    returned = elastic_launch(alone(), rank)(queue), queue.get(), queue.get()
    with open("returned", "w") as file:
        file.write(str(returned))
    os._exit(0)
""")
        self.assertEqual((self.folder / "returned").read_text(),
                         "({0: 0, 1: 1}, 'heard', 'heard')")

    def test_the_customization_document(self) -> None:
        """Its agent, metrics handler and event handler, with torch's prefix replaced."""
        out = self.run_program("""
import elastrun.events as events
import elastrun.metrics as metrics

class MyMetricHandler(metrics.MetricHandler):
    def emit(self, metric_data):
        print("metric", metric_data.group_name, metric_data.name, metric_data.value)

class MyEventHandler(events.EventHandler):
    def record(self, event):
        print("event", event.name, event.source.value, event.metadata.get("state"))

def trainer_entrypoint_fn(scale):
    return scale * int(os.environ["RANK"])

if __name__ == "__main__":
    metrics.configure(MyMetricHandler())
    events.configure(MyEventHandler())
    spec = WorkerSpec(role="trainer", local_world_size=2, fn=trainer_entrypoint_fn, args=(10,),
                      rdzv_handler=handler(), max_restarts=1, monitor_interval=0.1)
    agent = LocalElasticAgent(spec, start_method="spawn", logs_specs=DefaultLogsSpecs())
    run_result = agent.run()
    if run_result.is_failed():
        print(f"worker 0 failed with: {run_result.failures[0]}")
    else:
        print(f"worker 1 return value is: {run_result.return_values[1]}")
    print(run_result.state, agent.get_worker_group().state, agent.get_worker_group().workers)
""")
        self.assertIn("worker 1 return value is: 10\n", out)
        self.assertIn("WorkerState.SUCCEEDED WorkerState.SUCCEEDED", out)
        self.assertIn("metric torchelastic workers.trainer.run_total 1\n", out)
        self.assertIn("metric torchelastic workers.trainer.run_success_no_retries 1\n", out)
        self.assertRegex(out, "event torchelastic.worker.status.SUCCEEDED WORKER SUCCEEDED")
        self.assertRegex(out, "event torchelastic.worker.status.SUCCEEDED AGENT SUCCEEDED")

    def test_what_a_failed_worker_left(self) -> None:
        self.prints("1 1 1 ValueError: no such data\n1\ntrain True True\n", """
def train():
    if os.environ["RANK"] == "1":
        raise ValueError("no such data")
    time.sleep(1000)

if __name__ == "__main__":
    try:
        elastic_launch(alone(), train)()
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        print(rank, failure.local_rank, failure.exitcode, failure.message["message"])
        print(failure.message["extraInfo"]["py_callstack"].count("in train"))
        print(error.name, "train FAILED" in str(error), failure.timestamp > 1e9)
""")

    def test_record_hands_the_first_failure_on(self) -> None:
        own = self.folder / "own.json"
        self.run_program("""
from elastrun.multiprocessing.errors import record

def train():
    raise ValueError("no such data")

@record
def main():
    elastic_launch(alone(), train)()

if __name__ == "__main__":
    main()
""", code=1, env=self.environment | {"TORCHELASTIC_ERROR_FILE": str(own)})
        message = json.loads(own.read_text())["message"]
        self.assertEqual(message["message"], "ValueError: no such data")
        self.assertEqual(message["errorCode"], 1)

    def test_a_worker_that_dies_by_a_signal(self) -> None:
        out = self.run_program("""
def train():
    if os.environ["RANK"] == "0":
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(1000)

if __name__ == "__main__":
    try:
        elastic_launch(alone(), train)()
    except ChildFailedError as error:
        failure = error.failures[0]
        print(failure.exitcode, failure.signal_name(), failure.message)
""")
        self.assertRegex(out, r"^-11 SIGSEGV Signal 11 \(SIGSEGV\) received by PID \d+\n$")

    def test_error_handlers_have_torch_s_modules_and_hooks(self) -> None:
        out = self.run_program("""
from elastrun.multiprocessing import errors
from elastrun.multiprocessing.errors import error_handler, handlers
assert handlers.get_error_handler is errors.get_error_handler
assert isinstance(handlers.get_error_handler(), error_handler.ErrorHandler)

class Knowing(error_handler.ErrorHandler):
    def maybe_enrich_signal_failure_message(self, message, error_file):
        if error_file != "<N/A>":
            raise ValueError("which is only logged")
        return message + ", and the device has seen a fault"

errors.get_error_handler = Knowing
died = errors.ProcessFailure(0, 1, -11, "none.json")
print("Signal 11 (SIGSEGV) received by PID 1, and the device" in str(
    ChildFailedError("train", {0: died})))
died.error_file = "left.json"
print(", and" in str(ChildFailedError("train", {0: died})))
print(", and" in str(ChildFailedError("train", {0: errors.ProcessFailure(0, 1, 3, "none")})))

with open("left.json", "w") as file:
    file.write('{"message": {"message": "boom", "extraInfo": {}}}')
os.environ["TORCHELASTIC_ERROR_FILE"] = "own.json"
handlers.get_error_handler().dump_error_file("left.json", 7)
print(open("own.json").read())
""")
        self.assertEqual(out, 'True\nFalse\nFalse\n{"message": {"message": "boom", '
                              '"extraInfo": {}, "errorCode": 7}}\n')

    def test_an_error_file_with_the_time_of_no_clock(self) -> None:
        """In ms, in ns, without end, in words: the message counts, and the time of the report."""
        out = self.run_program("""
from elastrun.multiprocessing.errors import ProcessFailure
def train(said):
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        file.write('{"message": {"message": "boom", "extraInfo": {"timestamp": %s}}}' % said)
    os._exit(3)

if __name__ == "__main__":
    now = int(time.time())
    try:
        elastic_launch(alone(1), train)(now * 1000)
    except ChildFailedError as error:
        failure = error.failures[0]
        print(failure.message["message"], now <= failure.timestamp <= time.time(),
              "traceback : boom" in str(error))
    os.environ["TORCHELASTIC_ERROR_FILE"] = path = "error.json"
    for said in (f"{now}.5", now * 10**9, -now * 10**9, "Infinity", "NaN", '"noon"', "[" * 10**5):
        if os.fork() == 0:
            train(said)
        os.wait()
        failure = ProcessFailure(0, 1, 3, path)
        print(failure.timestamp_isoformat() > "2020", failure.timestamp - now < 60, failure.message)
""").splitlines()
        self.assertEqual(out[0], "boom True True")
        for line in out[1:7]:
            self.assertTrue(line.startswith("True True {'message': 'boom', 'extraInfo'"), line)
        self.assertTrue(out[7].startswith("True True To enable traceback see"), out)

    def test_restarts_give_the_values_of_the_last_start(self) -> None:
        self.prints("{0: [7, 2], 1: [7, 2]}\n", """
def train(values):
    start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if start < 2 and os.environ["RANK"] == "1":
        sys.exit(3)
    values.append(start)         # a list that each start gets as it was
    return values

if __name__ == "__main__":
    print(elastic_launch(alone(max_restarts=2), train)([7]))
""")

    def test_a_start_that_ends_without_a_value_has_none(self) -> None:
        self.prints("{0: None, 1: 'of the second'}\n" * 2, """
def train():
    if os.environ["RANK"] == "0":
        return "of the first" if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else os._exit(0)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(1)                # until rank 0 has returned
        sys.exit(3)
    return "of the second"

if __name__ == "__main__":
    for method in "spawn", "fork":
        print(elastic_launch(alone(max_restarts=1, start_method=method), train)())
""")

    def test_no_descriptor_is_left_for_values(self) -> None:
        out = self.run_program("""
import resource

if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 7, most))
    try:
        print(elastic_launch(alone(8), os.getpid)())
    except OSError as error:
        print(error)
""")
        self.assertRegex(out, "no descriptor is left for what a worker has returned; ulimit -n")

    def test_a_fork_that_keeps_the_connection_does_not_hold_the_caller(self) -> None:
        self.prints("{0: None}\n", """
from elastrun.multiprocessing import payload
make = payload.socket_pair

def forked_meanwhile(*kind):
    pair = make(*kind)
    if os.fork() == 0:           # as another thread may do it in this moment
        time.sleep(1000)
    return pair

if __name__ == "__main__":
    payload.socket_pair = forked_meanwhile
    print(elastic_launch(alone(1), "true")(), flush=True)
    payload.socket_pair = make
    import subprocess
    subprocess.run(["pkill", "-KILL", "-P", str(os.getpid())])
""")

    def test_words_that_are_no_text_or_cannot_be_words(self) -> None:
        out = self.run_program("""
if __name__ == "__main__":
    elastic_launch(alone(1), "printf")("%s\\n", "a\\udcffb")
    for word, more in ("a\\0b", {}), ("a", {"elastrun": {"dry_run": True}}):
        tell(elastic_launch(alone(1, **more), "echo"), word)
""", text_errors="surrogateescape")
        self.assertRegex(out, "^a\udcffb\n.* must not have a null character.*\n"
                              ".*of a run, which dry_run and explain are not\n$")

    def test_large_values(self) -> None:
        self.prints(f"0 {64 << 20} 0 0\n1 {64 << 20} 1 1\n", """
def train():
    return bytes([int(os.environ["RANK"])]) * (64 << 20)

if __name__ == "__main__":
    for rank, value in elastic_launch(alone(), train)().items():
        print(rank, len(value), value[0], value[-1])
""")

    def test_what_cannot_be_pickled(self) -> None:
        out = self.run_program("""
def lazy():
    return (one for one in range(3))

class Heavy:
    def __reduce__(self):
        import elastrun.multiprocessing.payload as payload
        payload.RETURN_LIMIT = 10
        return bytes, (100,)

def heavy():
    return Heavy()

if __name__ == "__main__":
    for entrypoint, args in ((lambda: 1, ()), (lazy, ()), (print, (sys.stdout,)), (heavy, ())):
        try:
            elastic_launch(alone(1), entrypoint)(*args)
        except TypeError as error:
            print("TypeError", error)
        except ChildFailedError as error:
            print("ChildFailedError", error.failures[0].message["message"])
""")
        lines = out.splitlines()
        self.assertRegex(lines[0], "^TypeError .*lambda.* cannot be pickled for the workers: .*"
                                   "top level of a module")
        self.assertRegex(lines[1], "^ChildFailedError TypeError: the return value of lazy, of type "
                                   "generator, cannot be pickled")
        self.assertRegex(lines[2], "^TypeError print or its arguments cannot be pickled")
        self.assertRegex(lines[3], "^ChildFailedError ValueError: the return value of heavy has "
                                   r"\d+ bytes, more than the 10 that can be returned")

    def test_a_main_module_without_its_guard(self) -> None:
        """A worker imports it, and must not start workers in turn."""
        self.run_program("""
def train():
    return 1
elastic_launch(alone(1), train)()
""", code=1)
        self.assertIn("current process has finished its bootstrapping phase", self.err)

    def test_what_nothing_can_start_with(self) -> None:
        out = self.run_program("""
if __name__ == "__main__":
    for more in ({"logs_specs": DefaultLogsSpecs(local_ranks_filter={"x"})},
                 {"event_log_handler": "mine"}, {"shutdown_timeout": 1e10},
                 {"elastrun": {"no_such_option": 1}}, {"start_method": "dance"}):
        tell(elastic_launch(alone(**more), "true"))
    open("no-program", "w").close()
    for program in ("./no-such-program", "./no-program"):
        try:
            elastic_launch(alone(), program)()
        except Exception as error:
            print(type(error).__name__, error, error.filename)
""")
        lines = out.splitlines()
        self.assertRegex(lines[0], "^ValueError --local_ranks_filter must be a comma-separated ")
        self.assertRegex(lines[1], "^KeyError .*'mine'")
        self.assertRegex(lines[2], "^ValueError shutdown_timeout has to be a number of seconds")
        self.assertRegex(lines[3], "^ValueError .*unrecognized arguments: --no-such-option")
        # As subprocess.Popen, by which torch starts a program.
        self.assertEqual(lines[-2:], [
            "FileNotFoundError [Errno 2] No such file or directory: './no-such-program' "
            "./no-such-program",
            "PermissionError [Errno 13] Permission denied: './no-program' ./no-program"])

    def test_queues_and_a_timer_server_beside_the_agent(self) -> None:
        """The timers document: a worker that overstays its time is ended, and started again."""
        self.prints("{0: 'in time'}\n", """
import multiprocessing as mp
import elastrun.timer as timer

def trainer_func(message_queue):
    timer.configure(timer.LocalTimerClient(message_queue))
    with timer.expires(after=0.2 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 600):
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            time.sleep(1000)
    return "in time"

if __name__ == "__main__":
    message_queue = mp.get_context("spawn").Queue()
    server = timer.LocalTimerServer(message_queue, max_interval=0.01)
    server.start()
    spec = WorkerSpec(role="default", local_world_size=1, entrypoint=trainer_func,
                      args=(message_queue,), rdzv_handler=handler(), max_restarts=1)
    result = LocalElasticAgent(spec, DefaultLogsSpecs()).run()
    server.stop()
    print(result.return_values)
""")

    def test_a_handler_of_ones_own(self) -> None:
        out = self.run_program("""
from elastrun.rendezvous import RendezvousClosedError, rendezvous_handler_registry

class Counts(Mine):
    rounds = 0
    def next_rendezvous(self):
        self.rounds += 1
        if self.rounds > 2:
            raise RendezvousClosedError("enough")
        print("round", self.rounds, flush=True)
        return super().next_rendezvous()
    def num_nodes_waiting(self): return int(self.rounds == 1 and os.path.exists("second"))
    def shutdown(self):
        print("shut down", flush=True)
        return True

def train():
    if os.environ["TORCHELASTIC_RUN_ID"] != "run-8":
        return "another run"
    if not os.path.exists("second"):
        open("second", "w").close()
        time.sleep(1000)                 # until another node seems to wait
    return "second"

if __name__ == "__main__":
    rendezvous_handler_registry.register("mine", lambda parameters: Counts())
    made = get_rendezvous_handler(RendezvousParameters("mine", "", "x", 1, 1))
    spec = WorkerSpec(role="r", local_world_size=1, entrypoint=train, rdzv_handler=made)
    print(LocalElasticAgent(spec).run().return_values)
    made.rounds = 2
    tell(LocalElasticAgent(spec).run)
""")
        self.assertEqual(out.splitlines(), ["round 1", "round 2", "shut down", "{0: 'second'}",
                                            "shut down", "RendezvousClosedError enough"])

    def test_launch_after_launch_with_a_handler_of_ones_own(self) -> None:
        """Its thread has ended when a launch returns, so that the next one may fork; one that the
        handler keeps does not keep the launch."""
        out = self.run_program("""
import threading

class Stuck(Mine):
    def next_rendezvous(self):
        os.kill(os.getpid(), signal.SIGALRM)
        threading.Event().wait()

def stop(*_):
    raise TimeoutError("stuck")

if __name__ == "__main__":
    method = os.environ.get("TEST_START_METHOD", "spawn")
    for kind in (Mine, Mine, Mine, Stuck):
        spec = WorkerSpec("r", 1, kind(), entrypoint=os.getenv, args=("RANK",))
        signal.signal(signal.SIGALRM, stop)
        try:
            print(LocalElasticAgent(spec, start_method=method).run().return_values,
                  threading.active_count())
        except TimeoutError as error:
            print(error)
""")
        self.assertEqual(out.splitlines(), [*["{0: '0'} 1"] * 3, "stuck"])

    def test_two_nodes(self) -> None:
        port = free_port()
        text = f"""
def train(node):
    return node + os.environ["RANK"] + "/" + os.environ["WORLD_SIZE"]

def fails(node):
    if os.environ["RANK"] == "3":
        raise ValueError("of one node")
    time.sleep(1000)

if __name__ == "__main__":
    config = LaunchConfig(min_nodes=2, max_nodes=2, nproc_per_node=2, run_id="two",
                          rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:{port}", max_restarts=0,
                          local_addr="127.0.0.1", rdzv_configs={{"join_timeout": 60}})
    values = elastic_launch(config, train)(sys.argv[1])
    config.run_id = "fails"
    try:
        elastic_launch(config, fails)(sys.argv[1])
    except ChildFailedError as error:
        print((values, error.get_first_failure()[0], str(error.failures[3].message)))
"""
        nodes = [self.start(text, name, name=f"{name}.py") for name in "ab"]
        said = {}
        for node in nodes:
            out, err = node.communicate(timeout=LIMIT)
            self.assertEqual(node.returncode, 0, out + err)
            values, rank, message = ast.literal_eval(out)
            said |= values
            self.assertEqual(rank, 3)
            self.assertIn("of one node", message)
        self.assertEqual(sorted(said), [0, 1, 2, 3])
        self.assertEqual({value[1:] for value in said.values()}, {f"{n}/4" for n in range(4)})

    def test_await(self) -> None:
        self.prints("{0: '0', 1: '1'} True\ncancelled\n", """
import asyncio

def train():
    return os.environ["RANK"]

async def main():
    ticks = 0
    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)
    ticking = asyncio.create_task(tick())
    print(await elastic_launch(alone(), train).arun(), ticks > 1)
    ticking.cancel()
    running = asyncio.create_task(elastic_launch(alone(), wait_for_end).arun())
    while not os.path.exists("up"):
        await asyncio.sleep(0.01)
    running.cancel()
    try:
        await running
    except asyncio.CancelledError:
        print("cancelled")

def wait_for_end():
    open("up", "w").close()
    time.sleep(1000)

if __name__ == "__main__":
    asyncio.run(main())
""")

    def test_await_that_is_cancelled_while_it_starts(self) -> None:
        """Before its thread has come to the agent, or just when it has. Another run can come."""
        self.prints("cancelled before\nstarts\ncancelled after\nstarts\nworker\n", """
import asyncio
from elastrun.agent.server import local_elastic_agent as module

async def main(running, gates):
    for gate in gates:
        task = asyncio.create_task(agent.arun())
        begun = asyncio.get_running_loop().create_future()
        go = threading.Event()
        running.append((gate, asyncio.get_running_loop(), begun, go))
        await begun
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        try:
            await task
        except asyncio.CancelledError:
            print("cancelled", gate, flush=True)

def pause(at):
    if running and running[-1][0] == at:
        _, loop, begun, go = running.pop()
        loop.call_soon_threadsafe(begun.set_result, None)
        go.wait()

class Agent(module.AgentProcess):
    def __init__(self, *given):
        print("starts", flush=True)
        super().__init__(*given)
        pause("after")

def words(options, made=module._words):
    pause("before")
    return made(options)

if __name__ == "__main__":
    import threading
    running = []
    module.AgentProcess, module._words = Agent, words
    agent = LocalElasticAgent(WorkerSpec("w", 1, handler(), entrypoint=print, args=("worker",)))
    asyncio.run(main(running, ("before", "after")))
    agent.run()
""")

    def test_await_of_more_nodes_than_a_loop_has_threads(self) -> None:
        out = self.run_program("""
import asyncio
from concurrent.futures import ThreadPoolExecutor

async def main():
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    both = LaunchConfig(min_nodes=2, max_nodes=2, nproc_per_node=1, run_id="t", max_restarts=0,
                        rdzv_backend="c10d", rdzv_endpoint=f"127.0.0.1:{sys.argv[1]}",
                        local_addr="127.0.0.1", rdzv_configs={"join_timeout": 60})
    nodes = [elastic_launch(both, os.getenv).arun("GROUP_WORLD_SIZE") for _ in range(2)]
    print(sorted(value for one in await asyncio.gather(*nodes) for value in one.items()))

if __name__ == "__main__":
    asyncio.run(main())
""", str(free_port()))
        self.assertEqual(out, "[(0, '2'), (1, '2')]\n")

    def test_the_interpreter_that_multiprocessing_was_told(self) -> None:
        wrapper = self.folder / "wrapper"
        wrapper.write_text(f'#!/bin/sh\nexport WRAPPED=yes\nexec {sys.executable} "$@"\n')
        wrapper.chmod(0o755)
        self.prints("{0: 'yes'}\n", """
import multiprocessing
if __name__ == "__main__":
    multiprocessing.set_executable(os.path.abspath("wrapper"))
    print(elastic_launch(alone(1), os.getenv)("WRAPPED"))
""")

    def test_options_that_torch_has_not(self) -> None:
        self.run_program("""
if __name__ == "__main__":
    elastic_launch(alone(elastrun={"metrics": ["jsonl:metrics.jsonl"]},
                         logs_specs=DefaultLogsSpecs("logs")), "true")()
""")
        self.assertTrue(list(self.folder.glob("logs/t_*/journal.jsonl")))
        self.assertTrue((self.folder / "metrics.jsonl").exists())

    def test_arguments_that_go_by_no_option(self) -> None:
        self.prints("stopped\n{0: '7.5'}\n", """
class Server:
    def stop(self):
        print("stopped")

if __name__ == "__main__":
    spec = WorkerSpec("w", 1, handler(), entrypoint=os.getenv,
                      args=("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",))
    print(LocalElasticAgent(spec, uninterruptible_state_timeout=7.5,
                            health_check_server=Server()).run().return_values)
""")

    def test_a_caller_says_where_the_workers_meet(self) -> None:
        self.prints("{0: ['there', '42', 'True']} {0: 'localhost'} ['43', 'True']\n", """
def place():
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
    return [os.environ[name] for name in names]

def meet():
    import socket
    host, port, _ = place()
    socket.create_connection((host, int(port))).close()  # the agent's store has another name
    return host

def run(entrypoint, **master):
    spec = WorkerSpec("w", 1, handler(), entrypoint=entrypoint, **master)
    return LocalElasticAgent(spec).run().return_values

if __name__ == "__main__":
    print(run(place, master_addr="there", master_port=42), run(meet, master_addr="localhost"),
          run(place, master_port=43)[0][1:])
""")


class Requests(Launcher):
    """Lines of JSON, as a launcher in another language writes them."""

    def ended(self, request: str) -> dict:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            agent = subprocess.Popen([ELASTRUN, f"--caller={theirs.fileno()}"], cwd=self.folder,
                                     pass_fds=[theirs.fileno()], env=self.environment,
                                     stdout=subprocess.DEVNULL)
            theirs.close()
            ours.sendall(request.encode() + b"\n")
            ours.settimeout(LIMIT)
            with ours.makefile() as lines:
                said = lines.readlines()
        agent.wait(LIMIT)
        return json.loads(said[-1])["ended"]

    def test_a_job(self) -> None:
        ended = self.ended(json.dumps({
            "entrypoint": "sh", "args": ["-c", "echo $ROLE_NAME $MASTER_ADDR; echo is a,b"],
            "options": ["--nproc-per-node=2", "--role=trainer", "--log-dir=logs", "--tee=1"],
            "shutdown_timeout": 1.5, "master_addr": "there", "fork_socket": None,
            "duplicate_stdout_filters": ["a,b", "c"], "rendezvous": {
                "backend": "c10d", "endpoint": "localhost:0", "run_id": "r",
                "conf": {"join_timeout": "7"}}}))
        self.assertEqual((ended.get("state"), ended.get("returned")), ("SUCCEEDED", [0, 1]), ended)
        [out] = self.folder.glob("logs/r_*/attempt_0/0/stdout.log")
        self.assertEqual(out.read_text(), "trainer there\nis a,b\n")
        [filtered] = self.folder.glob("logs/r_*/**/filtered_stdout.log")
        self.assertEqual(sorted(filtered.read_text().splitlines()),
                         ["[trainer0]:is a,b", "[trainer1]:is a,b"])

    def test_as_many_workers_as_cpus(self) -> None:
        ended = self.ended(json.dumps({
            "entrypoint": "true", "options": ["--nproc-per-node=cpu"],
            "rendezvous": {"backend": "c10d", "endpoint": "localhost:0", "run_id": "r"}}))
        cpus = len(os.sched_getaffinity(0))
        self.assertEqual(ended.get("returned"), list(range(cpus)), ended)

    def test_a_faulty_request_is_refused_by_the_name_of_its_field(self) -> None:
        for field, why in (
                ('"args": "sh"', "args is of another type than it has to be"),
                ('"args": ["a\\u0000"]', "args must not have a null character"),
                ('"master_port": 70000', "master_port is of another type"),
                ('"shutdown_timeout": -1', "shutdown_timeout has to be a number of seconds"),
                ('"shutdown_timeout": 1e300', "shutdown_timeout has to be a number of seconds"),
                ('"inherited_fds": [2]', "inherited_fds have to be above 2"),
                ('"fork_socket": 2', "fork_socket has to be above 2"),
                ('"fork_socket": "x"', "fork_socket is of another type"),
                ('"speed": 1', "speed is not known to this elastrun"),
                ('"options": ["--nproc-per-node=0"]', "nproc_per_node must be > 0"),
                ('"options": ["--tee=0:4"]', "0:4 does not match"),
                ('"options": ["--numa-binding=all"]', "invalid choice: 'all'"),
                ('"options": ["--help"]', "options have to be of a run")):
            with self.subTest(field):
                error = self.ended("{%s, \"rendezvous\": {\"backend\": \"c10d\"}}" % field)["error"]
                self.assertEqual(error["kind"], "usage")
                self.assertIn(why, error["text"])
        for text, why in (
                ('{"rendezvous": {"backend": "c10d", "nodes": 1}}',
                 "rendezvous.nodes is not known to this elastrun"),
                ('{"entrypoint": "x", "rendezvous": {"backend": "none"}}', "is not registered"),
                ('{"rendezvous": {"backend": "c10d"}}', "entrypoint has to name a program"),
                ('{"rendezvous": 1}', "rendezvous has to be an object"),
                ("{}", "rendezvous is missing"),
                ("[]", "the caller's request has to be an object")):
            self.assertIn(why, self.ended(text)["error"]["text"])


class Ends(Launcher):
    """However the caller ends, nothing is left of the job."""

    TEXT = """
if __name__ == "__main__":
    try:
        elastic_launch(alone(), wait_for_end)()
    except SignalException as error:
        print("ended by", error.sigval.name, flush=True)
        sys.exit(9)
"""

    def started(self, text: str) -> subprocess.Popen:
        """With its two workers."""
        child = self.start(text)
        self.wait_for(child, "up", 2)
        return child

    def test_sigterm(self) -> None:
        child = self.started(self.TEXT)
        child.send_signal(signal.SIGTERM)
        code, text = self.end_of(child)
        self.assertEqual(code, 9, text)
        self.assertTrue(text.startswith("ended by SIGTERM\n"), text)

    def test_ctrl_c(self) -> None:
        """A terminal signals the launcher and the agent's guardian, which share a group: once, so
        that the workers have their time.
        """
        child = self.started("""
def saves():
    try:
        wait_for_end()
    except KeyboardInterrupt:
        time.sleep(1)
        print("saved", flush=True)
""" + self.TEXT.replace("wait_for_end", "saves"))
        os.killpg(child.pid, signal.SIGINT)
        code, text = self.end_of(child)
        self.assertEqual(code, 9, text)
        self.assertEqual(text.count("saved\n"), 2, text)
        self.assertIn("ended by SIGINT\n", text)

    def test_sigterm_twice(self) -> None:
        """The second one is the last: workers that do not listen are killed at once."""
        child = self.started("""
def deaf():
    signal.signal(signal.SIGTERM, lambda *_: print("deaf", flush=True))
    print("up", flush=True)
    while True:
        time.sleep(1000)
""" + self.TEXT.replace("wait_for_end", "deaf"))
        child.send_signal(signal.SIGTERM)
        self.wait_for(child, "deaf", 2)
        time.sleep(1.1)              # what comes within a second is the same request
        child.send_signal(signal.SIGTERM)
        code, text = self.end_of(child)
        self.assertEqual((code, text.split("\n")[0]), (9, "ended by SIGTERM"), text)

    def test_sigkill_of_the_caller(self) -> None:
        child = self.started(self.TEXT)
        child.kill()
        self.end_of(child)

    def test_sigkill_of_the_caller_that_has_forked(self) -> None:
        """The copy holds its end of the connection open."""
        child = self.start("""
import threading
def fork():
    if os.fork() == 0:
        os.environ.clear()
        time.sleep(1000)
        os._exit(0)

if __name__ == "__main__":
    spec = WorkerSpec(role="r", local_world_size=1, entrypoint=wait_for_end, args=(),
                      rdzv_handler=handler())
    agent = LocalElasticAgent(spec)
    threading.Timer(0.0, lambda: (agent.get_worker_group(), print("t", flush=True))).start()
    def forked():
        while agent._process is None:
            time.sleep(0.001)
        fork()
    threading.Thread(target=forked).start()
    agent.run()
""")
        worker = int(self.wait_for(child, "up")[0].split()[2])
        child.kill()
        wait_until(lambda: worker not in self.alive(), "the worker has ended")
        self.end_the_rest()
        self.end_of(child)

    def test_an_exception_in_a_caller_that_has_forked(self) -> None:
        """The copy holds its end of the connection open; the job ends all the same."""
        child = self.started("""
def stop(*_):
    if os.fork() == 0:
        time.sleep(1000)
    raise TimeoutError("too long")

if __name__ == "__main__":
    signal.signal(signal.SIGALRM, stop)
    try:
        elastic_launch(alone(), wait_for_end)()
    except TimeoutError as error:
        print("raised:", error, flush=True)
""")
        child.send_signal(signal.SIGALRM)
        self.wait_for(child, "raised: too long")
        child.wait(LIMIT)
        self.end_the_rest()
        self.assertIn("Received 15 death signal", self.end_of(child)[1])  # it was not killed

    def test_a_thread_of_the_caller(self) -> None:
        """Signals are the main thread's there; the end of the process ends the job."""
        child = self.started("""
import threading
if __name__ == "__main__":
    running = threading.Thread(target=elastic_launch(alone(), wait_for_end))
    running.start()
    running.join()
""")
        child.send_signal(signal.SIGTERM)
        code, _ = self.end_of(child)
        self.assertEqual(code, -signal.SIGTERM)

    def test_the_agent_is_killed(self) -> None:
        child = self.started("""
if __name__ == "__main__":
    tell(elastic_launch(alone(), wait_for_end))
""")
        os.kill(self.agent_of(child.pid), signal.SIGKILL)
        code, text = self.end_of(child)
        self.assertEqual(code, 0, text)
        self.assertRegex(text, "AgentError the agent has ended without a word: SIGKILL")

    def test_the_guardian_is_killed(self) -> None:
        child = self.started(self.TEXT.replace("SignalException as error", "Exception as error")
                           .replace("error.sigval.name", "type(error).__name__, error"))
        [guardian] = children_of(child.pid)
        os.kill(guardian, signal.SIGKILL)
        code, text = self.end_of(child)
        self.assertEqual(code, 9, text)
        self.assertRegex(text, "ended by AgentError .*guardian has been killed by SIGKILL")

    def test_a_signal_that_comes_too_late_for_the_job_is_the_callers(self) -> None:
        self.prints("heard\n{0: None}\n", """
from elastrun.agent.server import local_elastic_agent

class Late(local_elastic_agent.AgentProcess):
    def _step(self):
        goes_on = super()._step()
        if self._ended is not None and self.heard is None:  # while the guardian cleans up
            os.kill(os.getpid(), signal.SIGTERM)
        return goes_on

if __name__ == "__main__":
    local_elastic_agent.AgentProcess = Late
    signal.signal(signal.SIGTERM, lambda *_: print("heard"))
    print(elastic_launch(alone(1), "true")())
""")

    def test_handlers_are_as_before(self) -> None:
        self.prints("True\nTrue\n", """
if __name__ == "__main__":
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    elastic_launch(alone(), "true")()
    print(before == [signal.getsignal(one)
                     for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)])
    print(len(os.listdir("/proc/self/fd")) < 8)
""")


class EndsOfForks(Ends):
    def setUp(self) -> None:
        super().setUp()
        self.environment["TEST_START_METHOD"] = "fork"

    # In these the caller has threads, beside which it cannot be forked.
    test_a_thread_of_the_caller = test_sigkill_of_the_caller_that_has_forked = None


class Forks(Launcher):
    """start_method="fork": forks of the calling process, below an agent."""

    def setUp(self) -> None:
        super().setUp()
        self.environment["TEST_START_METHOD"] = "fork"

    test_of_a_caller_without_streams = Runs.test_a_caller_without_its_standard_streams
    test_of_what_a_failed_worker_left = Runs.test_what_a_failed_worker_left
    test_of_restarts = Runs.test_restarts_give_the_values_of_the_last_start
    test_of_a_handler_of_ones_own = Runs.test_a_handler_of_ones_own
    test_of_launches_with_one = Runs.test_launch_after_launch_with_a_handler_of_ones_own

    def test_a_fork_has_what_the_caller_has(self) -> None:
        """A closure, arguments that no pickle can hold, data that is not copied: as at the launch
        at each start. What the caller has buffered and registered for its end stays its own.
        """
        out = self.run_program("""
import atexit, elastrun, elastrun.metrics, threading
lock, table, starts = threading.Lock(), {"rows": list(range(1000))}, []
file = open("notes", "w+")
file.write("of the caller, ")                        # in its buffer
atexit.register(lambda: print("the caller's end"))
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})

def main(scale):
    def train(generator, place):
        starts.append(1)
        atexit.register(lambda: os.write(1, b"a worker's end\\n"))
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            table.clear()
            sys.exit(3)
        elastrun.step(5)
        elastrun.metrics.put_metric("loss", 0.5)     # imported where no agent listened
        with open(f"seen{os.environ['RANK']}", "w") as seen:
            print(lock.locked(), len(table["rows"]), len(starts), scale, next(generator),
                  place == id(table), sys.argv, os.getpid() == os.getsid(0),
                  signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {signal.SIGWINCH},
                  callable(signal.getsignal(signal.SIGUSR1)), elastrun.is_connected(),
                  elastrun.dropped(), "bash" not in os.readlink("/proc/self/exe"),
                  "SYSTEM_TEST" in os.environ, file=seen)
        print("half a line", end="")
        return os.getppid()
    before = len(os.listdir("/proc/self/fd"))
    config = alone(max_restarts=1, elastrun={"metrics": ["jsonl:metrics.jsonl"]})
    returned = elastic_launch(config, train)((n for n in "ab"), id(table))
    print(len(set(returned.values())), returned[0] != os.getpid(), starts, len(table["rows"]),
          len(os.listdir("/proc/self/fd")) == before)
print("once")                                        # buffered, since this is a pipe
main(7)                                              # without a guard: nothing is imported
""")
        seen = ("False 1000 1 7 a True ['launch.py'] True True True True 0 True True\n")
        self.assertEqual([(self.folder / f"seen{rank}").read_text() for rank in (0, 1)], [seen] * 2)
        self.assertEqual((self.folder / "notes").read_text(), "of the caller, ")
        self.assertIn('"loss"', (self.folder / "metrics.jsonl").read_text())
        self.assertEqual(out.count("once\n"), 1, out)
        self.assertGreaterEqual(out.count("a worker's end\n"), 3, out)  # one may be stopped first
        self.assertEqual(out.count("half a line"), 2, out)
        self.assertTrue(out.endswith("1 True [] 1000 True\nthe caller's end\n"), out)

    def test_where_a_fork_is_refused(self) -> None:
        """Threads are named; those of OpenBLAS, which end before a fork, are no obstacle."""
        out = self.run_program("""
import threading
from elastrun.multiprocessing import fork
go = threading.Event()
scale = 3
def three():
    return scale
if __name__ == "__main__":
    thread = threading.Thread(target=go.wait, name="prefetch")
    thread.start()
    tell(elastic_launch(alone(), three))
    print(elastic_launch(alone(1, start_method="spawn"), three)())
    go.set()
    thread.join()
    scale = 4                                        # which a module that is imported has not
    try:
        import numpy
    except ImportError:
        pass
    print(elastic_launch(alone(1), three)())
    os.mkdir("dev")
    file = open("dev/nvidia-uvm", "w")
    fork._DEVICES = (os.path.abspath("dev/nvidia"),)
    tell(elastic_launch(alone(), three))
    file.close()
    tell(elastic_launch(alone(shutdown_timeout=1e10), three))  # the agent refuses, the copy ends
""").splitlines()
        self.assertIn("RuntimeError start_method 'fork': this process has 2 threads (prefetch)",
                      out[0])
        self.assertEqual(out[1:3], ["{0: 3}", "{0: 4}"])
        self.assertRegex(out[3], "RuntimeError .*this process has used .*/dev/nvidia-uvm, which")
        self.assertRegex(out[4], "^ValueError shutdown_timeout has to be a number of seconds")

    def test_a_copy_that_is_killed(self) -> None:
        """Workers go on without it; another start of theirs fails, and says why."""
        out = self.run_program("""
def children(pid):
    return [int(one) for one in open(f"/proc/{pid}/task/{pid}/children").read().split()]

def kill_copy(then):
    [copy] = set(children(os.getppid())) - {os.getpid()}
    os.kill(copy, signal.SIGKILL)
    sys.exit(then)

if __name__ == "__main__":
    print(elastic_launch(alone(1), kill_copy)(0))
    tell(elastic_launch(alone(1, max_restarts=1), kill_copy), 3)
""").splitlines()
        self.assertEqual(out[0], "{0: None}")
        self.assertRegex(out[1], "^AgentError .*the copy of the calling process cannot fork a "
                                 "worker: it has ended")

    def test_what_a_caller_may_have_done(self) -> None:
        """Ignored SIGCHLD, closed its stdout; it gets a Ctrl+C while it forks, and has a worker
        that launches."""
        self.prints("True set() \n{0: True}\n{0: 'idle'}\n", """
import gc, elastrun
from elastrun.multiprocessing import fork

def read(path):
    with open(f"/proc/{path}") as file:
        return file.read()

def idle():
    agent = os.getppid()
    [copy] = set(read(f"{agent}/task/{agent}/children").split()) - {str(os.getpid())}
    before, deadline = "", time.monotonic() + 20
    while (now := read(f"{copy}/status").split("ctxt_switches")[1]) != before:
        if time.monotonic() > deadline:
            return "it wakes up without end"
        before = now
        time.sleep(0.3)                              # six of its intervals
    return "idle"

def nested():
    return elastic_launch(alone(1), os.getppid)()[0] != os.getppid()

if __name__ == "__main__":
    caller = os.getpid()
    interrupts = [os.kill]
    os.register_at_fork(before=lambda: os.getpid() == caller and interrupts and
                        interrupts.pop()(caller, signal.SIGINT))
    try:
        elastic_launch(alone(), nested)()
    except KeyboardInterrupt:
        print(gc.isenabled(), signal.pthread_sigmask(signal.SIG_BLOCK, ()),
              read(f"self/task/{caller}/children"))
    print(elastic_launch(alone(1), nested)())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    fork._end_pools()
    out = os.fdopen(os.dup(1), "w")
    sys.stdout.close()
    print(elastic_launch(alone(1), idle)(), file=out)
""")

    def test_an_agent_that_cannot_start(self) -> None:
        (self.folder / "text").write_text("no program")
        (self.folder / "text").chmod(0o755)
        out = self.run_program("""
if __name__ == "__main__":
    for os.environ["ELASTRUN_BINARY"] in ("./none", "./text", "true"):
        tell(elastic_launch(alone(), print))
    print(len(os.listdir("/proc/self/fd")) < 8)
""").splitlines()
        self.assertRegex(out[0], "^AgentError cannot start the agent: .*'./none'")
        self.assertRegex(out[1], "^AgentError cannot start the agent: .*Exec format error")
        self.assertRegex(out[2], "^AgentError the agent has ended without a word: exit code 0")
        self.assertEqual(out[3:], ["True"])

    def test_children_of_multiprocessing_in_a_worker(self) -> None:
        self.prints("{0: ([2, 4], None)} train\n", """
import multiprocessing as mp
queue = mp.get_context("fork").SimpleQueue()

def double(value):
    return 2 * value

def train():
    queue.put(mp.current_process().name)
    with mp.get_context("fork").Pool(2) as pool:
        return pool.map(double, [1, 2]), mp.parent_process()

if __name__ == "__main__":
    print(elastic_launch(alone(1), train)(), queue.get())
""")


class Notebook(Launcher):
    def test_a_function_of_a_cell(self) -> None:
        """By value, with cloudpickle; without it, with the reason."""
        cell = """
import elastrun, os
scale = 10
class Loss:
    def __init__(self, value):
        self.value = value
def train(first):
    print("rank", os.environ["RANK"], "of a cell")
    return Loss(first.value + scale * int(os.environ["RANK"]))
try:
    losses = elastrun.notebook_launcher(train, (Loss(1),), num_processes=2)
    print({rank: loss.value for rank, loss in losses.items()}, isinstance(losses[1], Loss))
except TypeError as error:
    print("TypeError:", error)
"""
        out = self.run_program(f"""
import types, io, contextlib
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()  # as a kernel of Jupyter
main = types.ModuleType("__main__")
sys.modules["__main__"] = main
exec(compile({cell!r}, "<cell 1>", "exec"), main.__dict__)
""")
        if importlib.util.find_spec("cloudpickle") is None:
            self.assertIn("needs the package cloudpickle: pip install cloudpickle", out)
        else:
            self.assertEqual(out, "rank 0 of a cell\n{0: 1, 1: 11} True\n")

    def test_a_partial_and_an_object_of_a_cell(self) -> None:
        """They are of the notebook, too, and have no name with which to tell their failure."""
        out = self.run_program("""
import elastrun, functools, threading
del sys.modules["__main__"].__file__                 # as in a notebook

def fails(why):
    raise ValueError(why)
class Fails:
    def __call__(self):
        fails("an object")

def tell(function):
    try:
        elastrun.notebook_launcher(function)
    except ChildFailedError as error:
        print(error.name, error.failures[0].message["message"])
    except TypeError as error:
        print("needs the package cloudpickle" in str(error))

for _ in ("as forks", "by value"):
    tell(functools.partial(functools.partial(fails), "a partial"))
    tell(Fails())
    if threading.active_count() == 1:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
""").splitlines()
        failures = ["functools.partial(<function fails at 0x>, 'a partial') ValueError: a partial",
                    "<__main__.Fails object at 0x> ValueError: an object"]
        values = ["True"] * 2 if importlib.util.find_spec("cloudpickle") is None else failures
        self.assertEqual([re.sub("0x[0-9a-f]+", "0x", line) for line in out], failures + values)

    def test_a_function_of_an_interpreter_without_threads(self) -> None:
        """Its workers are forks, for which cloudpickle is not needed."""
        self.prints("rank 0 of launch.py\n{0: 1, 1: 2}\n", """
import elastrun, io
file = open("launch.py")
def train(first):
    print("rank", os.environ["RANK"], "of", file.name)
    return first + int(os.environ["RANK"])
print(elastrun.notebook_launcher(train, (1,), num_processes=2))
""")

    def test_a_closure(self) -> None:
        """By value, as by a fork; a queue among the arguments, too."""
        out = self.run_program("""
import multiprocessing as mp
queue = mp.get_context("spawn").Queue()
def main(scale):
    def train(results):
        results.put(scale)
        return lambda: scale + 1
    def launch():
        returned = elastic_launch(alone(1, start_method="fork", elastrun={"by_value": True}),
                                  train)(queue)
        return returned[0](), queue.get()
    tell(launch)
main(7)                                  # without a guard: the workers do not import this
""")
        if importlib.util.find_spec("cloudpickle") is None:
            self.assertIn("needs the package cloudpickle: pip install cloudpickle", out)
        else:
            self.assertEqual(out, "(8, 7)\n")

    def test_interrupt(self) -> None:
        child = self.start("""
import elastrun
def train():
    print("up", flush=True)
    time.sleep(1000)

if __name__ == "__main__":
    try:
        elastrun.notebook_launcher(train, (), 2, by_value=False)
    except KeyboardInterrupt:
        print("interrupted")
""")
        self.wait_for(child, "up")
        child.send_signal(signal.SIGINT)
        code, text = self.end_of(child)
        self.assertEqual(code, 0, text)
        self.assertIn("interrupted\n", text)


class Processes(Launcher):
    """start_processes, without an agent."""

    HEAD = """
from elastrun.multiprocessing import DefaultLogsSpecs, Std, start_processes

def start(entrypoint, *args, method="spawn", **logs):
    return start_processes("w", entrypoint, dict(enumerate(args)), {r: {"LOCAL_RANK": r}
                           for r in range(len(args))}, DefaultLogsSpecs(**logs),
                           start_method=method)

def share(total, count):
    print("share of", os.environ["LOCAL_RANK"])
    return total / count

def fail_or_wait(fails):
    if fails:
        raise ValueError("no such data")
    time.sleep(1000)
"""

    def test_functions_and_programs(self) -> None:
        out = self.run_program(self.HEAD + """
if __name__ == "__main__":
    before = signal.getsignal(signal.SIGTERM)
    for method in ("spawn", "fork"):
        context = start(share, (8, 2), (9, 3), method=method, tee=Std.OUT, redirects={1: Std.ERR})
        result = context.wait()
        print(result.return_values, result.is_failed(), sorted(context.pids()) == [0, 1],
              [os.path.basename(one) for one in result.stderrs.values()], flush=True)
    result = start(fail_or_wait, (True,), (False,), method="fork", redirects=Std.ERR).wait()
    [(rank, failure)] = result.failures.items()
    print(rank, failure.exitcode, failure.message["message"], result.return_values,
          "no such data" in open(result.stderrs[0]).read())
    result = start("sh", ("-c", "echo $LOCAL_RANK; exit 3"), ("-c", "sleep 1000 & wait"),
                   redirects=Std.OUT).wait()
    print({rank: one.exitcode for rank, one in result.failures.items()},
          open(result.stdouts[0]).read().strip())
    print(signal.getsignal(signal.SIGTERM) is before)
""").splitlines()
        shown = [f"[w{rank}]:share of {rank}" for rank in (0, 1)]
        good = "{0: 4.0, 1: 3.0} False True ['', 'stderr.log']"
        self.assertEqual(sorted(out[:2]) + out[2:3] + sorted(out[3:5]) + out[5:],
                         [*shown, good, *shown, good, "0 1 ValueError: no such data {} True",
                          "{0: 3, 1: -15} 0", "True"])

    def test_a_fork_has_what_its_parent_has(self) -> None:
        out = self.run_program(self.HEAD + """
import threading
if __name__ == "__main__":
    lock, table = threading.Lock(), list(range(1000))  # a closure, and what cannot be pickled
    print(start(lambda row: (lock.locked(), table[row]), (7,), method="fork").wait().return_values)
    go = threading.Event()
    threading.Thread(target=go.wait, name="prefetch").start()
    tell(lambda: start(share, (1, 1), method="fork"))
    go.set()
    tell(start_processes, "w", share, {0: ()}, {1: {}}, DefaultLogsSpecs())
""").splitlines()
        self.assertEqual([out[0], out[2]], [
            "{0: (False, 7)}",
            "RuntimeError envs, local rank mapping mismatch, expected: {0}, actual: {1}"])
        self.assertIn("2 threads (prefetch)", out[1])

    def test_a_process_that_is_killed_while_it_returns(self) -> None:
        out = self.run_program(self.HEAD + """
from multiprocessing.connection import Connection

def die_half_way(pipe, value):
    os.write(pipe.fileno(), b"\\0\\0\\0\\x64half of 100 bytes")
    os.kill(os.getpid(), signal.SIGKILL)

def train():
    Connection._send_bytes = die_half_way

if __name__ == "__main__":
    print(start(train, (), method="fork").wait().failures[0].message)
""")
        self.assertRegex(out, r"^Signal 9 \(SIGKILL\) received by PID \d+\n$")

    def test_its_own_end_and_close(self) -> None:
        text = self.HEAD + """
def stubborn():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1000")  # ends with its session
    wait_for_end()

if __name__ == "__main__":
    os.environ["RANK"] = "0"
    context = start(*{"close": (stubborn, ()), "killed": ("sh", ("-c", "echo up; exec sleep 1000"))
                      }.get(sys.argv[1], (wait_for_end, (), ())), method="fork")
    try:  # from the first line on, which says that a signal may come
        os.write(1, f"{context.wait(0)}\\n".encode())
        if sys.argv[1] == "close":
            sys.stdin.readline()
            context.close(timeout=0.1)
        context.wait()
    except SignalException as error:
        if sys.argv[1] == "not caught":
            raise
        context.close(error.sigval)
        print(error.sigval.name)
"""
        child = self.start(text, "close", stdin=subprocess.PIPE)
        self.wait_for(child, "up")
        child.stdin.write("\n")
        child.stdin.close()
        self.assertEqual(child.wait(LIMIT), 0)
        self.nothing_left()
        child = self.start(text, "signal")
        self.wait_for(child, ("up", "None"), 3)  # before that, start() would raise it
        child.terminate()
        self.wait_for(child, "SIGTERM")
        self.nothing_left()
        child = self.start(text, "not caught")
        self.wait_for(child, ("up", "None"), 3)
        child.terminate()
        code, shown = self.end_of(child)
        self.assertEqual(code, 1)
        self.assertIn("got signal", shown)
        child = self.start(text, "killed")
        self.wait_for(child, "up")
        child.kill()
        self.nothing_left()


@unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")
class Torch(Launcher):
    """With torch's own objects, as programs have them that replace one prefix alone."""

    def test_its_config_and_tensors(self) -> None:
        self.prints("{0: [3.0, 3.0], 1: [3.0, 3.0]}\n", """
def train(tensor):
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    mine = tensor + int(os.environ["RANK"])
    dist.all_reduce(mine)
    dist.destroy_process_group()
    return mine

if __name__ == "__main__":
    import torch
    from torch.distributed.launcher.api import LaunchConfig
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, run_id="t", max_restarts=0,
                          rdzv_backend="c10d", rdzv_endpoint="localhost:0")
    returned = launch_agent(config, train, [torch.ones(2)])
    print({rank: tensor.tolist() for rank, tensor in returned.items()})
""")

    def test_its_rendezvous_of_two_nodes(self) -> None:
        """A TCPStore below prefixes that torch does not tell."""
        port = free_port()
        text = f"""
def train():
    return os.environ["RANK"] + "/" + os.environ["WORLD_SIZE"]

if __name__ == "__main__":
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
    handler = get_rendezvous_handler(RendezvousParameters(
        "c10d", "127.0.0.1:{port}", "t", 2, 2, local_addr="127.0.0.1", timeout=60))
    spec = WorkerSpec(role="r", local_world_size=1, entrypoint=train, rdzv_handler=handler)
    print(LocalElasticAgent(spec).run().return_values)
"""
        nodes = [self.start(text, name=f"{name}.py") for name in "ab"]
        said = [self.end_of_node(node) for node in nodes]
        self.assertEqual(sorted(said), ["{0: '0/2'}\n", "{1: '1/2'}\n"])

    def end_of_node(self, node: subprocess.Popen) -> str:
        out, err = node.communicate(timeout=LIMIT)
        self.assertEqual(node.returncode, 0, out + err)
        return out
