#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Our TCPStore server beside torch's libuv server and a floor that only receives and sends,
repetition by repetition in turns, under the same load. One JSON line a measurement, for report.py.

    store_bench.py --bin BUILD/tests [--connections 1000] [--requests 100000] [--reps 3]
                   [--out FILE]

torch is left out, with a word on stderr, where this Python has none. Its server looks up the name
of each client: without a resolver that answers at once, that alone takes seconds.
"""
from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TORCH = """
import sys
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print("PORT", store.port, flush=True)
sys.stdin.read()
"""


@contextmanager
def server(command: list[str]) -> Iterator[tuple[int, int]]:
    """Port and process of a server that ends with its standard input."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    assert process.stdin and process.stdout
    try:
        yield int(process.stdout.readline().split()[1]), process.pid
    finally:
        process.stdin.close()
        process.wait(20)


def has_torch() -> bool:
    return subprocess.run([sys.executable, "-c", "import torch.distributed"],
                          capture_output=True, check=False).returncode == 0


def show(rows: list[dict[str, Any]]) -> None:
    """Medians, for a person who waits."""
    for op in dict.fromkeys(row["op"] for row in rows):
        for name in dict.fromkeys(row["launcher"] for row in rows):
            mine = [row for row in rows if row["op"] == op and row["launcher"] == name]
            keys = [k for k, v in mine[0].items() if not isinstance(v, str) and k != "connections"]
            medians = [f"{k} {statistics.median(row[k] for row in mine):g}" for k in keys]
            print(f"{op:9} {name:9} {'  '.join(medians)}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    servers = {"elastrun": [str(options.bin / "store_torch" / "store_host")],
               "floor": [str(options.bin / "bench" / "bench_floor_store")]}
    if has_torch():
        servers["torch"] = [sys.executable, "-c", TORCH]
    else:
        print("store_bench: no torch in this Python, our server alone", file=sys.stderr)
    load = str(options.bin / "bench" / "bench_store_load")
    rows: list[dict[str, Any]] = []
    for _ in range(options.reps):
        for name, command in servers.items():
            with server(command) as (port, pid):
                arguments = [load, *map(str, (port, pid, options.connections, options.requests))]
                done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True)
            rows += [{"row": "store", "launcher": name} | json.loads(line)
                     for line in done.stdout.splitlines()]
    show(rows)
    if options.out:
        with options.out.open("a") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
