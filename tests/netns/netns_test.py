# SPDX-License-Identifier: Apache-2.0
"""Jobs of several hosts on networks that are slow, lose packets and break: real agents in network
namespaces. netns_test.py ELASTRUN STUB_WORKER"""
from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import lan
from agents import Agents, EtcdServer
from harness import Job, lives, stub, wait_until

SIDE_BY_SIDE = 4
HERE = Path(__file__).resolve().parent
REQUEUE = 75
PORT = 29400
if TROUBLE := lan.why_not():
    raise unittest.SkipTest(TROUBLE)
SAY = ["env=MASTER_ADDR", "env=MASTER_PORT", "env=RANK", "env=WORLD_SIZE",
       "env=TORCHELASTIC_RESTART_COUNT", "pid"]
# Connects, asks the workers' store for an answer, and says what came: a byte, or the end.
STRANGER = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 50) as store:
    store.sendall(bytes.fromhex("00cef7853c" "0d01020304"))
    try:
        print(store.recv(1) or "closed")
    except ConnectionResetError:
        print("closed")
"""


class Hosts(Agents):
    """Agents of one job, one on each host of a network."""

    HOSTS = 4
    TWO_INTERFACES = False

    def setUp(self) -> None:
        super().setUp()
        self.lan = self.stack.enter_context(lan.Lan(self.HOSTS, self.TWO_INTERFACES))
        self.where = ["--rdzv-backend=c10d", f"--rdzv-endpoint={lan.address(0)}:{PORT}"]
        self.conf = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"

    def agent(self, host: int, nodes: str, *words: str | Path, conf: str = "",
              options: tuple[str, ...] = ()) -> Job:
        # Whoever may be at work out of reach may also be saving: that is waited for as well.
        command = [*self.where, f"--nnodes={nodes}", "--rdzv-id=job", "--nproc-per-node=1",
                   "--shutdown-timeout=1", f"--rdzv-conf={self.conf}{conf}", *options,
                   *(words or self.until_go())]
        env = {"ELASTRUN_SECRET": "of the test", "LOGLEVEL": "INFO"}
        return self.stack.enter_context(Job(*command, env=env, before=self.lan.enter(host)))

    def until_go(self, *before: str) -> list[str]:
        return stub(*SAY, *before, f"wait={self.go}")

    def meet(self) -> list[str | Path]:
        return ["--no-python", sys.executable, "-u", HERE / "meet.py", self.go]

    def has_stopped(self, job: Job) -> bool:
        return not any(lives(int(pid)) for pid in job.lines(r"^pid (\d+)"))

    def silence(self, *hosts: int) -> None:
        """Cuts these off, and waits until one of them has tried in vain to be heard."""
        self.lan.cut(*hosts)
        wait_until(lambda: any(self.lan.dropped(host) for host in hosts), "packets are dropped")


class Weather(Hosts):
    """Delay and loss: nothing but time is lost. A longer keep-alive is the user's to set."""

    def go_through(self) -> None:
        self.conf = "last_call_timeout=2,keep_alive_interval=5,keep_alive_max_attempt=10"
        script = ["--no-python", sys.executable, "-u", HERE / "meet.py", self.go]
        jobs = [self.agent(host, "3", *script, options=("--max-restarts=1",)) for host in range(3)]
        for job in jobs:
            job.wait_for("^met 3$")
        victim = int(jobs[1].lines(r"^RANK=(\d)")[0])
        pids = [pid for pid in jobs[1].alive()
                if b"meet.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
                and pid not in (jobs[1].process.pid, jobs[1].agent())]
        self.assertEqual(len(pids), 1)
        os.kill(pids[0], signal.SIGKILL)
        for job in jobs:
            job.wait_for("^met 3$", 2)
            self.assertIn(f"rank {victim} ", job.errors())
        self.go_on(*jobs)
        for job in jobs:
            self.assertEqual(self.attempts(job), ["0", "1"])

    def test_100_to_200_ms_of_delay(self) -> None:
        self.lan.tell(delay=[0.1, 0.2])
        self.go_through()

    def test_15_percent_of_loss(self) -> None:
        self.lan.tell(delay=[0.001, 0.02], loss=0.15)
        self.go_through()
        self.assertGreater(self.lan.tell()["lost"], 0)

    def test_an_interruption_shorter_than_the_keep_alive_disturbs_nobody(self) -> None:
        self.conf = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=20"
        jobs = [self.agent(host, "2:3") for host in range(3)]
        self.world(*jobs, size=3)
        self.silence(2)
        before = self.lan.dropped(2)
        # Some keep-alives of both sides have gone nowhere.
        wait_until(lambda: self.lan.dropped(2) > before + 2 and self.lan.dropped(0), "silence")
        self.lan.heal()
        self.go_on(*jobs)
        self.assertEqual([self.worlds(job) for job in jobs], [["3"]] * 3)


