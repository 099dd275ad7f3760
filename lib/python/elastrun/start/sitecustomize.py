# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""Python imports this before anything else in the workers of `elastrun --goodput auto`, whose
PYTHONPATH begins with this folder, and in each Python process below them, of whatever version: in
those it only makes way for the sitecustomize that it hides, if any, as it does in the worker.
"""
import os
import sys


def _concerns_this_process():
    # The worker's first Python finds "auto", and leaves its own id to those below it.
    return os.environ.get("ELASTRUN_GOODPUT") in ("auto", "auto/%d" % os.getpid())


def _start():
    try:
        from elastrun import auto
        auto.start()
    except Exception:  # no account is worth a worker
        pass


def _find_the_next():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [one for one in sys.path if os.path.abspath(one) != here]
    mine = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        if mine is not None:
            sys.modules.setdefault("sitecustomize", mine)


try:
    if _concerns_this_process():
        _start()
finally:
    _find_the_next()
