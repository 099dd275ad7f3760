# SPDX-License-Identifier: Apache-2.0
"""The fork server against exec: what a worker sees of itself, and how it ends, both ways.

This file plays the agent, and starts each script twice: by exec, and as a child of the server.
"""
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import zipapp
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "lib" / "python" / "elastrun"
BOUND = 60
SUBREAPER = 36

PORTRAIT = r'''
import atexit, json, os, resource, signal, sys, threading
atexit.register(print, "at exit")
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
main = sys.modules["__main__"]
pid = os.getpid()
def stream(one):
    return [one.name, one.mode, one.encoding, one.errors, one.line_buffering, one.write_through,
            one.newlines, type(one.buffer).__name__, os.isatty(one.fileno())]
print(json.dumps({
    "cmdline": open("/proc/self/cmdline", "rb").read().hex(),
    "comm": open("/proc/self/comm").read(),
    "environ": open("/proc/self/environ", "rb").read().hex(), "exe": os.readlink("/proc/self/exe"),
    "os.environ": list(os.environ.items()),
    "leads": [os.getsid(0) == pid, os.getpgid(0) == pid], "cwd": os.getcwd(),
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": str(sys.flags),
    "main": sorted(vars(main)), "file": getattr(main, "__file__", None),
    "name": __name__, "is_main": vars(main) is globals(), "package": __package__,
    "loader": type(main.__loader__).__name__, "spec": str(main.__spec__).split(" object")[0],
    "umask": os.umask(0o22), "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "policy": os.sched_getscheduler(0), "cpus": sorted(os.sched_getaffinity(0)),
    "limits": [resource.getrlimit(one) for one in range(16)],
    "signals": [status[one] for one in ("SigBlk", "SigIgn", "SigCgt")],
    "threads": status["Threads"], "privileges": [status.get(one) for one in (
        "NoNewPrivs", "Seccomp", "CapEff", "Groups", "Uid", "Gid", "CoreDumping", "THP_enabled")],
    "oom": open("/proc/self/oom_score_adj").read(),
    "coredump": open("/proc/self/coredump_filter").read(),
    "fds": sorted(int(one) for one in os.listdir("/proc/self/fd")),
    "streams": [stream(one) for one in (sys.stdin, sys.stdout, sys.stderr)],
    "same": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__],
    "int": str(signal.getsignal(signal.SIGINT)), "stdin": sys.stdin.read(),
    "gc": __import__("gc").isenabled(), "excepthook": sys.excepthook is sys.__excepthook__,
    "native": [threading.main_thread().native_id == pid, threading.get_native_id() == pid],
    "recursion": sys.getrecursionlimit(), "meta_path": len(sys.meta_path)}))
'''


class Agent:
    """What the C++ agent does (lib/process/fork_server.cpp), for one server. `expects`: what that
    says at first."""

    def __init__(self, folder, kind, script, *names, python=sys.executable, expects="ready",
                 **variables):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        flags = [] if kind == "command" else ["-u"]
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8",
                            "XDG_CACHE_HOME": str(folder / "cache"), **variables}
        self.folder, self.python, self.expects = folder, python, expects
        self.server = subprocess.Popen(
            [python, *flags, PACKAGE / "forkserver.py", kind, script, *names], stdin=theirs,
            env=self.environment, cwd=folder, start_new_session=True)
        theirs.close()
        self.control = ours
        ours.settimeout(BOUND)

    def __enter__(self):
        said = self.state()
        if said != self.expects:
            self.__exit__()
            raise AssertionError(said)
        return self

    def __exit__(self, *_):
        self.control.close()
        try:
            self.server.wait(BOUND)
        finally:
            self.server.kill()

    def state(self):
        said = self.control.recv(4096).decode()
        return self.state() if said == "loading" else said

    def fork(self, slot=0, cgroups=()):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket.send_fds(self.control, [b"fork %d 0" % slot], [theirs.fileno(), *cgroups])
        theirs.close()
        ours.settimeout(BOUND)
        return ours, int(ours.recv(64).split()[1])

    def order(self, child, arguments, environment, streams, cpus=""):
        with open(os.memfd_create("order"), "w+b") as memory:
            texts = [cpus, str(len(arguments)), *arguments,
                     *(f"{k}={v}" for k, v in environment.items())]
            memory.write(b"".join(os.fsencode(one) + b"\0" for one in texts))
            memory.seek(0)
            socket.send_fds(child, [b"order"], [memory.fileno(), *streams])
        said = child.recv(4096).decode()
        if said == "ok":
            child.send(b"go")
        return said


