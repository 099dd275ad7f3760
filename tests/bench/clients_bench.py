#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""clients_bench.py ELASTRUN [TIMES]: what the import hook costs a program that never launches, and
`accelerate launch` of two workers that do nothing, or that import torch, with the hook and without
it, in turns. Needs torch and accelerate in the Python of this script."""
from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# site.addpackage reads and runs one .pth file; another was read before, as in every environment.
COST = """
import site, sys, time
folder, name = sys.argv[1:]
site.addpackage(folder, "another.pth", set())
begin = time.perf_counter_ns()
site.addpackage(folder, name, set())
print((time.perf_counter_ns() - begin) / 1e6)
"""
COMMAND = "import sys\nfrom accelerate.commands.accelerate_cli import main\nsys.exit(main())\n"
WORDS = ("launch", "--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no",
         "--dynamo_backend=no")
WORKERS = {"that do nothing": "", "that import torch": "import torch\n"}


def shown(name: str, figures: list[float], unit: str) -> None:
    print(f"{name}: min {min(figures):.3f}, median {statistics.median(figures):.3f} {unit}, "
          f"{len(figures)} times", flush=True)


def measured(words: list[str], folder: Path, env: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU time of all its processes, in seconds; the second is less a matter of load."""
    before, begin = os.times(), time.monotonic()
    subprocess.run(words, cwd=folder, check=True, env=env, capture_output=True)
    wall, after = time.monotonic() - begin, os.times()
    return wall, sum(after[2:4]) - sum(before[2:4])


def hook_costs(python: str, packages: Path, times: int) -> None:
    (packages / "another.pth").write_text("import sys\n")
    (packages / "empty.pth").write_text("\n")
    hook = packages / "elastrun-torchrun.pth"
    hook.write_text(hook.read_text().splitlines()[-1] + "\n")
    found = [[float(subprocess.run([python, "-S", "-c", COST, packages, name], check=True,
                                   text=True, capture_output=True).stdout)
              for name in ("empty.pth", hook.name)] for _ in range(times)]
    shown("hook in a program that never launches, in all", [one[1] for one in found], "ms")
    shown("  an empty .pth file", [one[0] for one in found], "ms")
    shown("  beyond that, by pairs", [one[1] - one[0] for one in found], "ms")


def main() -> None:
    program, times = Path(sys.argv[1]).resolve(), int((sys.argv[2:] or ["5"])[0])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place = folder / "env"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
        [packages] = place.glob("lib/python*/site-packages")
        base = sysconfig.get_path("purelib")
        (packages / "base.pth").write_text(
            f"import site; site.addsitedir({base!r})\n")
        # In the environment and compiled, as pip leaves it.
        shutil.copytree(ROOT / "lib/python/elastrun", packages / "elastrun")
        subprocess.run([sys.executable, "-m", "compileall", "-q", packages / "elastrun"],
                       check=True)
        shutil.copy(program, place / "bin/elastrun")
        python = str(place / "bin/python3")
        subprocess.run([python, "-m", "elastrun.install_torchrun"], check=True,
                       stdout=subprocess.DEVNULL)
        hook_costs(python, packages, 20 * times)
        command = place / "bin/accelerate"
        command.write_text(COMMAND)
        env = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        for what, text in WORKERS.items():
            (folder / "worker.py").write_text(text)
            figures: dict[str, list[tuple[float, float]]] = {"0": [], "1": []}
            for _ in range(times):
                for switch, found in figures.items():
                    found.append(measured(
                        [python, str(command), *WORDS, "worker.py"], folder,
                        env | {"ELASTRUN_TORCHRUN": switch}))
            for at, unit in enumerate(("s", "s of CPU time")):
                theirs, ours = ([one[at] for one in found] for found in figures.values())
                shown(f"accelerate launch, 2 workers {what}, torch's launcher", theirs, unit)
                shown(f"accelerate launch, 2 workers {what}, elastrun", ours, unit)
                shown("  saved by pairs", [one - other for one, other in zip(theirs, ours)], unit)


if __name__ == "__main__":
    main()
