#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of others in an environment in which torch's launcher is elastrun.

    # The suites: launcher agent seeds accelerate torchx nvrx
    tests/clients/upstream.py ELASTRUN FOLDER [SUITE ...]
    tests/clients/upstream.py ELASTRUN FOLDER --original  # against torch's, to compare

They are not in this repository: FOLDER holds checkouts, or parts of them, named pytorch,
accelerate, torchx and nvidia-resiliency-ext. What is missing is told and left out. The Python of
this script needs torch, pytest and what the suites import (expecttest, python-etcd and etcd in PATH
for PyTorch's, torchx for its own). EXPECTED says which tests cannot pass, and why.
"""
from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 1800  # seconds for one file, unless --limit says otherwise


class Suite(NamedTuple):
    checkout: str
    inside: str  # where pytest is started
    files: tuple[str, ...]  # of each the first name that is there: they have been renamed
    chosen: str = ""  # pytest -k
    imports: tuple[tuple[str, str], ...] = ()  # replaced, where the hook alone would change nothing


# The hook replaces launch_agent; who builds an agent in Python imports ours. etcd's server of the
# tests stays torch's.
AGENT_IMPORTS = (("torch.distributed.elastic.agent", "elastrun.agent"),
                 ("torch.distributed.elastic.multiprocessing", "elastrun.multiprocessing"),
                 ("torch.distributed.elastic.rendezvous", "elastrun.rendezvous"),
                 ("elastrun.rendezvous.etcd_server",
                  "torch.distributed.elastic.rendezvous.etcd_server"))
SEED_IMPORTS = (("torch.distributed.elastic", "elastrun"), ("torch.monitor", "elastrun.monitor"))

SUITES = {
    "launcher": Suite("pytorch", "test", (
        "distributed/launcher/api_test.py", "distributed/launcher/launch_test.py",
        "distributed/launcher/run_test.py|distributed/launcher/test_run.py")),
    "agent": Suite("pytorch", "test/distributed/elastic/agent/server/test", (
        "local_elastic_agent_test.py",), imports=AGENT_IMPORTS),
    "seeds": Suite("pytorch", "test", (
        "test_monitor.py", "distributed/elastic/metrics/api_test.py",
        "distributed/elastic/events/lib_test.py", "distributed/elastic/timer/api_test.py",
        "distributed/elastic/timer/local_timer_test.py",
        "distributed/elastic/timer/file_based_local_timer_test.py"), imports=SEED_IMPORTS),
    "accelerate": Suite("accelerate", ".", ("tests/test_cli.py", "tests/test_launch.py"),
                        "AccelerateLauncherTester or LaunchArgTester or test_launch"),
    "torchx": Suite("torchx", ".", ("torchx/components/test/dist_test.py",)),
}
EXPECTED = {
    "ElasticLaunchTest::test_launch_elastic_worker_raise_exception":
        "it counts calls of torch's events.record, and the agent's events come from its process",
    "ElasticLaunchTest::test_capture_logs_using_default_logs_specs":
        "it looks for lines of --tee in sys.stdout; the agent writes them to the descriptor",
    "ElasticLaunchTest::test_launch_elastic_multiple_agents":
        "on a busy machine: its second agent has 30 s to import torch, or the first runs alone",
    **{f"LocalElasticAgentTest::test_{what}_{backend}": why
       for backend in ("c10d", "etcd", "etcd_v2") for what, why in (
           ("barrier_failed", "it replaces torch's barrier, which the agent has in its process"),
           ("shutdown_called", "it replaces torch's start_processes, which ours does not call"),
           ("run_bipolar_function", "it looks at private fields of torch's agent"))},
    "ElasticLaunchTest::test_nproc_gpu_launch_configurations":
        "fails with torch's launcher as well: auto asks torch.accelerator, which is not replaced",
    **{f"{server}TimerServerTest::test_watchdog_call_count":
       "on a busy machine: it wants 10 passes, or 9 or 11, in 0.1 s"
       for server in ("Local", "File")},
    **{f"{timer}TimerTest::test_get_timer_recursive":
       "on a busy machine: a sleep of 0.05 s has to end before a timer of 0.1 s"
       for timer in ("Local", "File")},
    "MultiprocessingRequestQueueTest::test_get_size":
        "on a busy machine: it gives a fork and 10 sleeps of 0.1 s a time of 1.1 s",
}
# NVRx's script calls ft_launcher, whose own options elastrun does not have. It ends what it finds
# by name, so it runs in a pid namespace.
FT_LAUNCHER = """#!/bin/bash
words=()
for word in "$@"; do
  case "$word" in --ft-*|--restart-policy=*) ;; *) words+=("$word");; esac
