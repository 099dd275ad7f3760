# SPDX-License-Identifier: Apache-2.0
"""Ranks by topology, as a user of several nodes meets them.
topology_test.py ELASTRUN STUB_WORKER"""
from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

from harness import STUB, Job
from jobs_test import CTL, INFO, Elastic
from ports import free_port

SAY = ["env=GROUP_RANK", "env=WORLD_SIZE"]
# What Slurm says on a node of a tree of switches, beside the node's name.
TREE = "switch.switch.node"


class Topology(Elastic):
    def member(self, nodes: str, *options: str, env: dict[str, str] | None = None) -> Job:
        return self.agent(nodes, *SAY, f"wait={self.go}", env=INFO | (env or {}),
                          options=("--rank-order=topology", *options))

    def ranks(self, *jobs: Job) -> list[int]:
        return [int(job.lines(r"^GROUP_RANK=(\d+)")[-1]) for job in jobs]

    def become_spare(self, nodes: str, *options: str) -> Job:
        spare = self.member(nodes, *options)
        spare.wait_for("is a spare", 1, spare.err)
        return spare

    def status(self, *options: str) -> str:
        return subprocess.run([CTL, "status", *options, self.where[1].split("=")[1]], text=True,
                              capture_output=True, timeout=60, check=True).stdout

    def test_given_addresses_and_a_spare_of_the_lost_nodes_rack(self) -> None:
        first = self.host("4", *SAY, f"wait={self.go}", env=INFO,
                          options=("--rank-order=topology", "--topology=rack10.node1"))
        others = [self.member("4", f"--topology={place}")
                  for place in ("rack9.node2", "rack10.node2", "rack9.node1")]
        self.world(first, *others, size=4)
        self.assertEqual(self.ranks(first, *others), [2, 1, 3, 0])
        self.assertIn("the address of this node is rack10.node1 (--topology on the command line)",
                      first.errors())
        far = self.become_spare("4", "--topology=rack11.node1")
        near = self.become_spare("4", "--topology=rack9.node7")
        self.kill(others[2])  # rack9.node1, rank 0
        near.wait_for(r"^WORLD_SIZE=4")
        for job in (first, *others[:2]):
            job.wait_for(r"^WORLD_SIZE=4", 2)
        self.assertEqual(self.ranks(first, *others[:2], near), [2, 1, 3, 0])
        self.assertRegex(self.status(), r"(?m) 0 +rack9\.node7 *$")
        told = json.loads(self.status("--json"))["jobs"][0]
        self.assertEqual(told["rank_order"], "topology")
        self.assertEqual({node["topology"]: node.get("group_rank") for node in told["nodes"]},
                         {"rack9.node7": 0, "rack9.node2": 1, "rack10.node1": 2, "rack10.node2": 3,
                          "rack11.node1": None})
        self.go_on(first, *others[:2], near, far)
        self.assertEqual(far.output(), "")

    def test_what_slurm_and_the_driver_tell(self) -> None:
        library = self.folder / "libnvidia-ml.so.1"
        library.symlink_to(Path(STUB).with_name("libfake_nvml.so"))
        gpus = {"LD_LIBRARY_PATH": str(self.folder)}
        places = [("s0.s2.n3", "2"), ("s0.s1.n9", "1"), ("s0.s1.n10", "1"), ("s0.s2.n1", "1")]
        slurm = gpus | {"SLURM_TOPOLOGY_ADDR_PATTERN": TREE}
        jobs = [self.member("4", env=slurm | {"FAKE_NVML_CLIQUE": clique,
                                              "SLURM_TOPOLOGY_ADDR": place})
                for place, clique in places]
        self.world(*jobs, size=4)
        ranks = self.ranks(*jobs)
        # n9 and n10 are one host here, and of one domain: which of both is first, pids decide.
        self.assertEqual((ranks[0], sorted(ranks[1:3]), ranks[3]), (3, [0, 1], 2))
        self.assertRegex(jobs[0].errors(), r"address of this node is s0\.s2\.nvlink-ab0+1-2 "
                         r"\(SLURM_TOPOLOGY_ADDR, NVLink\)")
        self.go_on(*jobs)

    def test_a_node_whose_store_port_was_taken_says_by_whom(self) -> None:
        # By topology, so that the first node serves the store, and the second gives its port back.
        port, steps = free_port(), (*SAY, "attempt=0", f"wait={self.go}", "exit=3")
        options = ("--rank-order=topology", "--restart-policy=auto", "--max-restarts=1")
        host = self.host("1:2", *steps, options=(*options, "--topology=a"))
        other = self.agent("1:2", *steps, options=(*options, "--topology=b"),
                           conf=f"last_call_timeout=1,store_port={port}")
        self.world(host, other, size=2)
        self.assertEqual(self.ranks(host, other), [0, 1])
        with socket.create_server(("127.0.0.1", port)):
            self.go.touch()
            self.assertEqual(other.end(), 1, other.errors())
        self.assertRegex(other.errors(), "This node fails its check: cannot listen on "
                         rf"\S+:{port}: the port is in use by process {os.getpid()} ")
        self.all_end(host)
        self.assertEqual(host.lines(r"^WORLD_SIZE=(\d)"), ["2", "1"])
