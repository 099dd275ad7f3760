# SPDX-License-Identifier: Apache-2.0
"""Which modules a fork server imports ahead, and whether what it has imported may be forked.

What a worker had imported at the end of its first step, without what lies outside the folders of
the interpreter: that is the user's own, and may change between two starts. It is learnt from the
first child of local rank 0 and kept for the next job; until then the imports in the script's text
stand for it, and what torch is known to import when an optimizer first steps.
"""
from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import os
import site
import sys
import sysconfig
import time
from collections.abc import Iterator, MutableMapping

_NOT_AHEAD = ("elastrun", "sitecustomize", "usercustomize", "__main__", "__mp_main__",
              "antigravity", "this")
# What a first step imports, whatever the script does.
_WITH_TORCH = ("torch._dynamo", "torch.distributed", "torch.nn.parallel")
_MOST_FILES = 200  # of the script's own that are searched for imports
_MOST_NAMES = 50_000
_PREFIX = "imports-"  # of the files of what was learnt
_KEPT_UNREAD = 30 * 24 * 3600.0  # seconds
# What differs between two workers, or between two starts of one.
_VARYING = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE",
            "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/accel", "/dev/davinci", "/dev/habana")


def _varies(name: str) -> bool:
    return name in _VARYING or name.startswith(("TORCHELASTIC_", "ELASTRUN_"))


def folders() -> list[str]:
    """Where the interpreter's own and installed modules lie."""
    found = [sysconfig.get_path(one) for one in ("stdlib", "platstdlib", "purelib", "platlib")]
    with contextlib.suppress(AttributeError):  # an old virtualenv
        found += [*site.getsitepackages(), site.getusersitepackages()]
    return sorted({os.path.realpath(one) for one in found if one and os.path.isdir(one)})


