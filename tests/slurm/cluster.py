# SPDX-License-Identifier: Apache-2.0
"""A real Slurm of two nodes on this machine: munged, slurmctld, two slurmd.

All of it runs in namespaces of its own: of processes, so that nothing outlives the test, of the
network, so that no port is anybody else's, and of mounts, so that /run/munge, where libmunge looks
for its daemon, and the names n1 and n2 are known in here alone.
"""
from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "netns"))
import lan  # noqa: E402

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo", "squeue",
            "scancel")
NODES = ("n1", "n2")
PORTS = {"ctld": 6817, "n1": 6818, "n2": 6819}  # in a network namespace of our own
START_LIMIT = 60.0  # seconds until both nodes must be idle
END_LIMIT = 60.0    # until all steps must have ended
CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

_CONF = """\
ClusterName=elastrun
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
CredType=cred/munge
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
    return f"not installed: {', '.join(missing)} (Debian: munge slurmctld slurmd slurm-client)"


class Unavailable(Exception):
    """Slurm cannot be started on this machine; the text says why."""


def _call(name: str, *words: object) -> None:
    if getattr(_LIBC, name)(*words) != 0:
        code = ctypes.get_errno()
        raise Unavailable(f"{name}: {os.strerror(code)}")


def _mount(source: bytes, target: str, kind: bytes | None, flags: int) -> None:
    _call("mount", source, os.fsencode(target), kind, flags, None)


def isolated(work: Callable[[], int]) -> int:
    """Runs `work` as the first process of its own namespaces; what it returns. Everything that it
    started is gone afterwards. Raises Unavailable where namespaces are refused."""
    sys.stdout.flush()
    _call("unshare", CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            _mount(b"none", "/", None, MS_REC | MS_PRIVATE)
            _mount(b"proc", "/proc", b"proc", 0)
            _mount(b"tmpfs", "/run", b"tmpfs", 0)
            # glibc finds no host by name where loopback is all there is (AI_ADDRCONFIG).
            lan.set_up("lo", "127.0.0.1")
            lan.set_up("lo:1", "10.77.0.1")
            code = work()
        except Unavailable as reason:
            print(f"SKIP: {reason}")
            code = 77
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Cluster:
    """`with Cluster(folder) as slurm: slurm.run("srun", ...)`; jobs and daemons end with the block.
    Only inside of isolated()."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        host = socket.gethostname().split(".")[0]
        (folder / "state").mkdir()
        for node in NODES:
            (folder / f"spool-{node}").mkdir()
        self.conf = folder / "slurm.conf"
        self.conf.write_text(_CONF.format(host=host, dir=folder, **PORTS))
        self.env = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Cluster":
        hosts = self.folder / "hosts"
        hosts.write_text(Path("/etc/hosts").read_text() + "\n127.0.0.1 n1\n127.0.0.2 n2\n")
        _mount(os.fsencode(hosts), "/etc/hosts", None, MS_BIND)
        try:
            self._start_munged()
            self._start("slurmctld", "-D", "-c")
            for node in NODES:
                self._start("slurmd", "-D", "-c", "-N", node)
            self._wait_until_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if len(self._daemons) == 4:
            self._end_jobs()
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

    def _end_jobs(self) -> None:
        """A slurmstepd that cannot tell its controller that it has ended stays for two minutes."""
        self.run("scancel", "--user=root")
        end = time.monotonic() + END_LIMIT
        while self.run("squeue", "-h").stdout and time.monotonic() < end:
            time.sleep(0.1)

    def _start_munged(self) -> None:
        socket_path = Path("/run/munge/munge.socket.2")
        socket_path.parent.mkdir(mode=0o755)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._start("munged", "--foreground", "--force", f"--key-file={key}",
                    f"--socket={socket_path}", f"--pid-file={self.folder}/munged.pid",
                    f"--log-file={self.folder}/munged.log",
                    f"--seed-file={self.folder}/munged.seed")
        end = time.monotonic() + START_LIMIT
        while not socket_path.exists():
            if self._daemons[0].poll() is not None or time.monotonic() > end:
                raise Unavailable("munged does not start\n" + self.logs())
            time.sleep(0.05)

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
        raise Unavailable("the Slurm nodes did not become idle\n" + self.logs())