class SilentC10d(Hosts):
    def test_without_a_silent_member_the_others_go_on_and_it_gives_up(self) -> None:
        jobs = [self.agent(host, "2:3") for host in range(3)]
        self.world(*jobs, size=3)
        self.silence(2)
        self.world(*jobs[:2], size=2, times=2)
        self.all_end(jobs[2], code=REQUEUE)
        self.assertEqual(self.worlds(jobs[2]), ["3"])
        self.assertIn("silent for 3.0 s", jobs[2].errors())
        # The network is whole again: another agent on that host takes the place.
        self.lan.heal()
        jobs[2] = self.agent(2, "2:3")
        self.world(*jobs, size=3)
        self.go_on(*jobs)
        self.assertEqual(set(self.attempts(jobs[0])), {"0"})

    def test_without_the_host_of_the_rendezvous_or_below_the_minimum_all_stop(self) -> None:
        for silent, nodes in ((0, "2:3"), (2, "3")):
            jobs = [self.agent(host, nodes, conf=",join_timeout=4") for host in range(3)]
            self.world(*jobs, size=3)
            self.silence(silent)
            self.all_end(*jobs, code=REQUEUE)
            self.assertEqual([self.worlds(job) for job in jobs], [["3"]] * 3)
            self.lan.heal()

    def test_at_the_end_no_node_stays_for_a_host_that_is_gone(self) -> None:
        saver = HERE.parent / "elastic" / "saver.py"
        jobs = [self.agent(host, "2", "--no-python", sys.executable, "-S", saver, self.folder,
                           options=("--shutdown-timeout=600",)) for host in range(2)]
        self.world(*jobs, size=2)
        server = next(job for job in jobs if job.lines("^GROUP_RANK=0"))
        self.silence(1 - jobs.index(server))
        server.process.send_signal(signal.SIGTERM)
        self.assertNotEqual(server.end(), 0)
        self.assertIn("it stays until they have ended", server.errors())
        self.go.touch()
        (self.folder / "saved").touch()


