# SPDX-License-Identifier: Apache-2.0
"""store_torch_test.py STORE_HOST STORE_FILE: torch's own clients against our server, and both of
us on one file. Ends with 77 and the reason where neither this Python nor .venv has torch."""
from __future__ import annotations

import importlib.util
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import traceback
import unittest
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from host import Host

if importlib.util.find_spec("torch") is None:
    other = Path(__file__).resolve().parents[2] / ".venv/bin/python3"
    if other.exists() and Path(sys.prefix) != other.parents[1]:
        os.execv(other, [str(other), *sys.orig_argv[1:]])
    raise unittest.SkipTest(f"no torch in {sys.executable} and none in .venv")

import torch
import torch.distributed as dist

PROGRAM, FILE_PROGRAM = sys.argv[1:3]
LONG = timedelta(seconds=120)
SHORT = timedelta(milliseconds=100)
WORLD = 8


class Store(unittest.TestCase):
    def setUp(self) -> None:
        self.host = Host(PROGRAM)
        self.addCleanup(lambda: self.host.__exit__())
        self.store = self.client()

    def client(self, timeout: timedelta = LONG) -> dist.TCPStore:
        return dist.TCPStore("127.0.0.1", self.host.port, is_master=False, timeout=timeout)

    def test_values(self) -> None:
        store = self.store
        store.set("k", "text")
        store.set("bytes", bytes(range(256)).decode("latin-1"))
        self.assertEqual(store.get("k"), b"text")
        self.assertEqual(self.client().get("k"), b"text")
        store.set("large", "x" * (8 << 20))
        self.assertEqual(len(store.get("large")), 8 << 20)
        store.append("k", "!")
        self.assertEqual(store.get("k"), b"text!")
        store.multi_set(["m1", "m2"], ["1", ""])
        self.assertEqual(store.multi_get(["m2", "m1", "k"]), [b"", b"1", b"text!"])
        self.assertEqual(store.add("n", 3), 3)
        self.assertEqual(self.client().add("n", -5), -2)
        self.assertTrue(store.check(["k", "n"]))
        self.assertFalse(store.check(["k", "none"]))
        self.assertEqual(store.num_keys(), 6)
        self.assertEqual(sorted(store.list_keys()), ["bytes", "k", "large", "m1", "m2", "n"])
        self.assertTrue(store.delete_key("k"))
        self.assertFalse(store.delete_key("k"))

    def test_compare_set(self) -> None:
        store = self.store
        self.assertEqual(store.compare_set("k", "x", "1"), b"x")
        self.assertFalse(store.check(["k"]))
        self.assertEqual(store.compare_set("k", "", "1"), b"1")
        self.assertEqual(store.compare_set("k", "0", "2"), b"1")
        self.assertEqual(store.compare_set("k", "1", "2"), b"2")

    def test_waits(self) -> None:
        with self.assertRaisesRegex(dist.DistStoreError, "wait timeout after 100ms, keys: /a, /b"):
            self.store.wait(["a", "b"], SHORT)
        with self.assertRaises(dist.DistStoreError):
            self.client(SHORT).get("a")
        late = self.client()
        setter = threading.Timer(0.05, lambda: late.multi_set(["a", "b"], ["1", "2"]))
        setter.start()
        self.store.wait(["a", "b"], LONG)  # after a timeout the same connection still works
        setter.join()
        self.assertEqual(self.store.get("b"), b"2")

    def test_a_failed_compare_set_wakes_nobody(self) -> None:
        other = self.client()
        prober = threading.Timer(0.05, lambda: other.compare_set("k", "expected", "desired"))
        prober.start()
        with self.assertRaises(dist.DistStoreError):
            self.store.wait(["k"], timedelta(milliseconds=300))
        prober.join()

    def test_queues(self) -> None:
        store = self.store
        for item in ("1", "2", "3"):
            store.queue_push("q", item)
        self.assertEqual(store.queue_len("q"), 3)
        self.assertEqual([store.queue_pop("q") for _ in range(3)], [b"1", b"2", b"3"])
        with self.assertRaises(dist.QueueEmptyError):
            store.queue_pop("q", block=False)
        got: list[bytes] = []
        poppers = [threading.Thread(target=lambda c=self.client(): got.append(c.queue_pop("q")))
                   for _ in range(4)]
        before = self.host.command("statistics")["requests"]
        for popper in poppers:
            popper.start()
        # A client whose wait begins while an item is there may find that another was quicker, which
        # torch reports as an empty queue: so all of them wait before there is one.
        while self.host.command("statistics")["requests"] < before + len(poppers):
            pass
        for i in range(4):
            store.queue_push("q", str(i))
        for popper in poppers:
            popper.join()
        self.assertEqual(sorted(got), [b"0", b"1", b"2", b"3"])

    @unittest.skipUnless(hasattr(dist.TCPStore, "barrier"), "this torch has no store barrier")
    def test_a_barrier_holds_each_time(self) -> None:
        clients = [self.client() for _ in range(WORLD)]
        arrived = [0] * 3
        seen: list[int] = []
        lock = threading.Lock()

        def run(client: dist.TCPStore) -> None:
            for use in range(len(arrived)):
                with lock:
                    arrived[use] += 1
                client.barrier("b", WORLD, LONG)
                with lock:
                    seen.append(arrived[use])

        threads = [threading.Thread(target=run, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(seen, [WORLD] * (WORLD * len(arrived)))

    def test_prefixes_and_clones(self) -> None:
        inner = dist.PrefixStore("in", dist.PrefixStore("pre", self.store))
        inner.set("k", "v")
        self.assertEqual(self.store.get("pre/in/k"), b"v")
        copy = inner.clone()
        self.assertEqual(copy.get("k"), b"v")
        with self.assertRaisesRegex(dist.DistStoreError, "keys: /pre/in/no"):
            inner.wait(["no"], SHORT)
        self.assertEqual(inner.add("n", 1), 1)
        self.assertEqual(copy.add("n", 1), 2)

    def test_garbage_of_torch_sizes_is_refused_and_named(self) -> None:
        with self.assertRaises(dist.DistNetworkError):
            for _ in range(10):
                self.store.set("k", "x" * (64 << 20))
        self.client().set("k", "v")
        self.host.__exit__()
        self.assertIn("sent a value of 67108864 bytes; the limit is 8388608", self.host.log)
        self.host = Host(PROGRAM)  # for the cleanup


class File(unittest.TestCase):
    """Both write and read the same file store."""

    def test_a_file_is_shared_with_torch(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/store"
            theirs = dist.FileStore(path, -1)

            def ours(*words: str) -> str:
                return subprocess.run([FILE_PROGRAM, path, *words], check=True, text=True,
                                      stdout=subprocess.PIPE).stdout.strip()

            theirs.set("k", "theirs")
            self.assertEqual(ours("get", "k"), "theirs")
            self.assertEqual(ours("set", "k", "ours"), "done")
            self.assertEqual(theirs.get("k"), b"ours")
            self.assertEqual(theirs.add("n", 5), 5)
            self.assertEqual(ours("add", "n", "-7"), "-2")
            self.assertEqual(theirs.add("n", 0), -2)
            self.assertEqual(ours("check", "k"), "true")
            theirs.delete_key("k")
            self.assertEqual(ours("check", "k"), "false")
            self.assertEqual(ours("erase", "n"), "true")
            self.assertFalse(theirs.check(["n"]))
            waiter = threading.Timer(0.05, lambda: ours("set", "late", "v"))
            waiter.start()
            self.assertEqual(theirs.get("late"), b"v")
            waiter.join()


def collective(rank: int) -> None:
    """One worker: what a training does to its store, and a bit more."""
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, timeout=LONG)
    total = torch.ones(1) * rank
    dist.all_reduce(total)
    assert total.item() == sum(range(WORLD)), total
    dist.barrier()
    dist.monitored_barrier(timeout=LONG)
    objects: list[Any] = [None] * WORLD
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(WORLD)], objects
    sent = [{"from": 3}] if rank == 3 else [None]
    dist.broadcast_object_list(sent, src=3)
    assert sent == [{"from": 3}], sent
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, list(range(WORLD)) if rank == 0 else None, src=0)
    assert mine == [rank], mine
    half = WORLD // 2
    halves = [dist.new_group(list(range(start, start + half))) for start in (0, half)]
    part = torch.ones(1)
    dist.all_reduce(part, group=halves[rank // half])
    assert part.item() == half, part
    dist.destroy_process_group()


def late_straggler(rank: int) -> None:
    """monitored_barrier names the rank that does not come."""
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, timeout=LONG)
    dist.barrier()  # before it some may still be connecting to the one that stays away
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), timeout=LONG)
    if rank == 5:
        return store.wait(["over"], LONG)
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=1) if rank == 0 else LONG)
    except RuntimeError as error:
        if rank == 0:
            assert "Rank 5 failed to pass monitoredBarrier" in str(error), error
            store.set("over", "")
    else:
        raise AssertionError("rank 5 was not missed")
    return None


def work(job: Callable[[int], None], rank: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                      WORLD_SIZE=str(WORLD), TORCHELASTIC_USE_AGENT_STORE="True")
    torch.set_num_threads(1)
    try:
        job(rank)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


class Groups(unittest.TestCase):
    def run_job(self, job: Callable[[int], None], rounds: int = 1) -> None:
        with Host(PROGRAM) as host:
            context = multiprocessing.get_context("fork")  # torch is imported once, not eight times
            for _ in range(rounds):
                workers = [context.Process(target=work, args=(job, rank, host.port))
                           for rank in range(WORLD)]
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()
                self.assertEqual([worker.exitcode for worker in workers], [0] * WORLD)
                self.assertEqual(host.command("statistics")["cut_off"], 0)
                # Without this, gloo would meet the addresses of the round before.
                self.assertEqual(host.command("afresh")["keys"], 0)

    def test_collectives_of_eight_workers_round_after_round(self) -> None:
        self.run_job(collective, rounds=2)

    def test_a_straggler_is_named(self) -> None:
        self.run_job(late_straggler)
