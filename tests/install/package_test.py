# SPDX-License-Identifier: Apache-2.0
"""package_test.py BUILD CPACK: the Debian package, unpacked, and installed by apt where that can be
done beside the system of this machine."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD, CPACK = (sys.argv + ["", "cpack"])[1:3]
BUILD = os.path.abspath(BUILD)
EXPECTED = """
usr/bin/elastrun
usr/bin/elastrunctl
usr/lib/python3/dist-packages/elastrun/__main__.py
usr/lib/systemd/system/elastrun-store.service
usr/share/bash-completion/completions/elastrun
usr/share/zsh/vendor-completions/_elastrun
usr/share/fish/vendor_completions.d/elastrunctl.fish
usr/include/elastrun/worker/elastrun.hpp
usr/share/man/man1/elastrun.1.gz
usr/share/man/man5/elastrun.toml.5.gz
usr/share/man/man7/elastrun-protocol.7.gz
usr/share/doc/elastrun/copyright
usr/share/doc/elastrun/changelog.Debian.gz
usr/share/elastrun/config/examples/ddp/train.py
usr/share/elastrun/observability/elastrun.rules.yml
usr/share/elastrun/python/elastrun/metrics/api.py
""".split()
# On a system in memory above this one, which apt may change: installed, used, removed.
BESIDE = r"""
set -eu
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay none -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount --rbind /proc "$1/root/proc"; mount --rbind /dev "$1/root/dev"
cp "$2" "$1/root/var/cache/elastrun.deb"
echo mounted
exec chroot "$1/root" /bin/sh -euc '
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive
apt-get install -y --no-install-recommends --allow-downgrades /var/cache/elastrun.deb >&2
cd /tmp
printf "import elastrun\nprint(elastrun.is_connected(), elastrun.__file__)\n" >worker.py
elastrun --version
! command -v /usr/bin/python3 >/dev/null || {
  PYTHON_EXEC=/usr/bin/python3 elastrun worker.py
  /usr/bin/python3 -m elastrun --version
  /usr/bin/python3 /usr/bin/elastrun --version
}
apt-get purge -y elastrun >&2
find /usr /etc /var/lib/dpkg/info -name "*elastrun*" | sed "s/^/left: /"
'
"""


@unittest.skipUnless(shutil.which("dpkg-shlibdeps") and shutil.which("file"),
                     "no dpkg-shlibdeps or file, which cpack needs (Debian: dpkg-dev, file)")
class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="package.")))
        made = subprocess.run([CPACK, "--config", f"{BUILD}/CPackConfig.cmake", "-B", cls.folder],
                              cwd=cls.folder, capture_output=True, text=True)
        if made.returncode != 0:
            raise AssertionError(made.stdout + made.stderr)
        [cls.package] = cls.folder.glob("*.deb")
        cls.root = cls.folder / "root"
        subprocess.run(["dpkg-deb", "-x", cls.package, cls.root], check=True)

    def field(self, name: str) -> str:
        return subprocess.run(["dpkg-deb", "-f", self.package, name], check=True, text=True,
                              capture_output=True).stdout.strip()

    def test_it_has_what_people_run_where_debian_wants_it(self) -> None:
        missing = [name for name in EXPECTED if not (self.root / name).exists()]
        self.assertEqual(missing, [])
        names = [str(p.relative_to(self.root)) for p in self.root.rglob("*")]
        self.assertEqual([n for n in names if re.search(
            r"^usr/local|\.a$|__pycache__|site-functions|\.[157]$", n)], [])
        headers = [n for n in names if n.startswith("usr/include/") and n.endswith((".h", ".hpp"))]
        self.assertEqual(sorted(headers), sorted(f"usr/include/elastrun/worker/{one.name}"
                                                 for one in (ROOT / "lib/worker").iterdir()))
        unit = (self.root / "usr/lib/systemd/system/elastrun-store.service").read_text()
        self.assertIn("ExecStart=/usr/bin/elastrunctl ", unit)

    def test_its_examples_build_with_what_it_has(self) -> None:
        examples = self.root / "usr/share/elastrun/config/examples"
        flags = ["-fsyntax-only", "-I", self.root / "usr/include"]
        subprocess.run(["c++", *flags, examples / "cpp_worker/worker.cpp"], check=True)
        # Those that are left need no compiler: the agent's libraries are not in the package.
        self.assertEqual(sorted(p.name for p in examples.rglob("*.c*")), ["worker.cpp"])

    def test_it_depends_on_what_its_programs_load(self) -> None:
        self.assertRegex(self.field("Depends"), r"^libc6 \(>= [\d.]+\)$")
        self.assertRegex(self.field("Version"), r"^\d+\.\d+\.\d+-1$")
        architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True,
                                      text=True).stdout.strip()
        self.assertEqual(self.field("Architecture"), architecture)

    def test_the_program_runs_without_being_installed(self) -> None:
        for words in ([self.root / "usr/bin/elastrun"],
                      [sys.executable, self.root / "usr/bin/elastrun"]):
            said = subprocess.run([*words, "--version"], capture_output=True, text=True)
            self.assertRegex(said.stdout, r"^elastrun \d", said.stderr)

    def test_apt_installs_and_removes_it(self) -> None:
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            self.skipTest("apt-get install needs root" if os.geteuid() else "no apt-get here")
        (self.folder / "beside").mkdir()
        done = subprocess.run(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", BESIDE, "sh",
             self.folder / "beside", self.package], capture_output=True, text=True, timeout=300)
        if "mounted" not in done.stdout:
            self.skipTest(f"no file system can be laid above that of this machine: {done.stderr}")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        said = [line for line in done.stdout.splitlines() if line != "mounted"]
        self.assertEqual([line for line in said if line.startswith("left: ")], [])
        self.assertRegex(said[0], r"^elastrun \d")
        if len(said) > 1:  # there is a Python
            self.assertEqual(
                said[1], "True /usr/lib/python3/dist-packages/elastrun/__init__.py")
            self.assertEqual(said[2:], [said[0]] * 2)