done
exec {torchrun} "${{words[@]}}"
"""


def environment(folder: Path, program: Path, original: bool) -> dict[str, str]:
    """A virtual environment with this Python's packages and the hook; its variables."""
    place = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    [packages] = place.glob("lib/python*/site-packages")
    # addsitedir, not a path alone: the .pth files there count, too.
    base = sysconfig.get_path("purelib")
    (packages / "base.pth").write_text(
        f"import site; site.addsitedir({base!r})\n{ROOT / 'lib/python'}\n")
    bin_of = Path(sys.executable).parent
    for name in ("accelerate", "accelerate-launch", "torchx"):
        if (bin_of / name).exists():
            lines = (bin_of / name).read_text().splitlines(keepends=True)
            (place / "bin" / name).write_text("".join([f"#!{place}/bin/python3\n", *lines[1:]]))
            (place / "bin" / name).chmod(0o755)
    shutil.copy(program, place / "bin/elastrun")
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("PYTHON", "PET_", "ELASTRUN_", "VIRTUAL_ENV"))}
    env |= {"PATH": f"{place / 'bin'}:{env['PATH']}", "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HUB_OFFLINE": "1", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    etcd = shutil.which("etcd")
    if etcd:
        env["TORCHELASTIC_ETCD_BINARY_PATH"] = etcd
    if original:
        command = place / "bin/torchrun"
        command.write_text(f"#!{place}/bin/python3\n"
                           "from torch.distributed.run import main\nmain()\n")
        command.chmod(0o755)
    else:
        subprocess.run([place / "bin/python3", "-m", "elastrun.install_torchrun"], check=True,
                       env=env, stdout=subprocess.DEVNULL)
    return env


def with_our_imports(file: Path, suite: Suite, scratch: Path) -> Path:
    """A copy of this file with the imports of the suite replaced."""
    text = file.read_text()
    for old, new in suite.imports:
        text = text.replace(old, new)
    (scratch / file.name).write_text(text)
    return scratch / file.name


def run_pytest(words: list[str], inside: Path, env: dict[str, str], limit: float
               ) -> tuple[str, str, bool]:
    """Output, errors, and whether it came to its end. Else it is interrupted, as by Ctrl+C: it then
    tells what has ended so far, and what the tests have started ends with it."""
    process = subprocess.Popen(words, cwd=inside, env=env, text=True, start_new_session=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        return *process.communicate(timeout=limit), True
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        return *process.communicate(timeout=60), False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return *process.communicate(), False


def run_suite(name: str, suite: Suite, folder: Path, env: dict[str, str],
              scratch: Path | None, only: str, limit: float) -> tuple[int, int]:
    """How many tests ended as they should, and how many did not. `scratch`: where files with
    replaced imports go; None: the imports stay. `only`: pytest -k. `limit`: seconds for a file."""
    good = bad = 0
    for names in suite.files:
        inside = folder / suite.checkout / suite.inside
        file = next((one for one in names.split("|") if (inside / one).is_file()), None)
        if file is None:
            print(f"{name}: left out, there is no {inside / names.split('|')[0]}")
            continue
        if suite.imports and scratch is not None:
            inside, file = scratch, with_our_imports(inside / file, suite, scratch).name
        chosen = " and ".join(f"({one})" for one in (suite.chosen, only) if one)
        out, err, whole = run_pytest(
            ["python3", "-m", "pytest", "-q", "-rA", "--no-header", "-p", "no:cacheprovider",
             "--tb=short", *(["-k", chosen] if chosen else []), file], inside, env, limit)
        ends = dict((test, how) for how, test in re.findall(
            r"^(PASSED|FAILED|ERROR|SKIPPED) (?:\[\d+\] )?(\S+)", out, re.M))
        wrong = [test for test, how in ends.items()
                 if how in ("FAILED", "ERROR") and test.split("::", 1)[-1] not in EXPECTED]
        told = [test for test, how in ends.items()
                if how == "FAILED" and test.split("::", 1)[-1] in EXPECTED]
        passed = sum(how == "PASSED" for how in ends.values())
        skipped = sum(how == "SKIPPED" for how in ends.values())
        print(f"{name}: {file}: {passed} passed, {skipped} skipped, {len(told)} differ as "
              f"expected, {len(wrong)} do not pass", flush=True)
        for test in told:
            print(f"  differs: {test}: {EXPECTED[test.split('::', 1)[-1]]}")
        if not whole:
            print(f"  not whole: interrupted after {limit:.0f} s")
        if wrong or not ends:
            print(out[-20000:], err[-3000:], sep="\n")
        good, bad = good + passed + len(told), bad + len(wrong) + (not ends or not whole)
    return good, bad


def run_components(folder: Path, env: dict[str, str]) -> tuple[int, int]:
    """torchx's integration tests of its components with the scheduler local_cwd: two agents of two
    workers each are started by the command torchrun."""
    checkout = folder / "torchx"
    script = checkout / "scripts/component_integration_tests.py"
    if not script.is_file():
        print(f"torchx: left out, there is no {script}")
        return 0, 0
    done = subprocess.run(["python3", script, "--scheduler", "local_cwd"], cwd=checkout, text=True,
                          env=env | {"PYTHONPATH": str(checkout)}, capture_output=True,
                          timeout=LIMIT)
    print(f"torchx: {script.name}: {'passed' if done.returncode == 0 else 'does not pass'}")
    if done.returncode != 0:
        print(done.stdout[-6000:], done.stderr[-6000:], sep="\n")
    return int(done.returncode == 0), int(done.returncode != 0)


def restarted_when_a_node_leaves(script: str) -> str:
    """NVRx lets the other nodes go on without the one that left, as torch does, until their next
    failure; elastrun starts them again at once, in the smaller world (pytorch issue 111646). So
    from that step on the script has to count one start more."""
    before, title, after = script.partition("Terminate another running node")
    for count in (3, 2):
        after = after.replace(f'"$(get_runs_count)" {count}', f'"$(get_runs_count)" {count + 1}')
    return before + title + after


def run_nvrx(folder: Path, env: dict[str, str]) -> tuple[int, int]:
    """Its script counts starts and sizes of a world of 2:3 nodes through failures and leavings."""
    func = folder / "nvidia-resiliency-ext/tests/fault_tolerance/func"
    script = func / "run_launcher_any_failed_mode_test.sh"
    if not script.is_file():
        print(f"nvrx: left out, there is no {script}")
        return 0, 0
    with tempfile.TemporaryDirectory(prefix="nvrx.") as scratch:
        place = Path(scratch)
        shutil.copy(func / "_launcher_mode_test_worker.py", place)
        (place / script.name).write_text(restarted_when_a_node_leaves(script.read_text()))
        command = place / "ft_launcher"
        command.write_text(FT_LAUNCHER.format(torchrun=shutil.which("torchrun", path=env["PATH"])))
        command.chmod(0o755)
        done = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "bash",
             place / script.name], cwd=place, env=env | {"PATH": f"{place}:{env['PATH']}"},
            text=True, capture_output=True, timeout=LIMIT)
    passed = done.returncode == 0 and "TEST PASSED" in done.stdout
    print(f"nvrx: {script.name}: {'passed' if passed else 'does not pass'}")
    if not passed:
        print(done.stdout[-6000:], done.stderr[-6000:], sep="\n")
    return int(passed), int(not passed)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("elastrun", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("suite", nargs="*", choices=[*SUITES, "nvrx", []], default=[])
    parser.add_argument("--original", action="store_true", help="with torch's own launcher")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS",
                        help="for one file")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="of their tests, as pytest's")
    args = parser.parse_args()
    chosen = args.suite or [*SUITES, "nvrx"]
    folder = args.folder.resolve()
    good = bad = 0
    with tempfile.TemporaryDirectory(prefix="upstream.") as scratch:
        env = environment(Path(scratch), args.elastrun.resolve(), args.original)
        copies = None if args.original else Path(scratch)
        for name in chosen:
            runs = [run_suite(name, SUITES[name], folder, env, copies, args.k, args.limit)] \
                if name in SUITES else []
            runs += [run_nvrx(folder, env)] if name == "nvrx" else []
            runs += [run_components(folder, env)] if name == "torchx" else []
            good += sum(one[0] for one in runs)
            bad += sum(one[1] for one in runs)
    print(f"{good} as they should be, {bad} not")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
