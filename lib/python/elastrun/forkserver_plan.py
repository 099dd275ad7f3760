# SPDX-License-Identifier: Apache-2.0
"""Which modules a fork server imports ahead, and whether what it has imported may be forked.

What a worker had imported at the end of its first step, without what lies outside the folders of
the interpreter: that is the user's own, and may change between two starts. It is learnt from the
first child of local rank 0 and kept for the next job; until then the imports in the script's text,
which may be hostile, stand for it, and what torch is known to import when an optimizer first steps.
"""
from __future__ import annotations

import ast
import contextlib
import functools
import gc
import hashlib
import importlib.machinery
import importlib.util
import os
import site
import sys
import sysconfig
import time
from collections.abc import Iterator, MutableMapping
from typing import NamedTuple

_NOT_AHEAD = ("elastrun", "sitecustomize", "usercustomize", "__main__", "__mp_main__",
              "antigravity", "this")
_MOST_NAMES = 50_000
_PREFIX = "imports-"  # of the files of what was learnt
_KEPT_UNREAD = 30 * 24 * 3600.0  # seconds
# What differs between two workers, or between two starts of one.
_VARYING = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE",
            "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# What is read at an import where no name can be seen to be asked for: by native libraries, and by
# modules that go through all variables.
_UNSEEN = {
    "OMP_": ("torch", "numpy"), "GOMP_": ("torch", "numpy"), "KMP_": ("torch", "numpy"),
    "MKL_": ("torch", "numpy"), "OPENBLAS_": ("torch", "numpy"), "GOTO_": ("torch", "numpy"),
    "BLIS_": ("torch", "numpy"), "PYTORCH_": ("torch",), "GRPC_": ("grpc",),
    "TF_": ("tensorflow",), "XLA_": ("tensorflow", "jaxlib", "torch_xla"), "TQDM_": ("tqdm",),
    "FSSPEC_": ("fsspec",)}
_MOST_FOLDERS = 300  # near the script, that it may put on its path
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/accel", "/dev/davinci", "/dev/habana")
# What a first step imports, whatever the script does.
_WITH_TORCH = ("torch._dynamo", "torch.distributed", "torch.nn.parallel")
_MOST_FILES = 200  # of the script's own that are searched for imports


def _imports_of(tree: ast.AST) -> list[str]:
    """Lists `module` or `module:name`; what functions import is left out: it may never be."""
    pending = [tree]
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


def _is_environment(node: ast.AST) -> bool:
    return (isinstance(node, ast.Name) and node.id == "environ"
            or isinstance(node, ast.Attribute) and node.attr == "environ")


def _changes_path(node: ast.AST) -> bool:
    """Finds sys.path.insert(), or an assignment; not append(): what comes last hides nothing."""
    place: ast.AST | None = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        place = node.func.value if node.func.attr == "insert" else None
    elif isinstance(getattr(node, "ctx", None), ast.Store):
        place = node.value if isinstance(node, ast.Subscript) else node
    return (isinstance(place, ast.Attribute) and place.attr == "path"
            and isinstance(place.value, ast.Name) and place.value.id == "sys")


def _variables_set_in(tree: ast.AST) -> Iterator[str]:
    """Names that stand where a variable is set; wherever that is, as order is hard to tell."""
    for node in ast.walk(tree):
        places: list[ast.AST] = []
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            places = [node.slice] if _is_environment(node.value) else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of, does = node.func.value, node.func.attr
            if does in ("setdefault", "pop") and _is_environment(of) or does == "putenv":
                places = list(node.args[:1])
            elif does == "update" and _is_environment(of):
                places = [one for given in node.args for one in ast.walk(given)]
                yield from (one.arg for one in node.keywords if one.arg)
        yield from (one.value for one in places
                    if isinstance(one, ast.Constant) and isinstance(one.value, str))


class _Text(NamedTuple):
    """Facts from the text of a script and of the modules in its folder."""
    imports: list[str]
    variables: dict[str, str]  # that it sets, with the file's name
    changes_path: str  # the file that puts folders before the others, or ""
    files: dict[str, tuple[int, int]]  # with their time and size


