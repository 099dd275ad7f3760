# SPDX-License-Identifier: Apache-2.0
"""Feeds .ci/check a small project with one mistake at a time."""
from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
CHECK = (ROOT / ".ci/check").read_text()


def most(pattern: str) -> int:
    """A number that .ci/check holds the house to."""
    found = re.search(pattern + r"(\d+)", CHECK)
    assert found, pattern
    return int(found[1])


class CheckTest(unittest.TestCase):
    def setUp(self) -> None:
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.root / ".ci").mkdir()
        for name in (".ci/check", ".ci/alone.py", ".ci/layers", ".ci/size", ".clang-format"):
            shutil.copy(ROOT / name, self.root / name)
        subprocess.run(["git", "init", "-q", self.root], check=True)

    def check(self, path: str, text: str, *options: str) -> str:
        """What is said of one file; empty if it is fine."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        subprocess.run(["git", "add", "-f", path], cwd=self.root, check=True)
        done = subprocess.run([".ci/check", *(options or ["--fast"]), path], cwd=self.root,
                              capture_output=True, text=True, check=False)
        file.unlink()
        said = [line.strip() for line in done.stdout.splitlines() if line.startswith("    ")]
        self.assertEqual(done.returncode != 0, bool(said), done.stdout + done.stderr)
        return "\n".join(said)

    def test_good_source_passes(self) -> None:
        good = SPDX + '#include "spec/job_spec.hpp"\n\nint f();\n'
        self.assertEqual(self.check("lib/agent/loop/a.cpp", good), "")

    def test_only_lower_rows_may_be_included(self) -> None:
        for path, name, allowed in (
                ("lib/spec/a.cpp", "agent/loop/agent.hpp", False),
                ("lib/spec/a.cpp", "telemetry/record.hpp", False),
                ("lib/spec/a.cpp", "spec/b.hpp", True),
                ("lib/rendezvous/wire/a.cpp", "store/table.hpp", True),
                ("lib/rendezvous/wire/a.cpp", "rendezvous/membership/state.hpp", True),
                ("lib/rendezvous/wire/a.cpp", "rendezvous/wire/b.hpp", True),
                ("lib/rendezvous/wire/a.cpp", "rendezvous/session/b.hpp", False),
                ("lib/rendezvous/election/a.cpp", "rendezvous/coordinator/b.hpp", False),
                ("lib/rendezvous/a.cpp", "core/text.hpp", False),
                ("apps/elastrun/a.cpp", "agent/loop/agent.hpp", True),
                ("lib/agent/loop/a.cpp", "nowhere/b.hpp", False)):
            said = self.check(path, SPDX + f'#include "{name}"\n')
            self.assertEqual(said == "", allowed, f"{path} includes {name}: {said}")

    def test_a_row_may_forbid_a_library(self) -> None:
        path = "lib/rendezvous/membership/a.cpp"
        said = self.check(path, SPDX + "#include <boost/asio/post.hpp>\n")
        self.assertIn("does without boost/asio", said)
        (self.root / "lib/core").mkdir(parents=True, exist_ok=True)
        (self.root / "lib/core/b.hpp").write_text(SPDX + "#include <boost/asio/post.hpp>\n")
        self.assertIn("does without boost/asio",
                      self.check(path, SPDX + '#include "core/b.hpp"\n'))
        self.assertEqual(self.check(path, SPDX + "#include <chrono>\n"), "")

    def test_coroutines_are_refused(self) -> None:
        for line, allowed in (("const auto r = co_await f();", False), ("co_return 1;", False),
                              ("// GCC 12 miscompiles co_await", True)):
            said = self.check("lib/net/a.cpp", SPDX + line + "\n")
            self.assertEqual("coroutine" not in said, allowed, f"{line}: {said}")

    def test_text_rules(self) -> None:
        self.assertIn("columns", self.check("a.cmake", "#" * 101 + "\n"))
        for text, words in (("int a;\n", "SPDX"), (SPDX + "int a; \n", "blanks"),
                            (SPDX + "int a;", "no newline"),
                            (SPDX + "int   a;\n", "not formatted"),
                            (SPDX + '// "/ro' + 'ot/x"\n', "one machine")):
            self.assertIn(words, self.check("lib/core/a.cpp", text))

    def house(self, files: dict[str, str], lines: int = 1000) -> str:
        """What is said of a house of these files."""
        for path, text in files.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text)
        subprocess.run(["git", "add", "-f", *files], cwd=self.root, check=True)
        (self.root / ".ci/size").write_text(f"{lines}\n")
        return self.check("lib/core/other.cpp", SPDX)

    def test_the_house_may_only_shrink(self) -> None:
        files = {"lib/core/a.cpp": SPDX + "int a();\n" * 8, "lib/python/b.py": "b = 1\n"}
        self.assertEqual(self.house(files, 11), "")
        self.assertIn("lib and apps have 11 lines, at most 10", self.house(files, 10))

    def test_components_in_a_circle_are_counted(self) -> None:
        files = {}
        # A source and its header are one: only together they make a circle.
        for i in range(most(r'"C\+\+": ') + 1):
            a, b = f"a{i}", f"b{i}"
            files |= {f"lib/core/{a}.hpp": SPDX, f"lib/core/{b}.hpp": SPDX,
                      f"lib/core/{a}.cpp": SPDX + f'#include "core/{b}.hpp"\n',
                      f"lib/core/{b}.cpp": SPDX + f'#include "core/{a}.hpp"\n'}
        self.assertIn("a circle of components: lib/core/a0, lib/core/b0", self.house(files))
        files["lib/core/b0.cpp"] = SPDX
        self.assertEqual(self.house(files), "")

    def test_circles_in_python_are_counted_too(self) -> None:
        files = {"lib/python/e/__init__.py": ""}
        for i in range(most('"Python": ') + 1):
            files |= {f"lib/python/e/a{i}.py": f"from . import b{i}\n",
                      f"lib/python/e/b{i}.py": f"def f():\n    from .a{i} import g\n"}
        self.assertIn("a circle of components: e.a0, e.b0", self.house(files))
        files["lib/python/e/b0.py"] = ""
        self.assertEqual(self.house(files), "")

    def test_small_headers_with_one_user_are_counted(self) -> None:
        files = {f"lib/core/a{i}.hpp": SPDX for i in range(most("MOST_SMALL_HEADERS = ") + 1)}
        self.assertIn("a small header for tests alone", self.house(files))
        files |= {f"lib/core/{user}.cpp": SPDX + '#include "core/a0.hpp"\n' for user in "bc"}
        self.assertEqual(self.house(files), "")

    def test_functions_of_one_name_are_counted(self) -> None:
        files = {f"lib/core/{user}.cpp": SPDX + "namespace {\n" + "".join(
            f"int f{i}({'int ' * (user == 'b')}{'char ' * (user == 'c')}) {{ return 1; }}\n"
            for i in range(most("MOST_SAME_NAMES = ") + 1)) + "}  // namespace\n" for user in "abc"}
        self.house(files)
        done = subprocess.run([".ci/check", "--fast"], cwd=self.root, capture_output=True,
                              text=True, check=False)
        self.assertIn("f0 stands in 3 files", done.stdout)

    def test_names_that_say_nothing(self) -> None:
        self.assertIn("names nothing", self.check("lib/core/utils.cpp", SPDX))
        self.assertIn("no row", self.check("lib/newcomer/a.cpp", SPDX))

    def test_a_header_must_compile_alone(self) -> None:
        text = SPDX + "#pragma once\n\n{}namespace elastrun {{\nstd::string name();\n}}\n"
        self.assertIn("alone", self.check("lib/core/a.hpp", text.format(""), "--"))
        good = text.format("#include <string>\n\n")
        self.assertEqual(self.check("lib/core/a.hpp", good, "--"), "")

    def test_headers_in_a_row_hide_nothing_from_each_other(self) -> None:
        text = SPDX + "#pragma once\n\n{}namespace elastrun {{\n{}\n}}\n"
        (self.root / "lib/core").mkdir(parents=True)
        for name, includes, line in (("a", "#include <string>\n\n", "std::string a();"),
                                     ("b", "", "std::string b();"),
                                     ("c", '#include "core/a.hpp"\n\n', "std::string c();"),
                                     ("d", "", "std::string d();"),
                                     ("e", "#include <string>\n\n", "struct E {};"),
                                     ("f", "#include <string>\n\n", "std::string f(E);")):
            (self.root / f"lib/core/{name}.hpp").write_text(text.format(includes, line))
        subprocess.run(["git", "add", "lib"], cwd=self.root, check=True)
        done = subprocess.run([".ci/check"], cwd=self.root, capture_output=True, text=True)
        found = [line.strip()[:16] for line in done.stdout.splitlines()
                 if "does not compile alone" in line]
        self.assertEqual(found, [f"lib/core/{name}.hpp:1" for name in "bdf"], done.stdout)

    def test_manual_pages_are_linted(self) -> None:
        page = '.\\" SPDX-License-Identifier: Apache-2.0\n.Dd May 1, 2026\n.Dt A 7\n.Os\n{}'
        good = ".Sh NAME\n.Nm a\n.Nd b\n.Sh DESCRIPTION\nText.\n"
        self.assertEqual(self.check("man/a.7", page.format(good)), "")
        self.assertIn("man/a.7", self.check("man/a.7", page.format(good + ".Xq nothing\n")))

    def test_stiff_phrases_are_counted(self) -> None:
        line = "// Nobody waits.\n// Of\n// its own.\n"
        self.assertEqual(self.check("lib/core/a.cpp", SPDX + line), "")
        self.assertIn('a.cpp:3: "Of', self.check("lib/core/a.cpp", SPDX + 60 * line))
        self.assertEqual(self.check("tests/a.cpp", SPDX + 60 * line), "")


class AffectedTest(unittest.TestCase):
    """What `scripts/test quick` runs for a change of this source tree."""

    def of(self, *paths: str) -> tuple[list[str], str]:
        done = subprocess.run([ROOT / ".ci/affected.py", *paths], capture_output=True, text=True,
                              check=True)
        files, targets, tests = done.stdout.splitlines()
        self.assertEqual(files.split(), list(paths))
        return targets.split(), tests

    def test_a_source_brings_its_units_and_a_process_test(self) -> None:
        targets, tests = self.of("lib/goodput/ledger/ledger.hpp")
        self.assertEqual(targets[0], "unit_goodput")
        self.assertIn("elastrun", targets)
        for one in ("system_goodput", "^system_restart$", "^unit_goodput(_|$)"):
            self.assertIn(one, tests)
        targets = self.of("lib/goodput/ledger/ledger.cpp")[0]
        self.assertIn("unit_agent", targets, "which includes it")

    def test_python_and_pages_need_no_program(self) -> None:
        self.assertEqual(self.of("lib/python/elastrun/monitor.py"), ([], "python_worker_monitor"))
        self.assertEqual(self.of("man/elastrun.1"), ([], "style_manual"))

    def test_a_test_brings_itself(self) -> None:
        self.assertIn("^system_stop$", self.of("tests/system/stop_test.py")[1])
        self.assertEqual(self.of("tests/unit/spec/option_values_test.cpp"),
                         (["unit_spec"], "^unit_spec(_|$)"))