class SilentElected(Hosts):
    """The register (a file that all can read, or etcd on the last host) outlives the network."""

    HOSTS = 5
    ETCD = 4
    LEASE = ",lease_ttl=4"

    def by_etcd(self) -> None:
        if not shutil.which("etcd"):
            self.skipTest("no etcd in PATH (Debian: etcd-server)")
        etcd = EtcdServer(self.folder, address=lan.address(self.ETCD),
                          before=self.lan.enter(self.ETCD))
        self.where = etcd.where
        self.stack.callback(etcd.end)

    def agents(self, nodes: str, count: int, size: int = 0) -> list[Job]:
        """The first one coordinates. Returns when the world of that size, or of all, works."""
        own = [(f"--local-addr={lan.address(host)}",) for host in range(count)]
        first = self.agent(0, nodes, conf=self.LEASE, options=own[0])
        wait_until(lambda: "coordinates the job" in first.errors() or first.process.poll(),
                   f"the first is elected:\n{first.errors()}")
        jobs = [first] + [self.agent(host, nodes, conf=self.LEASE, options=own[host])
                          for host in range(1, count)]
        if not size:
            self.world(*jobs, size=count)
        wait_until(lambda: sum(bool(self.worlds(job)) for job in jobs) == (size or count),
                   "a world works")
        return jobs

    def heal_and_end(self, jobs: list[Job]) -> None:
        self.lan.heal()
        self.world(*jobs, size=len(jobs), times=2)
        self.go_on(*jobs)
        for job in jobs:
            self.assertEqual(set(self.attempts(job)), {"0"})

    def lose(self, host: int, nodes: str = "2:3") -> None:
        jobs = self.agents(nodes, 3)
        others = [job for job in jobs if job is not jobs[host]]
        self.silence(host)
        self.world(*others, size=2, times=2)
        wait_until(lambda: self.has_stopped(jobs[host]), "the one that is cut off stops its worker")
        self.assertEqual(self.worlds(jobs[host]), ["3"])
        self.heal_and_end(jobs)

    def test_a_file_and_a_member_cut_off(self) -> None:
        self.by_file()
        self.lose(2)

    def test_etcd_and_a_member_cut_off(self) -> None:
        self.by_etcd()
        self.lose(2)

    def test_etcd_and_the_coordinator_cut_off(self) -> None:
        self.by_etcd()
        self.lose(0)

    def test_a_file_and_the_coordinator_cut_off(self) -> None:
        # It reaches the register as before, and renews its lease.
        self.by_file()
        self.lose(0)

    def test_a_file_and_a_coordinator_cut_off_that_would_be_enough(self) -> None:
        self.by_file()
        self.lose(0, "1:3")

    def test_a_file_and_a_first_node_that_nobody_reaches(self) -> None:
        self.by_file()
        self.lan.cut(0)
        jobs = [self.agent(0, "2:3", conf=self.LEASE)]
        wait_until(lambda: "coordinates the job" in jobs[0].errors(), "the first is elected")
        jobs += [self.agent(host, "2:3", conf=self.LEASE) for host in (1, 2)]
        self.world(*jobs[1:], size=2)
        self.lan.heal()
        self.world(*jobs, size=3)
        self.go_on(*jobs)

    def test_etcd_and_a_partition_with_enough_nodes_on_both_sides(self) -> None:
        self.by_etcd()
        jobs = self.agents("2:4", 4)
        self.silence(0, 1)
        # The side of the old coordinator may go on for the rest of its lease, not longer.
        self.world(*jobs[2:], size=2, times=2)
        for job in jobs[:2]:
            self.assertTrue(self.has_stopped(job), job.errors())
        self.heal_and_end(jobs)

    def test_an_etcd_out_of_reach_disturbs_nobody(self) -> None:
        self.by_etcd()
        jobs = self.agents("2:3", 3)
        self.lan.cut(self.ETCD)
        over = time.monotonic() + 6
        wait_until(lambda: self.lan.dropped(0) and time.monotonic() > over, "the lease is over")
        self.assertEqual([self.worlds(job) for job in jobs], [["3"]] * 3)
        self.lan.heal()
        self.go_on(*jobs)
        self.assertEqual([self.worlds(job) for job in jobs], [["3"]] * 3)

    def test_etcd_and_a_whole_world_cut_off_from_its_spares(self) -> None:
        self.by_etcd()
        self.conf += ",isolation_timeout=10"
        jobs = self.agents("2:2", 4, size=2)
        world = [job for job in jobs if self.worlds(job)]
        spares = [job for job in jobs if job not in world]
        # The first one coordinates; it is in the world, or is not.
        self.silence(*(jobs.index(job) for job in world))
        began = time.monotonic()
        self.world(*spares, size=2)
        for job in world:
            self.assertTrue(self.has_stopped(job), job.errors())
        if jobs[0] in world:
            self.assertGreater(time.monotonic() - began, 10)
        self.go_on(*spares)
        # Who comes back now hears that the job is over, and does not begin it anew.
        self.lan.heal()
        self.all_end(*world)
        for job in world:
            self.assertIn("the other nodes have finished the job without this one", job.errors())
        self.assertEqual([len(self.worlds(job)) for job in world + spares], [1] * 4)

    def test_an_etcd_out_of_reach_for_long_stops_the_world_until_it_is_back(self) -> None:
        self.by_etcd()
        self.conf += ",isolation_timeout=8"
        jobs = self.agents("2:3", 3)
        self.lan.cut(self.ETCD)
        for job in jobs:
            wait_until(lambda j=job: self.has_stopped(j), "workers stop")
            self.assertIn("could not renew its election", job.errors())
            self.assertIn("isolation_timeout", job.errors())
        self.heal_and_end(jobs)


class RendezvousChoice(Hosts):
    def stranger(self, host: int, at: str, port: str) -> str:
        return subprocess.run([sys.executable, "-c", STRANGER, at, port], text=True,
                              capture_output=True, check=True,
                              preexec_fn=self.lan.enter(host)).stdout.strip()

    def master(self, *jobs: Job) -> tuple[str, str]:
        """Address and port of the workers' store: the same for all, and all have met there."""
        for job in jobs:
            job.wait_for(rf"^met {len(jobs)}$")
        found = {tuple(job.lines(r"^MASTER_(?:ADDR|PORT)=(.*)")) for job in jobs}
        self.assertEqual(len(found), 1, found)
        return found.pop()  # type: ignore[return-value]


