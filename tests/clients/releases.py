#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""releases.py ELASTRUN FOLDER RELEASE...: the launcher tests of clients_test.py with these releases
of torch, and a job of two workers over elastrun's store, each in an environment FOLDER/RELEASE.
pip makes those that are not there, of 5 GB each, so that this is not a part of the test suite. The
lines are those of the table in README.md. Exit code 1 if something failed.

    python3 tests/clients/releases.py build/release/apps/elastrun /tmp/torches 2.4.1 2.14.1
"""
from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# A worker of each release against the store that elastrun serves.
STORE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
store = dist.distributed_c10d._get_default_store()
store.set(f"of {dist.get_rank()}", torch.__version__)
seen = {store.get(f"of {rank}").decode() for rank in range(dist.get_world_size())}
os.write(1, f"sum {total.item():g} {' '.join(seen)}\\n".encode())
dist.destroy_process_group()
"""


def environment(folder: Path, release: str) -> Path:
    python = folder / release / "bin/python3"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder / release], check=True)
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode != 0:
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-cache-dir", f"torch=={release}",
                        "numpy<2.2", "setuptools"], check=True)
    return python


def run(python: Path, elastrun: Path) -> list[str]:
    """What was seen: the launcher's tests, and a job over elastrun's store."""
    words = [HERE.parent / "run.py", HERE / "clients_test.py", elastrun, "Torch"]
    tests = subprocess.run([python, "-B", *words], capture_output=True, text=True, timeout=1200)
    count = re.search(r"Ran (\d+) tests", tests.stderr)
    passed = tests.stderr[-3000:]
    if tests.returncode == 0 and count:
        passed = f"{count[1]} of {count[1]}"
    script = python.parents[1] / "store.py"
    script.write_text(STORE)
    job = subprocess.run([elastrun, "--nproc-per-node=2", script], capture_output=True, text=True,
                         timeout=600, env={"PATH": f"{python.parent}:/usr/bin:/bin",
                                           "CUDA_VISIBLE_DEVICES": ""})
    version = subprocess.run([python, "-c", "import torch; print(torch.__version__)"],
                             capture_output=True, text=True).stdout.strip()
    sums = [line for line in job.stdout.splitlines() if line.startswith("sum")]  # gloo prints, too
    meets = sums == [f"sum 3 {version}"] * 2 and job.returncode == 0
    return [version, passed, "yes" if meets else job.stdout + job.stderr[-3000:]]


def main() -> None:
    elastrun, folder = (Path(word).resolve() for word in sys.argv[1:3])
    rows = []
    for release in sys.argv[3:]:
        rows.append(run(environment(folder, release), elastrun))
        print(*rows[-1], sep=" | ", flush=True)
    sys.exit(any(" of " not in tests or meets != "yes" for _, tests, meets in rows))


if __name__ == "__main__":
    main()
