# SPDX-License-Identifier: Apache-2.0
"""A worker that runs a function: `python worker.py PAYLOAD TRACKER RESULTS`, three inherited
descriptors. Started by the agent, for LocalElasticAgent. By its path, because the package may be
where only the caller's sys.path finds it, which comes with the payload.
"""
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
if sys.path and os.path.abspath(sys.path[0]) == _HERE:
    del sys.path[0]  # a folder with modules named api and errors
_ROOT = os.path.dirname(os.path.dirname(_HERE))
if _ROOT not in sys.path:
    sys.path.append(_ROOT)


def _run(payload: int, tracker: int, results: int) -> None:
    from elastrun.multiprocessing import payload as parcel

    rank = int(os.environ["RANK"])  # before what is loaded can change that
    function, args, by_value = parcel.load(payload, tracker)
    parcel.run_function(function, args, results, by_value, rank)


def main() -> None:
    from elastrun.errors import record

    record(_run)(*map(int, sys.argv[1:4]))


if __name__ == "__main__":
    main()