def _state_of(path: str) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        about = os.stat(path)
        return about.st_mtime_ns, about.st_size
    return 0, 0


def _read_text(path: str, folder: str) -> _Text:
    """Hostile text costs what it would say."""
    names: dict[str, None] = {}
    variables: dict[str, str] = {}
    changes_path = ""
    files = [path]
    states: dict[str, tuple[int, int]] = {}
    for file in files:  # grows
        states[file] = _state_of(file)
        with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError):
            with open(file, "rb") as text:
                tree = ast.parse(text.read())
            for one in _variables_set_in(tree):
                variables.setdefault(one, os.path.basename(file))
            if any(map(_changes_path, ast.walk(tree))):
                changes_path = changes_path or os.path.basename(file)
            for name in _imports_of(tree):
                own = _file_of(name.partition(":")[0], folder)
                if not own:
                    names[name] = None
                elif own not in files and len(files) < _MOST_FILES:
                    files.append(own)
    if any(one.partition(":")[0].split(".")[0] in ("torch", "lightning", "transformers")
           for one in names):
        names.update(dict.fromkeys(_WITH_TORCH))
    return _Text(list(names), variables, changes_path, states)


def folders() -> list[str]:
    """The folders of the interpreter's own and of installed modules."""
    found = [sysconfig.get_path(one) for one in ("stdlib", "platstdlib", "purelib", "platlib")]
    with contextlib.suppress(AttributeError):  # an old virtualenv
        found += [*site.getsitepackages(), site.getusersitepackages()]
    return sorted({os.path.realpath(one) for one in found if one and os.path.isdir(one)})


_real_folder = functools.lru_cache(maxsize=None)(os.path.realpath)


def _is_below(path: str, places: list[str]) -> bool:
    real = _real_folder(os.path.dirname(path)) + os.sep
    return any(real.startswith(one + os.sep) for one in places)


class _Environment(os._Environ):  # type: ignore[type-arg]
    """Notes which module looks at which variable while it is imported."""

    reads: dict[str, str] = {}

    def __getitem__(self, key: str) -> str:
        # subprocess looks for PATH as bytes, too. And what goes through items() is after some
        # prefix (_UNSEEN), not after each variable that happens to be there.
        if isinstance(key, str) and key not in self.reads and not _is_gone_through():
            self.reads[key] = _module_in_the_making()
        return super().__getitem__(key)  # type: ignore[no-any-return]


def _is_gone_through() -> bool:
    code = sys._getframe(2).f_code
    return code.co_name == "__iter__" and "_collections_abc" in code.co_filename


def _module_in_the_making() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        if spec is not None and getattr(spec, "_initializing", False):
            return str(spec.name)
        frame = frame.f_back  # type: ignore[assignment]
    return ""


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


def _hidden_by(folder: str) -> str:
    """A module that has been imported from elsewhere, and is in that folder, too; or ""."""
    with contextlib.suppress(OSError):
        for name in {one.partition(".")[0] for one in os.listdir(folder)}:
            file = getattr(sys.modules.get(name), "__file__", None)
            if file and not _is_below(file, [folder]):
                spec = importlib.machinery.PathFinder.find_spec(name, [folder])
                # Not a folder without an __init__.py, as wandb and datasets leave for their files.
                if spec is not None and spec.origin is not None:
                    return name
    return ""


