# SPDX-License-Identifier: Apache-2.0
"""The launcher in place of torch's once the import hook is installed (torchrun_hook):
elastrun, with torch's own classes going in and coming out, so that a program written for torch's
sees no other. What elastrun cannot take over, torch's launcher runs as ever, and a line says why.
"""
from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from elastrun import program

_HINT = "(ELASTRUN_TORCHRUN=0: torch's own)"
# Options of torch's launcher that no value follows, and ours.
_FLAGS = ("module", "no-python", "run-path", "standalone", "virtual-local-rank", "use-env", "help",
          "worker-lib", "dry-run", "explain", "version", "print-config")
_said: set[str] = set()


def _say(text: str) -> None:
    """Says it once in a process: a program may launch many times."""
    if text in _said:
        return
    _said.add(text)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it is closed, or None
        sys.stderr.write(f"elastrun: {text}\n")
        sys.stderr.flush()


# As a command: python -m torch.distributed.run, python -m torch.distributed.launch.


def become_launcher(module: str, words: Sequence[str]) -> None:
    """This process becomes elastrun, with the interpreter that it was. Returns where the program is
    missing, and torch's launcher then goes on."""
    if program.find_program("elastrun") is None:
        _say(f"torch's own launcher runs: the program elastrun is missing {_HINT}")
        return
    words = list(words)
    if module.endswith(".launch"):
        words = with_local_rank(words)
    _say(f"runs in place of {module} {_HINT}")
    sys.argv = ["torchrun", *words]
    program.main()


def with_local_rank(words: Sequence[str]) -> list[str]:
    """The words of torch.distributed.launch for elastrun: without --use-env each worker gets its
    local rank as first argument. Exits as torch does where that cannot be."""
    words = list(words)
    script = _place_of_script(words)
    options, rest = words[:script], words[script:]
    use_env = any(_is(word, "use-env") for word in options)
    if not use_env and any(_is(word, "no-python") for word in options):
        sys.exit("torch.distributed.launch: error: When using the '--no-python' flag, you must "
                 "also set the '--use-env' flag.")
    options = [word for word in options if not _is(word, "use-env")]
    if not use_env:
        rest.insert(1, "--local-rank=${local_rank}")
    return options + rest


def _is(word: str, flag: str) -> bool:
    """Tells if it is this option, or an abbreviation of three letters and more."""
    name = word[2:].replace("_", "-")
    return word.startswith("--") and len(name) >= 3 and flag.startswith(name)


def _place_of_script(words: Sequence[str]) -> int:
    at = 0
    while at < len(words):
        word = words[at]
        if not word.startswith("-") or word in ("-", "--"):
            return at
        if word.startswith("--"):
            alone = "=" in word or any(_is(word, flag) for flag in _FLAGS)
        else:
            alone = word in ("-m", "-h") or len(word) > 2  # -r 3, -r3
        at += 1 if alone else 2
    return len(words)


# As a library: torch.distributed.launcher.api.launch_agent.

def _parts(api: Any) -> dict[str, tuple[Any, ...]]:
    """What of the launcher's module a program may replace (by its own agent, a mock): torch's
    launcher alone uses that, and runs then."""
    agent = getattr(api, "LocalElasticAgent", None)
    registry = getattr(api, "rdzv_registry", None)
    return {"LocalElasticAgent": (agent, getattr(agent, "run", None)),
            "get_rendezvous_handler": (getattr(registry, "get_rendezvous_handler", None),)}


def replace_launch_agent(api: Any) -> None:
    """Does so in `api`, the module torch.distributed.launcher.api, whatever its version."""
    theirs = getattr(api, "launch_agent", None)
    if theirs is None:
        return
    parts = _parts(api)  # as they are when it is imported

    @functools.wraps(theirs)
    def launch_agent(config: Any, entrypoint: Any, args: Any, *more: Any, **named: Any) -> Any:
        from elastrun.launcher import api as ours

        adapted, no_fork = None, ""
        now = _parts(api)
        replaced = next((name for name in parts if now[name] != parts[name]), None)
        why = _obstacle(replaced, config, [*more, *named.values()])
        if why is None:
            adapted, no_fork = _adapted(ours.completed(config), entrypoint)
            why = _not_pickled(adapted, entrypoint, args)
            if why is not None and no_fork:
                why = f"{why}; {no_fork}"
        if why is not None:
            _say(f"torch's own launcher runs: {why} {_HINT}")
            return theirs(config, entrypoint, args, *more, **named)
        _hand_over(api, adapted)
        said = f"launches in place of torch.distributed.launcher {_HINT}"
        _say(f"{said}; without forks: {no_fork}" if no_fork else said)
        try:
            return ours.launch_agent(adapted, entrypoint, list(args))
        except Exception as error:
            as_torch = _as_torch(error)
            if as_torch is error:
                raise
            raise as_torch from None

    api.launch_agent = launch_agent


