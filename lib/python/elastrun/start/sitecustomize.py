# SPDX-License-Identifier: Apache-2.0
"""Python imports this before anything else in the workers of `elastrun --goodput auto`, whose
PYTHONPATH begins with this folder. Then it makes way for the sitecustomize that it hides, if any.
"""
import os
import sys


def _find_the_next() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [one for one in sys.path if os.path.abspath(one) != here]
    mine = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if mine is not None:
            sys.modules.setdefault("sitecustomize", mine)


try:
    from elastrun import auto
    auto.start()
except Exception:  # no account is worth a worker
    pass
_find_the_next()
