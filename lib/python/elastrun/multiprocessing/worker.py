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


def _wait_for_the_others() -> None:
    """As torch's: a worker that ends early takes down what others still use. The agent ends the
    connection when the functions of all workers of this node have returned.
    """
    import socket

    channel = os.environ.get("ELASTRUN_CHANNEL")
    if not channel:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
            agent.connect(os.path.abspath(channel))
            agent.send(b'{"kind":"returned"}')
            agent.recv(1)
    except OSError:
        pass


def _run(payload: int, tracker: int, results: int) -> None:
    from elastrun.multiprocessing import payload as parcel

    worker, rank = os.getpid(), int(os.environ["RANK"])  # before others can change that
    function, args, by_value = parcel.load(payload, tracker)
    value = function(*args)
    if os.getpid() != worker:  # a child that it forked, and that came back
        return
    name = getattr(function, "__qualname__", repr(function))
    parcel.send_value(results, rank, name, value, by_value)
    _wait_for_the_others()


def main() -> None:
    from elastrun.errors import record

    record(_run)(*map(int, sys.argv[1:4]))


if __name__ == "__main__":
    main()