def wait_for(pid):
    """Its status; it may become our child only at its end."""
    watch = os.pidfd_open(pid)
    ended, _, _ = select.select([watch], [], [], BOUND)
    os.close(watch)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        raise AssertionError("the process did not end")
    until = time.monotonic() + BOUND
    while True:
        try:
            return os.waitpid(pid, 0)[1]
        except ChildProcessError:  # the process between, which forked it, has not ended yet
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def run_and_collect(start):
    """`start` gets descriptors and gives a process id; what it wrote, and its wait status."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, \
            tempfile.TemporaryFile() as given:
        given.write(b"from stdin\n")
        given.seek(0)
        pid = start((given.fileno(), out.fileno(), err.fileno()))
        status = wait_for(pid)
        out.seek(0)
        err.seek(0)
        return out.read().decode(), err.read().decode(), status


class ForkServer(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)

    def write(self, text, name="train.py"):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
        return path

    def agent(self, *names, text="", **more):
        self.write(text)
        return Agent(self.folder, "script", "train.py", *names, **more)

    def both(self, text, kind="script", cpus="", rank="1"):
        """(output, errors, status) by exec, and by the server."""
        script = self.write(text)
        words = {"script": ["-u", "train.py"], "module": ["-u", "-m", "train"],
                 "command": ["-c", text]}[kind] + ["--lr", "ä\udcff"]
        named = {"script": str(script.name), "module": "train", "command": "train.py"}[kind]
        with Agent(self.folder, kind, named, TWO="2 \udcfe") as agent:
            environment = {**agent.environment, "RANK": rank, "OMP_NUM_THREADS": "1"}
            argv = [sys.executable, *words]

            def execute(streams):
                pid = os.fork()
                if pid == 0:
                    os.setsid()
                    os.chdir(self.folder)
                    if cpus:
                        os.sched_setaffinity(0, {int(cpus)})
                    for target, source in enumerate(streams):
                        os.dup2(source, target)
                    os.closerange(3, 256)
                    os.execve(sys.executable, argv, environment)
                return pid

            return run_and_collect(execute), self.forked(agent, argv[1:], cpus, **environment)

    def forked(self, agent, words, cpus="", **more):
        """(output, errors, status) of a child."""
        def start(streams):
            child, pid = agent.fork()
            with child:
                self.assertEqual(agent.order(child, [agent.python, *words],
                                             {**agent.environment, **more}, streams, cpus), "ok")
            return pid
        return run_and_collect(start)

    def test_a_worker_sees_the_same_of_itself_both_ways(self):
        cpus = str(min(os.sched_getaffinity(0)))
        for kind in ("script", "module", "command"):
            with self.subTest(kind):
                executed, forked = self.both(PORTRAIT, kind, cpus)
                self.assertEqual(executed[1:], ("", 0))
                self.assertEqual(forked[1:], ("", 0))
                seen = [json.loads(one.splitlines()[0]) for one in (executed[0], forked[0])]
                self.assertEqual(seen[1], seen[0])
                self.assertTrue(forked[0].endswith("at exit\n"))

    def test_a_child_whose_agent_dies_before_it_adopts_it_ends_at_once(self):
        with self.agent() as agent:
            ctypes.CDLL(None).prctl(SUBREAPER, 0, 0, 0, 0)  # another process adopts it
            child, pid = agent.fork()
            watch = os.pidfd_open(pid)
            child.close()
            ended, _, _ = select.select([watch], [], [], BOUND / 2)
            os.close(watch)
            self.assertTrue(ended, "it spins until its time to be adopted is over")

    def test_it_ends_the_same_both_ways(self):
        for ending in (
                "import sys; sys.exit(3)", "import sys; sys.exit('in words')", "raise SystemExit",
                "def deep():\n    raise ValueError('here')\ndeep()", "def broken(:\n    pass",
                "raise KeyboardInterrupt", "import os; os._exit(5)", "import os; os.abort()",
                "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
                "import threading, time\n"
                "threading.Thread(target=lambda: (time.sleep(.05), print('late'))).start()",
                "import sys\nprint('not flushed', end='')\nsys.stderr.write('x')",
                "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1 / 0"):
            with self.subTest(ending):
                executed, forked = self.both(ending)
                self.assertEqual(forked, executed)
        executed, forked = self.both("def f():\n    1 / 0\nf()", "module")
        self.assertEqual(forked, executed)

    def test_a_deep_recursion_is_as_deep_as_by_exec(self):
        executed, forked = self.both("def f(n):\n    return n and f(n - 1)\n"
                                     "print(f(980))")
        self.assertEqual(forked, executed)

    def installed(self, **modules):
        """A folder like site-packages, on the path and among the interpreter's own folders."""
        packages = self.folder / "installed"
        for name, text in modules.items():
            self.write(text, f"installed/{name}.py")
        self.write(f"import site\nsite.getsitepackages = lambda: [{str(packages)!r}]\n",
                   "path/usercustomize.py")
        hook = ("import sys, site\n"
                f"sys.path.append({str(packages)!r})\n"
                f"site.getsitepackages = lambda: [{str(packages)!r}]\n")
        self.write(hook, "path/sitecustomize.py")
        return {"PYTHONPATH": str(self.folder / "path")}

    def served(self, agent, text="import sys; print(*sorted(sys.modules))", **more):
        script = self.write(text)
        child, pid = agent.fork()
        said = agent.order(child, [agent.python, "-u", script.name],
                           {**agent.environment, **more}, (0, 1, 2))
        child.close()
        return said, pid

    def loaded(self, agent, **more):
        return self.ran(agent, "import sys; print(*sorted(sys.modules))", **more).split()

    def test_another_environment_than_was_read_is_for_exec(self):
        around = self.installed(ranked="import os\nmode = os.environ.get('MODE')")
        with self.agent("ranked", MODE="a", **around) as agent:
            said, pid = self.served(agent, MODE="b")
            self.assertEqual(said, "unfit ranked has read MODE")
            wait_for(pid)

    def test_what_sees_the_environment_when_an_interpreter_starts_is_for_exec(self):
        around = self.installed()
        with open(self.folder / "path/sitecustomize.py", "a") as text:
            text.write("import os\nrank = os.environ.get('RANK')\n")
        refused = "refused sitecustomize reads variables when the interpreter starts"
        with self.agent(expects=refused, **around):
            pass

    def test_what_is_not_run_as_a_file_is_for_exec(self):
        self.write("")
        self.write("print()", "application/__main__.py")
        for name, interpreter in (("archive.zip", None), ("application", "/usr/bin/env python3")):
            zipapp.create_archive(self.folder / "application", self.folder / f"{name}.pyz",
                                  interpreter)
        with Agent(self.folder, "script", "train.py") as agent:
            for script in ("-", "archive.zip.pyz", "application.pyz", "application", ".",
                           "absent.py"):
                child, pid = agent.fork()
                said = agent.order(child, [agent.python, "-u", script], agent.environment,
                                   (0, 1, 2))
                self.assertTrue(said.startswith("unfit "), said)
                wait_for(pid)
                child.close()

    def test_a_module_beside_the_script_is_not_imported_ahead(self):
        around = self.installed(calm="import helper")
        self.write("", "helper.py")
        with self.agent(text="import helper", **around) as agent:
            self.assertNotIn("helper", self.loaded(agent))

    def test_data_in_a_folder_with_a_module_s_name_hides_none(self):
        # As wandb, datasets and others leave beside the script.
        around = self.installed(calm="import beside", beside="")
        self.write("import calm", "job/train.py")
        self.write("", "job/beside/data.txt")
        with Agent(self.folder, "script", "job/train.py", **around):
            self.write("", "job/beside/__init__.py")
        with Agent(self.folder, "script", "job/train.py", **around,
                   expects="refused beside is a module beside the script, too"):
            pass

    def ran(self, agent, text, **more):
        """What a forked worker wrote of that script."""
        out, errors, status = self.forked(agent, ["-u", self.write(text).name], **more)
        self.assertEqual((errors, status), ("", 0))
        return out

    def test_what_a_module_does_at_its_import_is_so_in_the_workers(self):
        around = self.installed(
            sets="import os\nos.environ['SET'] = '1'\nos.environ.pop('GONE', None)",
            streams="import sys\nclass Out:\n    write = sys.stdout.write\n"
                    "    flush = sys.stdout.flush\nsys.stdout = Out()",
            runs="import subprocess\nsubprocess.run(['true'])",
            tells="import elastrun\ndef step():\n    print(elastrun.step.__name__)")
        around["PYTHONPATH"] += f":{PACKAGE.parent}"
        text = ("import os, sets, streams, runs, tells\n"
                "print(os.environ.get('SET'), os.environ.get('GONE'))\ntells.step()")
        self.write(text)
        with Agent(self.folder, "script", "train.py", GONE="here", **around) as agent:
            self.assertEqual(self.ran(agent, text), "1 None\nstep\n")
            self.assertIn("runs", self.ran(agent, "import sys\nprint(*sys.modules)"))

    def test_what_must_not_be_had_in_common_is_left_to_the_workers(self):
        """Threads, a rank, a lock, a process; and all that imports these or is below them."""
        rank = "import os\nrank = os.environ.get('RANK')"
        around = self.installed(
            calm="", lock="import multiprocessing\nlock = multiprocessing.Lock()",
            helper="import subprocess\nhelper = subprocess.Popen(['sleep', '9'])",
            busy="from threading import Thread\nimport time\n"
                 "Thread(target=time.sleep, args=(99,), daemon=True).start()",
            ranked=rank, above="import ranked", inner=rank)
        for name in ("a", "b", "c"):
            self.write("", f"installed/deep/{name}.py")
        self.write("import inner", "installed/deep/__init__.py")
        with self.agent("lock", "helper", "deep.a", "deep.b", "deep.c", "busy", "above", "calm",
                        **around) as agent:
            modules = self.loaded(agent, RANK="3")
            self.assertIn("calm", modules)
            for one in ("lock", "helper", "inner", "deep", "deep.c", "busy", "ranked", "above"):
                self.assertNotIn(one, modules)

    def test_a_variable_that_the_script_sets_is_set_when_a_module_reads_it(self):
        around = self.installed(
            calm="", home="import os\nhome = os.environ.get('MY_HOME', 'default')",
            all="import os\nseen = [v for k, v in os.environ.items() if k.startswith('MY_')]")
        text = ("import {0}\n{1}\nimport home, all, calm, sys\n"
                "print(home.home, 'calm' in sys.modules)")
        for number, (imported, line) in enumerate((
                ("os", "os.environ['MY_HOME'] = 'x'"),
                ("os", "os.environ.setdefault('MY_HOME', 'x')"),
                ("os", "os.environ.update({'MY_HOME': 'x'})"),
                ("own", "own.prepare()"))):
            self.write("from os import environ\ndef prepare():\n    environ['MY_HOME'] = 'x'",
                       "own.py")
            script = self.write(text.format(imported, line))
            with self.subTest(line), Agent(self.folder, "script", "train.py", **around) as agent:
                self.assertEqual(self.ran(agent, script.read_text()), "x True\n")
                modules = self.ran(agent, script.read_text() + "\nprint(*sys.modules)") \
                    if number == 0 else ""
                self.assertEqual("all" in modules.split(), number == 0)
        # It is changed while the server is there.
        with self.agent(text="import home", **around) as agent:
            said, pid = self.served(agent, "import os\nos.environ['MY_HOME'] = 'x'\nimport home")
            self.assertEqual(said, "unfit train.py sets MY_HOME, which home reads when it is "
                                   "imported")
            wait_for(pid)

    def test_a_module_that_the_script_finds_elsewhere_is_for_exec(self):
        around = self.installed(moved="")
        self.write("", "third/party/moved.py")
        path = self.folder / "third" / "party"
        refused = f"refused moved is a module in {path}, too, and train.py changes sys.path"
        for line, expects in (("sys.path.insert(0, 'third/party')", refused),
                              ("sys.path[:0] = ['third/party']", refused),
                              ("sys.path = ['third/party', *sys.path]", refused),
                              ("sys.path.append('third/party')", "ready")):
            self.write(f"import sys\n{line}\nimport moved")
            with self.subTest(line), Agent(self.folder, "script", "train.py", expects=expects,
                                           **around):
                pass

    def test_a_package_installed_meanwhile_makes_it_stale(self):
        around = self.installed(calm="")
        with self.agent("calm", **around) as agent:
            self.write("", "installed/another.py")
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            socket.send_fds(agent.control, [b"fork 0 0"], [theirs.fileno()])
            self.assertTrue(agent.state().startswith("refused stale: "))
            ours.close()
            theirs.close()

    def test_what_a_child_imports_late_is_ahead_for_the_next(self):
        around = self.installed(late="")
        text = "def main():\n    import late, sys\n    print(sys.modules['late'])\nmain()"
        self.write(text)
        probe = self.write("import sys; print('late' in sys.modules)", "probe.py")

        def is_ahead(agent):
            return self.forked(agent, ["-u", probe.name])[0]

        with Agent(self.folder, "script", "train.py", **around) as agent:
            said, pid = self.served(agent, text)
            self.assertEqual((said, wait_for(pid)), ("ok", 0))
            # The agent is told, so that no start waits for these imports.
            self.assertEqual(agent.control.recv(64), b"loading")
            self.assertEqual(agent.control.recv(64), b"ready")
            self.assertEqual(is_ahead(agent), "True\n")
        with Agent(self.folder, "script", "train.py", **around) as agent:
            self.assertEqual(is_ahead(agent), "True\n")

    def learn(self, **around):
        """Where a first worker leaves its list, below the job's folder."""
        text = self.write("pass").read_text()
        with Agent(self.folder, "script", "train.py", **around) as agent:
            said, pid = self.served(agent, text)
            self.assertEqual((said, wait_for(pid)), ("ok", 0))
        return sorted(str(one.relative_to(self.folder)) for one in self.folder.rglob("imports-*"))

    def test_lists_that_none_has_read_for_a_month_are_removed(self):
        for name, age in (("imports-old", 40), ("imports-read", 20), ("other", 40)):
            path = self.write("", f"cache/elastrun/{name}")
            os.utime(path, (time.time() - age * 86400, time.time() - 50 * 86400))
        learnt = self.learn()
        self.assertEqual(len(learnt), 2)
        self.assertEqual(learnt[-1], "cache/elastrun/imports-read")
        self.assertTrue((self.folder / "cache/elastrun/other").exists())

    def test_a_relative_cache_is_none_of_the_job_s_folder(self):
        home = str(self.folder / "home")
        [learnt] = self.learn(XDG_CACHE_HOME="cache", HOME=home)
        self.assertTrue(learnt.startswith("home/.cache/elastrun/imports-"), learnt)
        self.assertEqual(len(self.learn(XDG_CACHE_HOME="cache", HOME="elsewhere")), 1)

    def test_an_absolute_script_runs_where_the_folder_of_the_job_is_gone(self):
        script, gone = self.write("print('ran')"), self.folder / "gone"
        gone.mkdir()
        with Agent(gone, "script", str(script)) as agent:
            shutil.rmtree(gone)
            self.assertEqual(self.forked(agent, ["-u", str(script)]), ("ran\n", "", 0))

    def test_a_child_without_an_order_ends_with_the_agent_s_socket(self):
        with self.agent() as agent:
            child, pid = agent.fork()
            child.close()
            self.assertEqual(os.waitstatus_to_exitcode(wait_for(pid)), 127)
        self.assertEqual(agent.server.returncode, 0)

    def test_torch_and_numpy_have_threads_as_by_exec_and_their_own_randomness(self):
        python = Path(__file__).resolve().parents[2] / ".venv" / "bin" / "python3"
        if not python.exists():
            self.skipTest("no torch here")
        self.write(r"""
import ctypes, os, random, torch, numpy
blas = {line.split()[-1] for line in open("/proc/self/maps") if "openblas" in line}
def threads(path):
    library = ctypes.CDLL(path)
    names = [a + "openblas_get_num_threads" + b for a in ("", "scipy_") for b in ("", "64_")]
    return next(getattr(library, one)() for one in names if hasattr(library, one))
print(torch.get_num_threads(), torch.get_num_interop_threads(), *sorted(map(threads, blas)))
print(torch.rand(1).item(), numpy.random.rand(), random.random())
""")
        cpus = min(os.sched_getaffinity(0))
        argv = [str(python), "-u", "train.py"]
        with Agent(self.folder, "script", "train.py", "torch", "numpy.random",
                   python=str(python)) as agent:

            executed = subprocess.run(
                argv, env=agent.environment, cwd=self.folder, capture_output=True, text=True,
                check=True, timeout=BOUND,
                preexec_fn=lambda: os.sched_setaffinity(0, {cpus})).stdout.splitlines()
            drawn = [executed[1].split()]
            for _ in range(2):
                out, errors, status = self.forked(agent, argv[1:], str(cpus))
                self.assertEqual((errors, status), ("", 0))
                self.assertEqual(out.splitlines()[0], executed[0])
                drawn.append(out.splitlines()[1].split())
            for generator in zip(*drawn):
                self.assertEqual(len(set(generator)), 3, generator)


if __name__ == "__main__":
    unittest.main()