class Addresses(RendezvousChoice):
    def all_meet(self, *options: str, six: bool = False, conf: str = "") -> tuple[str, str]:
        jobs = [self.agent(host, "3", *self.meet(), options=options, conf=conf)
                for host in range(3)]
        at, port = self.master(*jobs)
        rank0 = next(host for host, job in enumerate(jobs) if job.lines(r"^RANK=(\d)") == ["0"])
        self.assertEqual(at, (lan.address6 if six else lan.address)(rank0))
        # Somebody of the job is heard, a host that is not in the job is not.
        self.assertNotEqual(self.stranger(rank0 + 1 if rank0 < 2 else 0, at, port), "closed")
        self.assertEqual(self.stranger(3, at, port), "closed")
        wait_until(lambda: re.search(r"refused \S+: no node of this job", jobs[rank0].errors()),
                   f"the refusal is logged:\n{jobs[rank0].errors()}")
        self.go_on(*jobs)
        return at, port

    def test_the_master_address_is_the_one_that_others_reach(self) -> None:
        # Each host has an address of a bridge too, alike everywhere and of no use to others.
        self.all_meet()

    def test_no_stranger_gets_to_the_store_by_the_port_of_the_rendezvous(self) -> None:
        job = [self.agent(host, "2", *self.meet()) for host in range(2)]
        self.master(*job)
        self.assertEqual(self.stranger(3, lan.address(0), str(PORT)), "closed")
        self.go_on(*job)

    def test_no_stranger_gets_to_the_store_of_a_world_of_one(self) -> None:
        first = self.agent(0, "1:2", *self.meet())
        at, port = self.master(first)
        self.assertEqual(self.stranger(3, at, port), "closed")
        # Who is no stranger any more comes with the next round.
        second = self.agent(1, "1:2", *self.meet())
        second.wait_for("^met 2$")
        first.wait_for("^met 2$")
        at, port = second.lines(r"^MASTER_(?:ADDR|PORT)=(.*)")
        self.assertEqual(self.stranger(3, at, port), "closed")
        self.go_on(first, second)

    def test_a_member_that_is_known_by_name_opens_the_store_to_nobody_else(self) -> None:
        named = (), ("--local-addr=nobody.knows.invalid",)
        jobs = [self.agent(host, "2", *self.meet(), options=options)
                for host, options in enumerate(named)]
        at, port = self.master(*jobs)
        self.assertEqual(at, lan.address(0))
        self.assertEqual(self.stranger(3, at, port), "closed")
        self.go_on(*jobs)

    def test_a_port_or_a_range_of_ports(self) -> None:
        for said, known in (("29777", ["29777"]), ("29800-29803", map(str, range(29800, 29804)))):
            self.go.unlink(missing_ok=True)
            self.assertIn(self.all_meet(conf=f",store_port={said}")[1], known)

    @unittest.skipUnless(lan.has_six(), "this kernel has no IPv6")
    def test_six(self) -> None:
        self.where[1] = f"--rdzv-endpoint=[{lan.address6(0)}]:{PORT}"
        self.all_meet(six=True)

    def test_static_ranks(self) -> None:
        self.where = [f"--master-addr={lan.address(0)}", "--master-port=29500"]
        jobs = [self.agent(host, "3", *self.meet(), options=(f"--node-rank={host}",))
                for host in range(3)]
        self.assertEqual(self.master(*jobs), (lan.address(0), "29500"))
        self.assertEqual(self.stranger(3, lan.address(0), "29500"), "closed")
        self.go_on(*jobs)

    def test_a_file_does_not_know_the_network_but_each_host_its_address(self) -> None:
        # There is no default route, and the bridge's address is of no use.
        self.by_file()
        jobs = [self.agent(host, "3", *self.meet()) for host in range(3)]
        self.assertIn(self.master(*jobs)[0], [lan.address(host) for host in range(3)])
        self.go_on(*jobs)


