# SPDX-License-Identifier: Apache-2.0
"""What the tests of this folder share: commands that have to succeed."""
from __future__ import annotations

import subprocess
from typing import Any


def succeed(*words: object, **more: Any) -> str:
    """Its standard output. `more`: of subprocess.run."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    done = subprocess.run([str(word) for word in words], **{**pipes, **more})
    if done.returncode != 0:
        raise AssertionError(f"{words} ended with {done.returncode}:\n{done.stdout}"
                             f"{done.stderr or ''}")
    return done.stdout
