# SPDX-License-Identifier: Apache-2.0
"""documented_commands_test.py ELASTRUN ELASTRUNCTL: what the documents tell people to type works.

Each command and each piece of a job file is found by documented.py in the rendered pages. Commands
are run as they stand there, but for the substitutions of `here()`: hosts and ports become ones of
this machine, a service is ended once it listens, and what would wait for more nodes is typed as
often as nodes are needed. A command that nobody has decided how to run fails the test: add it to
HOW, or give the reason why another test runs it to ELSEWHERE; so does an entry of these that no
document needs any more. Job files are read by elastrun itself.
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path

from agents import EtcdServer
from documented import (all_commands, all_toml, commands_of_display,
                        lines_on_a_terminal, pages_of, rendered)
from ports import free_port

SOURCE = Path(__file__).resolve().parents[2]

ELASTRUN, CTL = (os.path.abspath(word) for word in sys.argv[1:3])
LIMIT = 120.0
SCRIPT = "import os\nprint('rank', os.environ['RANK'], flush=True)\n"


class Shell:
    """A folder with the reader's files, programs in PATH, and this machine for all others."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        (folder / "bin").mkdir()
        for program in (ELASTRUN, CTL):
            (folder / "bin" / Path(program).name).symlink_to(program)
        (folder / "train.py").write_text(SCRIPT)
        (folder / "job.toml").write_text('[job]\nscript = "train.py"\nnproc_per_node = 2\n')
        (folder / "secret").write_text("between us\n")
        (folder / "secret").chmod(0o600)
        (folder / ".local/share/bash-completion/completions").mkdir(parents=True)
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith(("PET_", "SLURM_", "OMPI_", "PBS_", "ELASTRUN_"))}
        self.env |= {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder),
                     "CREDENTIALS_DIRECTORY": str(folder),
                     "ELASTRUN_RUNTIME_DIR": str(folder / "run"),
                     # 30 s for nodes that might still come are long for a test.
                     "PET_RDZV_CONF": "last_call_timeout=1"}

    def here(self, command: str) -> str:
        """The command with the substitutions that make it one for this machine alone."""
        for pattern, instead in (
                (r"\b(node\d|n\d|service|HOST):29400\b", f"127.0.0.1:{self.port}"),
                (r"(?<![\w'])\*:29400\b", f"*:{self.port}"), (r"'\*:29400'", f"'*:{self.port}'"),
                (r"(secret_file=)[\w/.]+", rf"\1{self.folder}/secret,last_call_timeout=1"),
                (r"(--secret-file )/\S+", rf"\1{self.folder}/secret"),
                (r"\$\{(CREDENTIALS|STATE)_DIRECTORY\}", str(self.folder)),
                (r"/usr/bin/(?=elastrun)|build/release/apps/(?=elastrun)", ""),
                (r"--nproc-per-node gpu", "--nproc-per-node 1"),  # there may be none
                (r"^(srun|mpirun|pbsdsh)\b.*? (?=elastrun )", ""),  # tests/slurm has the real one
                (r"(?<=\s)\.\.\.(?=\s|$)", "train.py")):
            command = re.sub(pattern, instead, command)
        return command

    def start(self, command: str) -> subprocess.Popen[str]:
        one = "" if "&&" in command else "exec "  # of one command the process itself
        return subprocess.Popen(["/bin/sh", "-c", one + command], env=self.env, text=True,
                                cwd=self.folder, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def service(self, command: str) -> subprocess.Popen[str]:
        """Started, and at the point where it says that it listens."""
        child = self.start(command)
        line = child.stdout.readline()
        if "listening at" not in line:
            raise AssertionError(f"{command}: {line}{child.communicate(timeout=LIMIT)[0]}")
        return child


def ends(*children: subprocess.Popen[str]) -> None:
    for child in children:
        text = child.communicate(timeout=LIMIT)[0]
        assert child.returncode == 0, f"exit code {child.returncode}: {text}"


def once(shell: Shell, command: str) -> None:
    ends(shell.start(shell.here(command)))


def with_a_variable(shell: Shell, command: str) -> None:
    once(shell, "env " + command)


def on_two_nodes(shell: Shell, command: str) -> None:
    ends(*[shell.start(shell.here(command)) for _ in range(2)])


@contextlib.contextmanager
def store(shell: Shell, options: str = "") -> Iterator[None]:
    host = shell.service(f"elastrunctl store --listen 127.0.0.1:{shell.port} {options}")
    try:
        yield
    finally:
        host.send_signal(signal.SIGTERM)
        ends(host)


def on_two_nodes_and_a_service(shell: Shell, command: str) -> None:
    """The first of the two lines of a service's example is run for the second as well."""
    with store(shell, f"--secret-file {shell.folder}/secret"):
        on_two_nodes(shell, command)


def as_a_service(shell: Shell, command: str) -> None:
    child = shell.service(shell.here(command))
    child.send_signal(signal.SIGTERM)
    ends(child)


def beside_a_service(shell: Shell, command: str) -> None:
    with store(shell):
        once(shell, command)


def beside_a_job(shell: Shell, command: str) -> None:
    """What it says to the end of a job of that name with two workers whose output is in files."""
    job = shell.start("elastrun --name night --nproc-per-node 2 --redirects 3 --log-dir logs "
                      "--no-python sh -c "
                      "'echo started; until [ -e go ]; do sleep 0.02; done'")
    while subprocess.run(["elastrunctl", "logs", "--no-follow", "night", "1"], env=shell.env,
                         capture_output=True, text=True).stdout != "started\n":
        assert job.poll() is None, job.communicate()[0]
    reader = shell.start(shell.here(command))
    assert reader.stdout.readline() == "started\n"
    (shell.folder / "go").touch()
    ends(reader, job)


def of_a_job(shell: Shell, command: str) -> None:
    """What asks a job of that name that runs, as the only one of this user."""
    job = shell.start("elastrun --name night --no-python sh -c "
                      "'until [ -e go ]; do sleep 0.02; done'")
    while 'job "night": running' not in subprocess.run(
            ["elastrunctl", "status"], env=shell.env, text=True, capture_output=True).stdout:
        assert job.poll() is None, job.communicate()[0]
    once(shell, command)
    (shell.folder / "go").touch()
    ends(job)


def after_a_job(shell: Shell, command: str) -> None:
    """What reads the files of a job of that name that has ended."""
    once(shell, "elastrun --name night --redirects 3 --log-dir logs --no-python true")
    once(shell, command)


def with_etcd(shell: Shell, command: str) -> None:
    command = shell.here(command)
    if not shutil.which("etcd"):
        print(f"\n  only as --dry-run, there is no etcd here: {command}", file=sys.stderr)
        return once(shell, command.replace("elastrun ", "elastrun --dry-run ", 1))
    server = EtcdServer(shell.folder, name="etcd")
    try:
        on_two_nodes(shell, command.replace("etcd1:2379,etcd2:2379", server.endpoint))
    finally:
        server.end()


def with_a_page(shell: Shell, command: str) -> None:
    once(shell, command.replace("ADDRESS:PORT", "127.0.0.1:0") + " train.py")


def as_a_plan(shell: Shell, command: str) -> None:
    """Of a job that this machine is too small for: that all of it is understood."""
    once(shell, command.replace("elastrun ", "elastrun --dry-run ", 1))


# What a command matches first says how it is run.
HOW: list[tuple[str, Callable[[Shell, str], None]]] = [
    (r"[A-Z_]+=\w+ elastrun ", with_a_variable),
    (r"(/usr/bin/)?elastrunctl store ", as_a_service),
    (r"elastrunctl status node\d:29400$", beside_a_service),
    (r"elastrunctl status$", once),
    (r"elastrunctl clean$", once),
    (r"elastrunctl logs .*\bnight\b", beside_a_job),
    (r"elastrunctl stacks( night)?$", of_a_job),
    (r"elastrunctl goodput (report|what-if) .*logs/night_", after_a_job),
    (r"elastrun .*--rdzv-backend etcd ", with_etcd),
    (r"elastrun .*--rdzv-conf is_host=0,secret_file=", on_two_nodes_and_a_service),
    (r"elastrun --nnodes 2:4 ", on_two_nodes),
    (r"elastrun .*--restart-memory /shared/", as_a_plan),
    (r'common="--', lambda shell, command: once(shell, command + ' && test -n "$common"')),
    (r"(srun|mpirun|pbsdsh) [^|;&]*\belastrun ", once),
    (r"(ln -s elastrun|openssl rand) ", once),
    (r"mkdir -p out && elastrun --config ", once),
    (r"(build/release/apps/)?elastrun (--n|--config|--dry-run|--print-|--worker-lib)", once),
    (r"elastrun --hang-timeout ", once),
    (r"elastrun --http ADDRESS:PORT$", with_a_page),
]
# Commands that install or build: what runs them instead.
ELSEWHERE = {
    "scripts/quickstart": "the build, which installs and trains with it",
    "scripts/test": "this test is a part of it",
    "scripts/test quick": "tests/scripts has its options and what it chooses",
    "scripts/bench": "hand: it takes ten minutes; tests/scripts has its options",
    "scripts/wheel": "hand: it compiles everything again; tests/install has its wheel",
    "scripts/cross": "hand: it takes half an hour; tests/scripts has its options",
    "pip install elastrun-*-py3-none-manylinux_2_28_x86_64.whl": "tests/install/wheel_test.py",
    "cmake --preset release && cmake --build --preset release --target elastrun_installed":
        "tests/install, which installs what that builds",
    "cmake --install build/release --prefix ~/.local": "tests/install",
    "python3 config/examples/elastic/demo.py build/release/apps/elastrun": "the test elastic_demo",
    "elastrun -": "tests/system/policy_test.py",
    "python -m elastrun": "tests/system/called_test.py",
    "python -m elastrun.install_torchrun": "tests/clients/hook_test.py",
    "pip install 'elastrun[torchrun]'": "tests/install/wheel_test.py",
    "python -m pdb -m elastrun": "tests/install/wheel_test.py",
    "python $(which elastrun)": "tests/install/wheel_test.py",
    "pip install .": "tests/install/wheel_test.py",
    "cpack --preset release": "tests/install/package_test.py",
    "apt install ./build/elastrun_*.deb": "tests/install/package_test.py",
    "pkill -9 elastrun": "tests/elastrunctl/local_test.py, by pid",
    "pkill -TERM -o elastrun": "the test examples_restarts, by pid",
    "echo $?": "the test examples_restarts",
    "elastrun $common --local-addr 127.0.0.2 train.py --bad-node --steps 50":
        "the test examples_restarts",
    "elastrunctl preempt": "tests/system/policy_test.py",
    "elastrunctl preempt --deadline seconds": "tests/system/policy_test.py",
    '[ $? = 75 ] && scontrol requeue "$SLURM_JOB_ID"': "tests/slurm, where elastrun asks for it",
}


class Documented(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="documented.")))

    def test_each_command_works_as_it_stands(self) -> None:
        helps = {}
        for words in ([ELASTRUN], [CTL], [CTL, "status"], [CTL, "store"]):
            helps[" ".join(words) + " --help"] = subprocess.run(
                [*words, "--help"], capture_output=True, text=True, check=True).stdout
        found = list(all_commands(SOURCE, helps))
        unused = {pattern for pattern, _ in HOW} | set(ELSEWHERE)
        self.assertGreater(len(found), 15, "the documents are not read any more")
        for number, (where, command) in enumerate(found):
            with self.subTest(where=where, command=command):
                if command in ELSEWHERE:
                    unused.discard(command)
                    program = next(word for word in command.split() if word != "python3")
                    self.assertTrue((SOURCE / program).exists() or shutil.which(program)
                                    or program in ("elastrun", "elastrunctl"))
                    print(f"\n  run by {ELSEWHERE[command]}: {command}", file=sys.stderr)
                    continue
                pattern, how = next((one for one in HOW if re.match(one[0], command)), ("", None))
                self.assertIsNotNone(how, "nobody has said how this command is run in a test")
                unused.discard(pattern)
                folder = self.folder / str(number)
                folder.mkdir()
                how(Shell(folder), command)
        self.assertEqual(unused, set(), "of commands that no document shows")

    def test_each_piece_of_a_job_file_is_one(self) -> None:
        found = list(all_toml(SOURCE))
        self.assertGreater(len(found), 4, "the documents are not read any more")
        for number, (where, text) in enumerate(found):
            with self.subTest(where=where, text=text):
                if "\n" not in text:  # one key, whose section the text around it names
                    self.assertEqual(len(tomllib.loads(text)), 1)
                    continue
                folder = self.folder / str(number)
                folder.mkdir()
                shell = Shell(folder)
                (folder / "shown.toml").write_text(text.replace("/etc/job.secret", "secret"))
                shell.env["PET_NPROC_PER_NODE"] = "1"  # there may be no GPU
                del shell.env["PET_RDZV_CONF"]  # which would win
                script = [] if "script" in tomllib.loads(text).get("job", {}) else ["train.py"]
                once(shell, " ".join(["elastrun --config shown.toml --dry-run", *script]))

    def test_each_display_can_be_copied(self) -> None:
        """No line of it is broken at 80 columns, and what looks like JSON or Python is."""
        kinds = {"command": 0, "json": 0, "python": 0}
        for page in pages_of(SOURCE):
            lines = lines_on_a_terminal(page, 80)
            for display in rendered(page).displays:
                with self.subTest(page=page.name, display=display):
                    if list(commands_of_display(display)) or "\n" not in display:
                        kinds["command"] += 1
                        broken = [one for one in display.splitlines() if one.strip() not in lines]
                        self.assertEqual(broken, [])
                    elif display.startswith("{"):
                        kinds["json"] += 1
                        while display := display.strip():
                            display = display[json.JSONDecoder().raw_decode(display)[1]:]
                    elif re.match(r"(from|import) \w", display):
                        kinds["python"] += 1
                        compile(display, page.name, "exec")
        self.assertTrue(all(kinds.values()), kinds)

    def test_a_new_command_is_noticed(self) -> None:
        """The reading itself: of each kind of document one command that is there, by its place."""
        found = {(where, command.split()[0]) for where, command in all_commands(SOURCE, {
            "help": "usage: elastrun [OPTION]...\n  elastrun --version\n"})}
        for wanted in (("man/elastrunctl.1", "elastrunctl"), ("man/elastrun.1", "srun"),
                       ("README.md", "elastrun"), ("help", "elastrun"),
                       ("config/elastrun-store.service", "/usr/bin/elastrunctl"),
                       ("config/elastrun-store.service", "elastrun")):
            self.assertIn(wanted, found)
