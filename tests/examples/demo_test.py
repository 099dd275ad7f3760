# SPDX-License-Identifier: Apache-2.0
"""demo_test.py: what the elastic demonstration says where it cannot work; no torch, no etcd."""
from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "config/examples/elastic/demo.py"


class Demo(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "bin").mkdir()

    def program(self, name: str, text: str) -> str:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    def demo(self, *words: str, torch: bool = True) -> subprocess.CompletedProcess[str]:
        if torch:
            (self.folder / "torch.py").touch()
        env = {"PATH": f"{self.folder}/bin", "PYTHONPATH": str(self.folder),
               "TMPDIR": str(self.folder)}
        # Without site-packages, where a real torch may lie.
        return subprocess.run([sys.executable, "-S", "-B", str(DEMO), *words], env=env,
                              capture_output=True, text=True, timeout=120)

    def test_a_python_without_torch_is_named(self) -> None:
        done = self.demo(self.program("elastrun", "exit 0"), torch=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"{sys.executable} has no torch", done.stderr)

    def test_a_missing_etcd_is_named(self) -> None:
        done = self.demo(self.program("elastrun", "exit 0"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("apt-get install etcd-server", done.stderr)

    def test_a_missing_program_is_named(self) -> None:
        done = self.demo(str(self.folder / "elastrun"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("scripts/quickstart builds", done.stderr)

    def test_an_agent_that_fails_ends_it_at_once(self) -> None:
        self.program("etcd", "exec /bin/sleep 60")
        done = self.demo(self.program("elastrun", "echo by $PYTHON_EXEC; exit 7"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("an agent ended with exit code 7", done.stderr)
        self.assertIn(f"by {sys.executable}", done.stderr)

    def test_agents_that_end_early_end_it_at_once(self) -> None:
        self.program("etcd", "exec /bin/sleep 60")
        counter = self.folder / "count"
        # The first three are the undisturbed job: they train in no time.
        job = ('for word; do [ "$last" != --folder ] || folder=$word; last=$word; done\n'
               f'echo "{{\\"kind\\": \\"checkpoint\\", \\"step\\": 1}}" >>"$folder/history.jsonl"\n'
               f'echo x >>{counter}')
        done = self.demo(self.program("elastrun", job))
        self.assertEqual(done.returncode, 1)
        self.assertIn("all agents have ended, while it waited until three nodes", done.stderr)

    def test_help_is_help(self) -> None:
        done = self.demo("--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("path/to/elastrun", done.stdout)