class TwoInterfaces(RendezvousChoice):
    """Hosts with two networks and no default route, and a register that is no host."""

    HOSTS = 2
    TWO_INTERFACES = True

    def test_the_user_is_asked_which(self) -> None:
        self.by_file()
        lost = self.agent(0, "2", *self.meet())
        self.all_end(lost, code=1)
        self.assertIn(f"{lan.address(0)} (eth0)", lost.errors())
        self.assertRegex(lost.errors(), rf"{lan.second_address(0)} \(ib0\).*give --local-addr")
        # The first one has been told; the second one finds the way to it by itself.
        own = (f"--local-addr={lan.address(0)}",)
        jobs = [self.agent(0, "2", *self.meet(), options=own)]
        wait_until(lambda: "coordinates the job" in jobs[0].errors(), "the first is elected")
        jobs.append(self.agent(1, "2", *self.meet()))
        self.assertIn(self.master(*jobs)[0], [lan.address(host) for host in range(2)])
        self.go_on(*jobs)


class Starts(RendezvousChoice):
    """Two nodes that name the first one differently, as torchrun lets them: a job that starts."""

    HOSTS = 3
    TWO_INTERFACES = True
    HEAD, OTHER = lan.address(0), (f"--master-addr={lan.address(0)}", "--node-rank=1")

    def node(self, host: int, *options: str, env: dict[str, str] | None = None,
             worker: list[str | Path] | None = None, hosts: str = "",
             secret: str = "of the test", nodes: str = "2") -> Job:
        words = [*(("--nnodes", nodes) if nodes else ()), *options, *(worker or self.meet())]
        enter, file = self.lan.enter(host), self.folder / "hosts"
        if hosts:
            file.write_text(hosts)

        def before() -> None:
            enter()
            if hosts:
                lan.replace_file(file, "/etc/hosts")
        env = {"LOGLEVEL": "INFO", "ELASTRUN_SECRET": secret} | (env or {})
        return self.stack.enter_context(Job(*words, env=env, before=before))

    def meets(self, head: Job, other: Job) -> tuple[list[str], list[str]]:
        """What each one's worker has for the address and the port of the store that both reach."""
        for job in (head, other):
            job.wait_for("^met 2$")
        found = tuple(job.lines(r"^MASTER_(?:ADDR|PORT)=(.*)") for job in (head, other))
        self.go_on(head, other)
        return found  # type: ignore[return-value]

    def static(self, *head: str, hosts: str = "", other: tuple[str, ...] = OTHER,
               ) -> tuple[list[str], list[str]]:
        return self.meets(self.node(0, *head, hosts=hosts), self.node(1, *other))

    def test_heads_that_name_themselves_otherwise(self) -> None:
        """Not at all, as torch's own documents have it, by loopback or by all addresses."""
        second, head = lan.second_address(0), "--master-addr={}".format
        for words, told in (([], self.HEAD), ([head("localhost")], self.HEAD),
                            ([head("127.0.0.1"), f"--local-addr={self.HEAD}"], self.HEAD),
                            ([head("0.0.0.0")], self.HEAD), ([head(second)], second),
                            *([([head("::")], self.HEAD)] if lan.has_six() else [])):
            with self.subTest(words):
                self.go.unlink(missing_ok=True)
                self.assertEqual(self.static(*words), ([told, "29500"], [self.HEAD, "29500"]))

    def test_a_name_that_its_own_file_of_hosts_knows(self) -> None:
        for address in (self.HEAD, "127.0.1.1"):
            with self.subTest(address):
                self.go.unlink(missing_ok=True)
                told = self.static("--master-addr=head", hosts=f"{address} head\n")
                self.assertEqual(told, (["head", "29500"], [self.HEAD, "29500"]))

    def test_a_port_that_is_forwarded_by_the_head(self) -> None:
        self.forward(self.HEAD, 31000, self.HEAD, 29500, self.lan.enter(0))
        told = self.static(f"--master-addr={self.HEAD}", other=(*self.OTHER, "--master-port=31000"))
        self.assertEqual(told, ([self.HEAD, "29500"], [self.HEAD, "31000"]))

    def test_a_tunnel(self) -> None:
        self.forward("127.0.0.1", 31000, self.HEAD, 29500, self.lan.enter(1))
        told = self.static(f"--master-addr={self.HEAD}", other=(
            "--node-rank=1", "--master-addr=localhost", "--master-port=31000"))
        self.assertEqual(told, ([self.HEAD, "29500"], ["localhost", "31000"]))

    def pods(self, *variables: dict[str, str]) -> None:
        """A pod each, with what its operator has set."""
        jobs = [self.node(host, nodes="", env={"KUBERNETES_SERVICE_HOST": "10.0.0.1"} | own,
                          hosts=f"127.0.0.1 localhost\n{self.HEAD} job-master-0\n")
                for host, own in enumerate(variables)]
        for told in self.meets(*jobs):
            self.assertIn(told[0], [lan.address(host) for host in range(2)])

    def test_an_operator_that_tells_the_master_localhost(self) -> None:
        world = {"WORLD_SIZE": "2", "MASTER_PORT": "23456"}
        self.pods(world | {"MASTER_ADDR": "localhost", "RANK": "0", "HOSTNAME": "machine7"},
                  world | {"MASTER_ADDR": "job-master-0", "RANK": "1"})

    def test_an_operator_that_tells_torchruns_master_localhost(self) -> None:
        world = {"PET_NNODES": "2", "PET_MASTER_PORT": "23456"}
        self.pods(world | {"PET_MASTER_ADDR": "localhost", "PET_NODE_RANK": "0", "HOSTNAME": "m"},
                  world | {"PET_MASTER_ADDR": self.HEAD, "PET_NODE_RANK": "1"})

    def test_address_rank_and_size_alone(self) -> None:
        self.pods(*({"MASTER_ADDR": self.HEAD, "RANK": rank, "WORLD_SIZE": "2"} for rank in "01"))

    def test_c10d_at_addresses_of_the_host_alone(self) -> None:
        host = "--rdzv-conf=is_host=1"
        for head, *options in (["localhost"], ["localhost", host], ["127.0.0.1"], ["0.0.0.0"],
                               *([["[::]", host]] if lan.has_six() else [])):
            with self.subTest(head, options=options):
                self.go.unlink(missing_ok=True)
                jobs = [self.node(number, "--rdzv-backend=c10d", f"--rdzv-endpoint={at}:{PORT}",
                                  *own)
                        for number, at, own in ((0, head, options), (1, self.HEAD, ()))]
                heads, others = self.meets(*jobs)
                self.assertEqual(heads, others)
                # The lower address, however it names itself.
                self.assertEqual(others[0], self.HEAD)

    def trains(self, head: tuple[str, ...], other: tuple[str, ...]) -> None:
        if importlib.util.find_spec("torch") is None:
            self.skipTest("no torch for this Python")
        worker = ["--no-python", sys.executable, "-u", HERE / "ddp.py"]
        jobs = [self.node(host, *own, worker=worker, env={"GLOO_SOCKET_IFNAME": "eth0"})
                for host, own in enumerate((head, other))]
        for job in jobs:
            job.wait_for("^trained 2$")
        self.all_end(*jobs)

    def test_ddp(self) -> None:
        """Node 0 without an address, and c10d at localhost."""
        self.trains((), self.OTHER)
        self.trains(("--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{PORT}"),
                    ("--rdzv-backend=c10d", f"--rdzv-endpoint={self.HEAD}:{PORT}"))

    def test_one_node_stays_on_loopback(self) -> None:
        job = self.node(0, "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{PORT}", nodes="1")
        job.wait_for("^met 1$")
        at = {"127.0.0.1": 0, self.HEAD: 1}
        for address, expected in at.items():
            tried = subprocess.run([sys.executable, "-c", STRANGER, address, str(PORT)],
                                   capture_output=True, preexec_fn=self.lan.enter(0))
            self.assertEqual(tried.returncode, expected, address)
        self.go_on(job)

    def test_who_waits_on_loopback_is_told_what_the_others_need(self) -> None:
        waits = self.node(0)
        wait_until(lambda: "which other machines cannot reach: " in waits.errors(), "the hint",
                   waits.errors)
        for address in (self.HEAD, lan.second_address(0)):
            self.assertIn(f"--master-addr {address} --master-port 29500", waits.errors())
        self.assertIn("--master-addr is not given", waits.errors())
        self.meets(waits, self.node(1, *self.OTHER))

    def test_without_a_secret_the_warning_names_the_port(self) -> None:
        jobs = self.node(0, secret=""), self.node(1, *self.OTHER, secret="")
        self.meets(*jobs)
        self.assertIn("anyone who reaches port 29500 of this machine", jobs[0].errors())
