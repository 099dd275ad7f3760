# SPDX-License-Identifier: Apache-2.0
"""A real Slurm of two nodes on this machine: a slurmctld, two slurmd, on free loopback ports."""
from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo")
NODES = ("n1", "n2")
START_LIMIT = 30.0  # seconds until both nodes must be idle

_CONF = """\
ClusterName=elastrun
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmctldPort={ctld}
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldPidFile={dir}/ctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmctldLogFile={dir}/ctld.log
SlurmdLogFile={dir}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
JobRequeue=1
ReturnToService=2
KillWait=5
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1} CPUs=2 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2} CPUs=2 RealMemory=1000
PartitionName=p Nodes=n1,n2 Default=YES State=UP MaxTime=INFINITE OverSubscribe=YES
"""


def obstacle() -> str:
    """Why Slurm cannot be started here; empty if it can."""
    if os.geteuid() != 0:
        return "slurmctld and slurmd need root here"
    missing = [p for p in PROGRAMS if not shutil.which(p)]
    if not missing:
        return ""
    return f"not installed: {', '.join(missing)} (Debian: slurmctld slurmd slurm-client)"


def _free_ports(count: int) -> list[int]:
    """Below the range from which the kernel takes ports for connections: nothing takes them between
    this look and the daemons' start."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(20000, 32000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
    return ports


class Cluster:
    """`with Cluster(folder) as slurm: slurm.run("srun", ...)`; the daemons end with the block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        host = socket.gethostname().split(".")[0]
        ctld, n1, n2 = _free_ports(3)
        (folder / "state").mkdir()
        for node in NODES:
            (folder / f"spool-{node}").mkdir()
        self.conf = folder / "slurm.conf"
        self.conf.write_text(_CONF.format(host=host, dir=folder, ctld=ctld, n1=n1, n2=n2))
        self.env = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Cluster":
        try:
            self._start("slurmctld", "-D", "-c")
            for node in NODES:
                self._start("slurmd", "-D", "-c", "-N", node)
            self._wait_until_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def run(self, *command: str, limit: float = 60,
            **more: object) -> subprocess.CompletedProcess[str]:
        """One Slurm command, its output as text."""
        env = {**self.env, **more.pop("env", {})}  # type: ignore[dict-item]
        return subprocess.run(command, env=env, text=True, capture_output=True, timeout=limit,
                              **more)

    def logs(self) -> str:
        """The ends of all logs, for the report of a failed test."""
        parts = [f"--- {p.name}\n" + p.read_text(errors="replace")[-2000:]
                 for p in self.folder.glob("*.log")]
        return "\n".join(parts)

    def _start(self, *command: str) -> None:
        out = (self.folder / "daemons.out").open("ab")
        self._daemons.append(
            subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=out,
                             stderr=out)
        )

    def _wait_until_idle(self) -> None:
        end = time.monotonic() + START_LIMIT
        while time.monotonic() < end:
            answer = self.run("sinfo", "-h", "-N", "-o", "%N %t")
            if answer.stdout.split() == ["n1", "idle", "n2", "idle"]:
                return
            if any(d.poll() is not None for d in self._daemons):
                break
            time.sleep(0.1)
        raise RuntimeError("the Slurm nodes did not become idle\n" + self.logs())