def _cache() -> str:
    """"" without a home: a relative folder would lie in that of the job, for each a new one."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    found = named if os.path.isabs(named) else os.path.expanduser("~/.cache")
    return os.path.join(found, "elastrun") if os.path.isabs(found) else ""


def _remove_unused(folder: str) -> None:
    """Lists that no job has read for a month: each script that was ever run has one."""
    limit = time.time() - _KEPT_UNREAD
    for one in os.scandir(folder):
        if one.name.startswith(_PREFIX):
            with contextlib.suppress(OSError):  # another job removes it, too
                about = one.stat(follow_symlinks=False)
                if max(about.st_atime, about.st_mtime) < limit:
                    os.unlink(one.path)


def _is_below(path: str, places: list[str]) -> bool:
    real = _real_folder(os.path.dirname(path)) + os.sep
    return any(real.startswith(one + os.sep) for one in places)


@functools.lru_cache(maxsize=None)
def _real_folder(path: str) -> str:
    return os.path.realpath(path)


class _Environment(os._Environ):  # type: ignore[type-arg]
    """Notes which module looks at which variable while it is imported."""

    reads: dict[str, str] = {}

    def __getitem__(self, key: str) -> str:
        if key not in self.reads:
            self.reads[key] = _module_in_the_making()
        return super().__getitem__(key)  # type: ignore[no-any-return]


def _module_in_the_making() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        if spec is not None and getattr(spec, "_initializing", False):
            return str(spec.name)
        frame = frame.f_back  # type: ignore[assignment]
    return ""


@contextlib.contextmanager
def _noting_reads() -> Iterator[dict[str, str]]:
    environment = os.environ
    plain = environment.__class__
    environment.__class__ = _Environment
    try:
        yield _Environment.reads
    finally:
        environment.__class__ = plain


def _reads_at_start() -> str:
    """Which module of the user's has seen no rank when this interpreter started. One
    that does not mention the environment will do: Linux distributions have such.
    """
    ours = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start")
    for name in ("sitecustomize", "usercustomize"):
        path = getattr(sys.modules.get(name), "__file__", None)
        if path and os.path.dirname(os.path.abspath(path)) != ours:
            with contextlib.suppress(OSError), open(path, "rb") as file:
                text = file.read()
                if b"environ" in text or b"getenv" in text:
                    return f"{name} reads variables when the interpreter starts"
    return ""


def _imports_of(path: str) -> list[str]:
    """As `module` or `module:name`; what functions import is left out: it may never be."""
    with open(path, "rb") as text:
        pending: list[ast.AST] = [ast.parse(text.read())]
    found: list[str] = []
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.Import):
            found += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found += [f"{node.module}:{one.name}" for one in node.names if one.name != "*"]
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            pending += ast.iter_child_nodes(node)
    return found


def _file_of(name: str, folder: str) -> str:
    base = os.path.join(folder, *name.split("."))
    tries = (base + ".py", os.path.join(base, "__init__.py"), os.path.join(base, "__main__.py"))
    return next((one for one in tries if os.path.isfile(one)), "")


def guess(path: str, folder: str) -> list[str]:
    """From the text of a script and of the modules in its folder. Hostile text costs the guess."""
    names: dict[str, None] = {}
    files = [path]
    for file in files:  # grows
        with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError):
            for name in _imports_of(file):
                own = _file_of(name.partition(":")[0], folder)
                if not own:
                    names[name] = None
                elif own not in files and len(files) < _MOST_FILES:
                    files.append(own)
    if any(one.partition(":")[0].split(".")[0] in ("torch", "lightning", "transformers")
           for one in names):
        names.update(dict.fromkeys(_WITH_TORCH))
    return list(names)


class Plan:
    """What to import for one job. `names`: the user's list, which replaces all that is found."""

    def __init__(self, kind: str, script: str, names: list[str], skip: list[str]) -> None:
        self.reads: dict[str, str] = {}
        self.environment: dict[str, str] = dict(os.environ)
        self.cpus = len(os.sched_getaffinity(0))
        self.may_learn = False
        self.learner = 0  # the process that learns, not its forks
        self._given = names
        self._skip = set(skip)
        self._bad: dict[str, str] = {}  # entries, with what is wrong with them
        self._tasks = 1
        self._start = _reads_at_start()
        self._folders = folders()
        self._installed = self._packages()
        self._script, self._own = self._place(kind, script)
        key = f"{sys.version}\0{sys.executable}\0{kind}\0{script}\0{self._own}".encode(
            errors="surrogateescape")
        name = _PREFIX + hashlib.sha256(key).hexdigest()[:24]
        folder = "" if names else _cache()
        self._file = os.path.join(folder, name) if folder else ""
        self._learnt_at = 0

    @staticmethod
    def _place(kind: str, script: str) -> tuple[str, str]:
        """The file that is run, or "", and the folder of which modules are found first."""
        if kind == "script":
            real = os.path.realpath(script)
            return real, os.path.dirname(real)
        here = os.getcwd()
        return (_file_of(script, here) if kind == "module" else os.path.realpath(script)), here

    def _mark(self) -> str:
        """Of what the list was learnt from; another one is not for us."""
        text = b""
        with contextlib.suppress(OSError), open(self._script, "rb") as file:
            text = file.read()
        packages = "\0".join(self._installed).encode(errors="replace")
        return hashlib.sha256(text + packages).hexdigest()

    def _packages(self) -> list[str]:
        """By name; those of pip have their versions in one."""
        names: list[str] = []
        for one in self._folders:
            with contextlib.suppress(OSError):
                names += os.listdir(one)
        return sorted(one for one in names if one != "__pycache__")

    def _names(self) -> list[str]:
        if self._given:
            return self._given
        with contextlib.suppress(OSError, ValueError), open(self._file, encoding="utf-8") as file:
            self._learnt_at = os.fstat(file.fileno()).st_mtime_ns
            mark, *names = file.read(4 << 20).split("\n")
            if mark == self._mark():
                return names[:_MOST_NAMES]
        self.may_learn = bool(self._file)
        return guess(self._script, self._own)

    def load(self) -> str:
        """Imports all; "" or why nothing can be forked from this process."""
        if self._start:
            return self._start
        gc_was_on = _without_collections()
        if os.environ.get("OMP_NUM_THREADS") != "1":
            os.environ["OPENBLAS_NUM_THREADS"] = "1"  # it would start them at its import
        with _noting_reads() as reads:
            self.reads = reads
            for name in self._names():
                if name.isprintable() and name.partition(":")[0].split(".")[0] not in _NOT_AHEAD:
                    self._load(name)
        if gc_was_on:
            import gc
            gc.enable()
        return self.why_not() if not self._bad else ""

    def _load(self, name: str) -> None:
        module, _, member = name.partition(":")
        if name in self._skip or module in self._skip or not self._is_installed(module):
            return
        before = len(self.reads)
        with contextlib.suppress(BaseException):  # the worker will say it, at its place
            imported = importlib.import_module(module)
            if member and not hasattr(imported, member):
                importlib.import_module(f"{module}.{member}")
        wrong = [f"{who} reads {one} when it is imported"
                 for one, who in list(self.reads.items())[before:] if _varies(one)]
        tasks = len(os.listdir("/proc/self/task"))
        if tasks > self._tasks:
            wrong.append(f"{module} starts threads when it is imported")
        self._tasks = tasks
        if _accelerators():
            wrong.append(f"{module} opens an accelerator when it is imported")
        if wrong:
            self._bad[name] = wrong[0]

    def _is_installed(self, name: str) -> bool:
        top = name.partition(".")[0]
        if top in sys.builtin_module_names or top in sys.modules:
            return True
        with contextlib.suppress(Exception):
            spec = importlib.util.find_spec(top)
            where = (spec.origin if spec and spec.has_location else None) if spec else None
            if spec and not where and spec.submodule_search_locations:
                where = os.path.join(next(iter(spec.submodule_search_locations)), "x")
            return bool(spec) and (where is None or _is_below(where, self._folders))
        return False

    def to_skip(self) -> list[str]:
        return list(self._bad)

    def why_not(self) -> str:
        """Why this process cannot be forked, with the module's name."""
        if self._bad:
            return next(iter(self._bad.values()))
        if len(os.listdir("/proc/self/task")) > 1:
            return "it has more than one thread"
        if _accelerators():
            return f"it has {_accelerators()} open"
        with contextlib.suppress(OSError):
            for one in os.listdir(self._own):
                name = one.partition(".")[0]
                file = getattr(sys.modules.get(name), "__file__", None)
                if file and one in (name, name + ".py") and not _is_below(file, [self._own]):
                    return f"{name} is a module beside the script, too"
        return ""

    def why_stale(self) -> str:
        """Of what was true at the start: packages are installed and removed."""
        if self._packages() != self._installed:
            return "stale: packages have been installed or removed"
        return self.why_not()

    def unlike(self, environment: MutableMapping[str, str]) -> str:
        """What a module has read at its import that is not so for this worker."""
        for name, module in self.reads.items():
            if environment.get(name) != self.environment.get(name):
                return f"{module or 'a module'} has read {name}"
        return ""

    def learn(self) -> None:
        """In a child, at the end of its first step: what is there now, for those after it. Once."""
        if not self.may_learn or os.getpid() != self.learner:
            return
        self.may_learn = False
        names = []
        for name, module in list(sys.modules.items()):
            where = getattr(module, "__file__", None)
            if name.split(".")[0] not in _NOT_AHEAD and (
                    where is None or _is_below(where, self._folders)) and "\n" not in name:
                names.append(name)
        with contextlib.suppress(OSError, UnicodeError):
            os.makedirs(os.path.dirname(self._file), 0o700, exist_ok=True)
            draft = f"{self._file}.{os.getpid()}"
            with open(draft, "w", encoding="utf-8") as file:
                file.write("\n".join([self._mark(), *names]))
            os.replace(draft, self._file)
            _remove_unused(os.path.dirname(self._file))

    def learnt_more(self) -> bool:
        """Whether a child has; it is for load() then."""
        with contextlib.suppress(OSError):
            if os.stat(self._file).st_mtime_ns != self._learnt_at:
                self.may_learn = False
                return True
        return False


def _without_collections() -> bool:
    import gc
    was_on = gc.isenabled()
    gc.disable()
    return was_on


def _accelerators() -> str:
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{one}")
            if target.startswith(_DEVICES):
                return target
    return ""
