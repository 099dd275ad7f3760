# SPDX-License-Identifier: Apache-2.0
"""The command line of `conform`."""
from __future__ import annotations

import argparse
import functools
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from .cases import BadCase, Case, load_cases
from .compare import differences
from .facts import extract
from .runner import Runner, abort_all, port_is_free

HERE = Path(__file__).resolve().parent.parent
_LINES_PER_FACT = 6
_PORT_CASES = threading.Lock()  # cases that need one fixed port run one after another


@dataclass
class Result:
    name: str
    status: str  # PASS, FAIL or SKIP
    seconds: float
    reason: str = ""
    lines: list[str] = field(default_factory=list)


def parse_args(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="conform", description="Compare a launcher with torchrun, case by case."
    )
    add = parser.add_argument
    add("--candidate", metavar="PATH", help="launcher under test")
    add("--reference", metavar="PATH", default="torchrun", help="torchrun, for --live and --record")
    add("--only", metavar="GLOB", default="*", help="run the cases whose name matches")
    add("--cases", metavar="DIR", type=Path, default=HERE / "cases", help="folder of case files")
    add("--golden", metavar="FILE", type=Path, default=HERE / "golden.json", help="stored facts")
    add("--live", action="store_true", help="run the reference too instead of reading the facts")
    add("--record", action="store_true", help="run the reference and store its facts")
    add("--as-torchrun", action="store_true", help="skip the cases in which torchrun has a defect")
    add("-j", "--jobs", type=int, default=1, help="cases run at the same time")
    add("--keep", metavar="DIR", type=Path, help="keep the scratch folders here")
    add("--json", metavar="OUT", type=Path, help="write the results as JSON")
    add("--list", action="store_true", help="print the names and sentences of the cases")
    args = parser.parse_args(words)
    if not (args.list or args.record or args.candidate):
        parser.error("--candidate is required (or --record, or --list)")
    return args


def main(words: list[str] | None = None) -> int:
    args = parse_args(words)
    try:
        cases = [case for case in load_cases(args.cases) if fnmatch(case.name, args.only)]
    except (BadCase, OSError) as error:
        print(f"conform: {error}", file=sys.stderr)
        return 2
    if args.list:
        for case in cases:
            print(f"{case.name}: {case.about}")
        return 0
    _default_signals()
    try:
        return Session(args).run(cases)
    except (KeyboardInterrupt, BrokenPipeError):
        return 130