class Plan:
    """The imports of one job. `names`: the user's list, which replaces all that is found."""

    def __init__(self, kind: str, script: str, names: list[str], skip: list[str]) -> None:
        self.reads: dict[str, str] = {}
        self.environment: dict[str, str] = dict(os.environ)
        self.changes: dict[str, str | None] = {}  # to it, by what was imported
        self.cpus = len(os.sched_getaffinity(0))
        self.may_learn = False
        self.learner = 0  # the process that learns, not its forks
        self._given = names
        self.skip = set(skip)
        self.bad: dict[str, str] = {}  # entries, with what is wrong with them
        self._held: dict[str, int] = {}
        self._folders = folders()
        self._installed = self._packages()
        # The file that is run, or "", and the folder of which modules are found first.
        self._script = os.path.realpath(script)
        self._own = os.path.dirname(self._script) if kind == "script" else os.getcwd()
        if kind == "module":
            self._script = _file_of(script, self._own)
        self._text = _read_text(self._script, self._own)
        key = f"{sys.version}\0{sys.executable}\0{kind}\0{script}\0{self._own}".encode(
            errors="surrogateescape")
        cache = os.environ.get("XDG_CACHE_HOME", "")
        folder = os.path.join(cache if os.path.isabs(cache) else os.path.expanduser("~/.cache"),
                              "elastrun")
        # None without a home: a relative one would lie in that of the job, for each a new one.
        self._file = "" if names or not os.path.isabs(folder) else os.path.join(
            folder, _PREFIX + hashlib.sha256(key).hexdigest()[:24])
        self._learnt_at = 0

    def _mark(self) -> str:
        """A digest of what the list was learnt from; another list is not for us."""
        text = b""
        with contextlib.suppress(OSError), open(self._script, "rb") as file:
            text = file.read()
        packages = "\0".join(self._installed).encode(errors="replace")
        return hashlib.sha256(text + packages).hexdigest()

    def _packages(self) -> list[str]:
        """Lists them by name; those of pip have their versions in one."""
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
        return self._text.imports

    def load(self) -> str:
        """Imports all; "" or why nothing can be forked from this process."""
        if why := _reads_at_start():
            return why
        self._held = _held()
        self.reads = _Environment.reads
        with contextlib.ExitStack() as after:
            if gc.isenabled():
                after.callback(gc.enable)
            gc.disable()
            if os.environ.get("OMP_NUM_THREADS") != "1":  # OpenBLAS would start some at its import
                name = "OPENBLAS_NUM_THREADS"
                after.callback(os.environ.update,
                               {name: os.environ[name]} if name in os.environ else {})
                after.callback(os.environ.pop, name, None)
                os.environ[name] = "1"
            after.callback(setattr, os.environ, "__class__", os.environ.__class__)
            os.environ.__class__ = _Environment
            for name in self._names():
                module, _, member = name.partition(":")
                parts = module.split(".")
                if not name.isprintable() or parts[0] in _NOT_AHEAD:
                    continue
                # One after the other, to see which of them to leave out, with all that is below.
                for count in range(1, len(parts)):
                    self._load(".".join(parts[:count]))
                self._load(module, member)
        now = dict(os.environ)
        self.changes = {name: now.get(name) for name in {*now, *self.environment}
                        if now.get(name) != self.environment.get(name)}
        return self._hidden_by_path() or self.why_not() if not self.bad else ""

    def _load(self, module: str, member: str = "") -> None:
        if module in sys.modules and (not member or hasattr(sys.modules[module], member)):
            return
        if self._is_left_out(module) or not self._is_installed(module):
            return
        before, unset = len(self.reads), self._set_too_late(self._text)
        with contextlib.suppress(BaseException):  # the worker will say it, at its place
            imported = importlib.import_module(module)
            if member and not hasattr(imported, member):
                importlib.import_module(f"{module}.{member}")
        wrong = [f"{who} reads {one} when it is imported"
                 for one, who in list(self.reads.items())[before:]
                 if one in _VARYING or one.startswith(("TORCHELASTIC_", "ELASTRUN_"))]
        held, self._held = self._held, _held()
        wrong += [f"{module} {what} when it is imported"
                  for what, count in self._held.items() if count > held[what]]
        too_late = self._set_too_late(self._text)
        if too_late != unset:
            wrong.append(too_late)
        if wrong:
            self.bad[module] = wrong[0]

    def _is_left_out(self, module: str) -> bool:
        """Tells if it is below one that is left out, which would be imported first."""
        return any((module + ".").startswith(one + ".") for one in self.skip)

    def _set_too_late(self, text: _Text) -> str:
        """A variable that the script sets and an import here has read; or ""."""
        for variable, file in text.variables.items():
            by = [one for prefix, tops in _UNSEEN.items() if variable.startswith(prefix)
                  for one in tops if one in sys.modules]
            if by or variable in self.reads:
                return (f"{file} sets {variable}, which {(by or [self.reads[variable]])[0]} reads "
                        "when it is imported")
        return ""

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

    def why_not(self) -> str:
        """Why this process cannot be forked, with the module's name."""
        if self.bad:
            return next(iter(self.bad.values()))
        if len(os.listdir("/proc/self/task")) > 1:
            return "it has more than one thread"
        if _accelerators():
            return f"it has {_accelerators()} open"
        name = _hidden_by(self._own)
        if name:
            return f"{name} is a module beside the script, too"
        return self._set_too_late(self._text)

    def _hidden_by_path(self) -> str:
        """Which folders a script puts on its path is not known before it runs: those near it."""
        if not self._text.changes_path:
            return ""
        # Down to two below it, and beside it, as src and third_party are.
        near = [os.path.dirname(self._own), self._own]
        for depth, start in ((1, near[0]), (2, near[1])):
            level = [start]
            for _ in range(depth):
                below: list[str] = []
                for one in level:
                    with contextlib.suppress(OSError):
                        below += [entry.path for entry in os.scandir(one) if entry.is_dir()]
                level = below[:_MOST_FOLDERS]
                near += level
        for folder in dict.fromkeys(near):
            name = "" if _is_below(os.path.join(folder, "x"), self._folders) \
                else _hidden_by(folder)
            if name:
                return (f"{name} is a module in {folder}, too, and "
                        f"{self._text.changes_path} changes sys.path")
        return ""

    def why_stale(self) -> str:
        """Says what is no longer so: packages are installed and removed."""
        if self._packages() != self._installed:
            return "stale: packages have been installed or removed"
        return self.why_not()

    def unlike(self, environment: MutableMapping[str, str]) -> str:
        """Says what a module has read at its import that is not so for this worker."""
        for name, module in self.reads.items():
            if environment.get(name) != self.environment.get(name):
                return f"{module or 'a module'} has read {name}"
        if all(_state_of(one) == state for one, state in self._text.files.items()):
            return ""
        text = _read_text(self._script, self._own)
        if text.changes_path and not self._text.changes_path:
            return f"{text.changes_path} changes sys.path now"
        return self._set_too_late(text)

    def learn(self) -> None:
        """Writes, in a child at the end of its first step, what is imported by now. Once."""
        if not self.may_learn or os.getpid() != self.learner:
            return
        self.may_learn = False
        names = []
        for name, module in list(sys.modules.items()):
            where = getattr(module, "__file__", None)
            if name.split(".")[0] not in _NOT_AHEAD and not self._is_left_out(name) and (
                    where is None or _is_below(where, self._folders)) and "\n" not in name:
                names.append(name)
        folder = os.path.dirname(self._file)
        with contextlib.suppress(OSError, UnicodeError):
            os.makedirs(folder, 0o700, exist_ok=True)
            draft = f"{self._file}.{os.getpid()}"
            with open(draft, "w", encoding="utf-8") as file:
                file.write("\n".join([self._mark(), *names]))
            os.replace(draft, self._file)
            # Lists that no job has read for a month: each script that was ever run has one.
            limit = time.time() - _KEPT_UNREAD
            for one in os.scandir(folder):
                if one.name.startswith(_PREFIX):
                    with contextlib.suppress(OSError):  # another job removes it, too
                        about = one.stat(follow_symlinks=False)
                        if max(about.st_atime, about.st_mtime) < limit:
                            os.unlink(one.path)

    def learnt_more(self) -> bool:
        """Tells if a child has; it is for load() then."""
        with contextlib.suppress(OSError):
            if os.stat(self._file).st_mtime_ns != self._learnt_at:
                self.may_learn = False
                return True
        return False


def _held() -> dict[str, int]:
    """Counts what a fork would not have, or share with others, by what is said of its cause."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        shared = sum(line.split(maxsplit=2)[1].startswith("rw-s") for line in maps)
    has_child = True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        has_child = False
    return {"starts threads": len(os.listdir("/proc/self/task")), "starts a process": has_child,
            "shares memory": shared, "opens an accelerator": bool(_accelerators())}


def _accelerators() -> str:
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{one}")
            if target.startswith(_DEVICES):
                return target
    return ""