def _adapted(config: Any, entrypoint: Any) -> tuple[Any, str]:
    """Functions of forked workers need not be importable: where this process cannot be forked, they
    go by value, and the caller's main module is not imported again, which may not expect that. The
    second is the reason then."""
    if not callable(entrypoint) or config.start_method != "fork":
        return config, ""
    from elastrun.multiprocessing.fork import obstacle
    from elastrun.rendezvous import rendezvous_handler_registry as ours

    if config.rdzv_backend in getattr(ours, "_registry", {}):
        why = obstacle()
    else:
        why = f"the program has its own rendezvous handler {config.rdzv_backend}, which has threads"
    if why is None:
        return config, ""
    config.start_method = "spawn"
    config.elastrun = {"by_value": True}
    return config, why


def _obstacle(replaced: str | None, config: Any, more: Sequence[Any]) -> str | None:
    """Why elastrun cannot run this; None: it can. `replaced`: one of _parts."""
    from elastrun.launcher.api import LaunchConfig

    if replaced is not None:
        return f"the program has its own {replaced}"
    if any(one is not None for one in more):
        return "the program has its own health check server"
    logs_specs = type(getattr(config, "logs_specs", None)).__name__
    if logs_specs not in ("DefaultLogsSpecs", "NoneType"):
        return f"the program has its own {logs_specs}"
    for name, one in getattr(config, "__dataclass_fields__", {}).items():
        if name not in LaunchConfig.__dataclass_fields__ and getattr(config, name) != one.default:
            return f"elastrun does not know LaunchConfig.{name} of this torch"
    if program.find_program("elastrun") is None:
        return "the program elastrun is missing"
    return None


def _not_pickled(adapted: Any, entrypoint: Any, args: Sequence[Any]) -> str | None:
    if not callable(entrypoint) or adapted.start_method == "fork":
        return None
    from elastrun.multiprocessing import payload

    try:
        payload.pack(entrypoint, tuple(args), bool(adapted.elastrun)).close()
    except TypeError as error:
        return str(error)
    return None


def _of_torch(module: str) -> Any:
    """Imports by name: types are checked without torch, too."""
    return importlib.import_module(f"torch.distributed.elastic.{module}")


def _as_torch(error: Exception) -> Exception:
    """Translates into torch's classes, which programs catch; others stay as they are."""
    errors = _of_torch("multiprocessing.errors")
    rendezvous = _of_torch("rendezvous.api")

    from elastrun.agent.server.local_elastic_agent import AgentError
    from elastrun.multiprocessing import SignalException as OurSignal
    from elastrun.multiprocessing.errors import ChildFailedError
    from elastrun.rendezvous import RendezvousError

    taken = "cannot listen on" in str(error)
    if isinstance(error, ChildFailedError):
        failures = {}
        for rank, one in error.failures.items():
            failures[rank] = errors.ProcessFailure(one.local_rank, one.pid, one.exitcode,
                                                   one.error_file)
            failures[rank].message, failures[rank].timestamp = one.message, one.timestamp
        theirs: Exception = errors.ChildFailedError(error.name, failures)
    elif isinstance(error, OurSignal):
        signal = _of_torch("multiprocessing.api").SignalException
        theirs = signal(str(error), error.sigval)
    elif isinstance(error, RendezvousError):
        name = "RendezvousConnectionError" if taken else type(error).__name__
        theirs = getattr(rendezvous, name, rendezvous.RendezvousError)(*error.args)
    elif taken and isinstance(error, AgentError):  # of the store, with the words programs look for
        distributed = importlib.import_module("torch.distributed")
        theirs = getattr(distributed, "DistNetworkError", RuntimeError)(
            f"{error} (EADDRINUSE, address already in use)")
    else:
        return error
    return theirs


# What a program has registered with torch: rendezvous handlers, receivers of events and metrics.

def _hand_over(api: Any, config: Any) -> None:
    from elastrun.rendezvous import rendezvous_handler_registry as ours

    def handler_of_torch(params: Any) -> Any:
        theirs = api.RendezvousParameters(
            backend=params.backend, endpoint=params.endpoint, run_id=params.run_id,
            min_nodes=params.min_nodes, max_nodes=params.max_nodes, local_addr=params.local_addr,
            **params.config)
        return api.rdzv_registry.get_rendezvous_handler(theirs)

    if config.rdzv_backend not in getattr(ours, "_registry", {}):
        ours.register(config.rdzv_backend, handler_of_torch)
    if config.event_log_handler not in ("null", "console"):
        from elastrun import events

        def record(event: Any) -> None:
            if hasattr(event, "source"):
                of = _of_torch("events")
                of.record(of.Event.deserialize(event.serialize()), config.event_log_handler)

        receiver: Any = SimpleNamespace(record=record)
        events.configure(receiver, config.event_log_handler)

    from elastrun import metrics
    theirs = _of_torch("metrics.api")

    def emit(data: Any) -> None:
        handler = theirs._metrics_map.get(data.group_name, theirs._default_metrics_handler)
        handler.emit(theirs.MetricData(*data))

    handlers = (theirs._default_metrics_handler, *theirs._metrics_map.values())
    if any(type(one).__name__ != "NullMetricHandler" for one in handlers):  # which is the default
        handler: Any = SimpleNamespace(emit=emit)
        metrics.configure(handler)