class Session:
    """One invocation: where to run, against what, and the results."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._reference = _find(args.reference) if args.live or args.record else ""
        self._candidate = _find(args.candidate) if not args.record else ""
        self._golden: dict[str, Any] = {}
        fresh = args.record and args.only == "*"  # a full record drops cases that are no more
        if args.golden.exists() and not args.live and not fresh:
            self._golden = json.loads(args.golden.read_text())["cases"]
        self._base: Path = (args.keep or Path(tempfile.mkdtemp(prefix="conform-"))).resolve()
        local = args.cases.resolve() / "workers"
        self._workers = [HERE / "workers", *([local] if local.is_dir() else [])]

    def run(self, cases: list[Case]) -> int:
        try:
            results = self._all(cases)
        finally:
            if not self._args.keep:
                shutil.rmtree(self._base, ignore_errors=True)
        if self._args.record:
            self._store()
        if self._args.json:
            self._args.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
        counts = {s: sum(r.status == s for r in results) for s in ("PASS", "FAIL", "SKIP")}
        print("{PASS} passed, {FAIL} failed, {SKIP} skipped".format(**counts))
        return 1 if counts["FAIL"] else 0

    def _all(self, cases: list[Case]) -> list[Result]:
        results: list[Result] = []
        with ThreadPoolExecutor(max_workers=self._args.jobs) as pool:
            try:
                for result in pool.map(self._one, cases):
                    _show(result)
                    results.append(result)
            except (KeyboardInterrupt, BrokenPipeError):
                pool.shutdown(wait=False, cancel_futures=True)
                abort_all()
                raise
        return results

    def _one(self, case: Case) -> Result:
        began = time.monotonic()
        if case.needs_port is None:
            status, reason, lines = self._judge(case)
        else:
            with _PORT_CASES:
                status, reason, lines = self._judge(case)
        return Result(case.name, status, round(time.monotonic() - began, 1), reason, lines)

    def _judge(self, case: Case) -> tuple[str, str, list[str]]:
        if reason := _obstacle(case):
            return "SKIP", reason, []
        if case.expect is not None and (self._args.record or self._args.as_torchrun):
            return "SKIP", "torchrun " + case.torchrun, []
        try:
            if self._args.record:
                self._golden[case.name] = self._facts(case, self._reference, "reference")
                problems = self._golden[case.name].get("problems")
                return ("FAIL", case.about, problems) if problems else ("PASS", "recorded", [])
            if case.expect is not None:
                expected = case.expect
            elif self._args.live:
                expected = self._facts(case, self._reference, "reference")
            elif case.name in self._golden:
                expected = self._golden[case.name]
            else:
                return "SKIP", "no recorded facts", []
            actual = self._facts(case, self._candidate, "candidate")
        except Exception as error:  # one strange run must not end all the others
            return "FAIL", case.about, [f"{type(error).__name__}: {error}"]
        found = _found(expected, actual)
        for better in case.better:
            if found and not differences({**expected, **better.facts}, actual):
                return "PASS", "better than torchrun: " + better.why, []
        return ("FAIL", case.about, found + self._hints(case)) if found else ("PASS", "", [])

    def _facts(self, case: Case, launcher: str, role: str) -> dict[str, Any]:
        scratch = self._base / f"{case.name}.{role}"
        shutil.rmtree(scratch, ignore_errors=True)
        facts = extract(case, Runner(case, launcher, scratch, self._workers).execute())
        if not self._args.keep and role == "reference":
            shutil.rmtree(scratch, ignore_errors=True)
        return facts

    def _hints(self, case: Case) -> list[str]:
        """How the failed run was started and how its stderr ended."""
        lines = []
        scratch = self._base / f"{case.name}.candidate"
        for number, plan in enumerate(case.agents):
            command = " ".join([*(f"{k}={v}" for k, v in plan.env.items()), *plan.argv])
            lines.append(f"agent {number} ran: {command}")
            errors = scratch / f"agent{number}.err"
            tail = errors.read_text(errors="replace").splitlines()[-4:] if errors.exists() else []
            lines += [f"agent {number} stderr: {line}" for line in tail]
        return lines

    def _store(self) -> None:
        blocks = [
            f" {json.dumps(name)}: {_block(facts)}" for name, facts in sorted(self._golden.items())
        ]
        text = '{"reference": "torchrun 2.13.0", "cases": {\n' + ",\n".join(blocks) + "\n}}\n"
        self._args.golden.write_text(text)


def _block(facts: dict[str, Any]) -> str:
    """Facts as JSON with a line for each, and for each entry of a table."""
    lines = []
    for selector, value in facts.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, dict) and len(text) > 100:
            entries = [f"   {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}"
                       for k, v in value.items()]
            text = "{\n" + ",\n".join(entries) + "}"
        lines.append(f"  {json.dumps(selector)}: {text}")
    return "{\n" + ",\n".join(lines) + "}"


def _found(expected: dict[str, Any], actual: dict[str, Any]) -> list[str]:
    """The differences, a few lines for each fact."""
    lines: list[str] = []
    for selector in [*expected, *(s for s in actual if s not in expected)]:
        some = differences(_only(expected, selector), _only(actual, selector))
        lines += some[:_LINES_PER_FACT]
        if len(some) > _LINES_PER_FACT:
            lines.append(f"{selector}: and {len(some) - _LINES_PER_FACT} more")
    return lines


def _only(facts: dict[str, Any], selector: str) -> dict[str, Any]:
    return {selector: facts[selector]} if selector in facts else {}


def _default_signals() -> None:
    """Launchers shall start with default signals, even when this program runs under nohup."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def _find(launcher: str) -> str:
    found = shutil.which(launcher)
    if not found:
        sys.exit(f"conform: {launcher} is not a program")
    return str(Path(found).absolute())


def _obstacle(case: Case) -> str:
    """Why the case cannot run here; empty when it can."""
    if case.needs_torch and not _python_has_torch():
        return "the python3 on PATH cannot import torch"
    if case.needs_port is not None and not port_is_free(case.needs_port):
        return f"port {case.needs_port} is taken"
    return ""


@functools.cache
def _python_has_torch() -> bool:
    probe = ["python3", "-c", "import torch.distributed"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def _show(result: Result) -> None:
    note = f": {result.reason}" if result.reason else ""
    print(f"{result.status} {result.name} ({result.seconds} s){note}", flush=True)
    for line in result.lines:
        print(f"     {line}")
