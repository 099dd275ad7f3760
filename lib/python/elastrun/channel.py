# SPDX-License-Identifier: Apache-2.0
"""Worker to agent: one JSON object a packet, over the SOCK_SEQPACKET socket ELASTRUN_CHANNEL."""
from __future__ import annotations

import collections
import contextlib
import errno
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping

from elastrun.outbox import Outbox, at_begin, at_end, at_fork
from elastrun.page import page

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# After a failed connect the next try waits this long, so that a vanished agent costs a worker that
# reports every millisecond one system call a second and not a thousand.
_RETRY_SECONDS = 1.0
_OWED_SECONDS = 0.02  # between two tries of what must not be lost
_LINGER_SECONDS = 1.0  # at the exit of a process, for an agent that is behind
_LINGER_PAUSE = 0.002  # between two tries then
_LONGEST = 256  # bytes of a name or a label, for the agent
_LONGEST_PACKET = 16_384  # bytes, the same
_LONGEST_TEXTS = (4096, 1024, 256)  # bytes of each, in an event that is too long with longer ones
_LONGEST_ESCAPE = 6  # bytes of a character in JSON: \uXXXX


def _packet(fields: dict[str, Any]) -> bytes:
    import json  # which takes as long as all this, and is of no use outside elastrun

    return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()


class Channel:
    """The connection of this process, made at the first message. Never blocks, never raises."""

    def __init__(self) -> None:
        self.begin("")
        self._debt = outbox.duty(self._send_owed)
        # A forked child (a data loader, a pool) gets another connection: the agent tells
        # senders apart by the credentials of the connecting process.
        at_fork(self._forget)
        at_end(self.linger)

    def begin(self, path: str) -> None:
        """`path`: of the agent's socket; empty: there is none."""
        self.path = path
        self.dropped = 0
        self._forget()

    def _forget(self) -> None:
        self._socket: socket.socket | None = None
        self._next_try = 0.0
        self._linger_until: float | None = None
        self._owed: collections.deque[bytes] = collections.deque()
        self._paying = threading.Lock()
        self._told = self.dropped  # of these, to the agent; a child's are not its parent's
        self._telling = threading.Lock()
        self._connecting = threading.Lock()  # a new one: another thread may have held the old

    def _connect(self) -> socket.socket | None:
        if (not self.path or time.monotonic() < self._next_try
                or not self._connecting.acquire(blocking=False)):
            return None
        try:
            if self._socket is not None:  # another thread was faster
                return self._socket
            connection = None
            try:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                connection.setblocking(False)
                connection.connect(self.path)
            except OSError:  # not there, not listening, its queue is full, or no descriptor is left
                if connection is not None:
                    connection.close()
                self._next_try = time.monotonic() + _RETRY_SECONDS
                return None
            if _from:  # this process may have ended before the agent looks whose it is
                with contextlib.suppress(OSError):
                    connection.send(_from, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            self._socket = connection
            return connection
        finally:
            self._connecting.release()

    def is_connected(self) -> bool:
        """Tells if an agent listens. Connects if that was not done yet."""
        return (self._socket or self._connect()) is not None

    def linger(self) -> None:
        """This process is at its end: what it says from now on may wait, for a second in all, for
        an agent that is behind.
        """
        if self._linger_until is None:
            self._linger_until = time.monotonic() + _LINGER_SECONDS
        while self._owed and time.monotonic() < self._linger_until:
            self._send_owed()
            if self._owed:  # another thread is at it
                time.sleep(_LINGER_PAUSE)
        self.tell_dropped()

    def _try(self, packet: bytes) -> int:
        """An errno; 0: it is with the agent."""
        code = self._try_once(packet)
        while (code == errno.EAGAIN and self._linger_until is not None
               and time.monotonic() < self._linger_until):
            time.sleep(_LINGER_PAUSE)
            code = self._try_once(packet)
        if code == 0 and self.dropped != self._told:
            self.tell_dropped()
        return code

    def tell_dropped(self) -> None:
        """The agent counts what it was not told."""
        if not self._telling.acquire(blocking=False):
            return
        try:
            dropped = self.dropped
            packet = b'{"kind":"lost","count":%d}' % (dropped - self._told)
            if dropped != self._told and self._try_once(packet) == 0:
                self._told = dropped
        finally:
            self._telling.release()

    def _try_once(self, packet: bytes) -> int:
        connection = self._socket or self._connect()
        if connection is None:  # another thread may be at it at this moment
            return errno.EAGAIN if self._connecting.locked() else errno.ENOTCONN
        try:
            connection.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            return 0
        except (BlockingIOError, InterruptedError):
            return errno.EAGAIN
        except OSError as error:
            if error.errno not in _ONLY_THIS_PACKET:
                self._socket = None  # the agent has gone; the object is closed with its last user
                self._next_try = time.monotonic() + _RETRY_SECONDS
            return error.errno or errno.EIO

    def send(self, packet: bytes) -> bool:
        if self._owed:
            self._send_owed()
        if self._try(packet) == 0:
            return True
        self.dropped += 1  # the agent is behind: it must never be the reason why training waits
        return False

    def offer(self, packet: bytes) -> bool:
        """False: not now. It is not counted as lost: the caller keeps it."""
        return self._try(packet) == 0

    def _send_owed(self) -> float | None:
        """Returns in how many seconds it is to be called again."""
        if self._paying.acquire(blocking=False):
            try:
                while self._owed and (code := self._try(self._owed[0])) != errno.EAGAIN:
                    self._owed.popleft()
                    self.dropped += code != 0
            finally:
                self._paying.release()
        return _OWED_SECONDS if self._owed else None

    def send_object(self, fields: dict[str, Any], surely: bool = False) -> bool:
        """Sends a message. False: it is lost. `surely`: keeps it while the agent is behind, and
        sends it as soon as that can be.
        """
        if not self.path:
            return False
        try:
            packet = _packet(fields)
        except (TypeError, ValueError, RecursionError):
            self.dropped += 1
            return False
        if not surely:
            return self.send(packet)
        code = errno.EAGAIN if self._owed else self._try(packet)
        if code != errno.EAGAIN:
            self.dropped += code != 0
            return True
        self._owed.append(packet)
        if len(self._owed) == 1:
            self._debt.wake()  # without a thread it goes with the next message
        return True

    def lost(self, count: int = 1) -> None:
        """Counts what could not be told: nothing that a script says raises."""
        if self.path:
            self.dropped += count
            if self._linger_until is not None:  # no later message takes it along
                self.tell_dropped()


_MOST = 1 << 63


def _number(value: Any) -> float | int | str:
    """A JSON number; JSON has none for NaN and infinity, so these travel as text. Fails as float()
    does, and with whatever the object raises.
    """
    if isinstance(value, int) and -_MOST <= value < _MOST:
        return int(value)
    number = float(value)  # also numpy and torch scalars
    return number if math.isfinite(number) else str(number)


def text(value: object) -> str:
    """Replaces lone surrogates, which a script's text may hold and JSON for others must not."""
    said = str(value)
    return said if said.isascii() else said.encode("utf-8", "replace").decode()


def cut(said: str, most: int = _LONGEST) -> str:
    """At most so many bytes of it."""
    return said if len(said) * 4 <= most else said.encode()[:most].decode("utf-8", "ignore")


_ONLY_THIS_PACKET = {errno.EMSGSIZE, errno.ENOBUFS, errno.ENOMEM}
_from = b""
_channel: Channel
outbox = Outbox("outbox", lambda: _channel.lost())  # of all that goes to the agent
_channel = Channel()
is_connected, linger, lost = _channel.is_connected, _channel.linger, _channel.lost
offer, send_object = _channel.offer, _channel.send_object


def _begin() -> None:
    global _from, _step, _phase
    directory = os.environ.get("ELASTRUN_RUN_DIR", "")
    _from = _packet({"kind": "from", "directory": directory}) if directory else b""
    _channel.begin(os.environ.get("ELASTRUN_CHANNEL", ""))
    _step, _phase = None, _TRAIN


# The hooks of --goodput auto, which do not tell what the script says itself, set it. Called before
# that with "step" or "checkpoint", and its number; gives that of the same step as the agent knows
# it.
_by_hand: Callable[[str, int], int] | None = None
_step: int | None = None  # the last one that has ended here


def step(number: int) -> None:
    """Training step `number` has ended. Say it on rank 0 at least."""
    global _step
    if _channel.path:
        try:
            packet = b'{"kind":"step","step":%d}' % number
            _step = whole(number)
        except Exception:
            lost()
            return
        if _by_hand is not None:
            _by_hand("step", _step)
        if _phase[2]:
            _end_bare(_step)
        _channel.send(packet)
        if (mine := page()) is not None:
            mine.step(_step)


def whole(value: Any, least: int = 0) -> int:
    """Fails with ValueError outside of what the agent takes, and as int() does."""
    number = int(value)
    if not least <= number < _MOST:
        raise ValueError("out of range")
    return number


def checkpoint_done(step: int = -1) -> None:
    """A checkpoint that holds everything up to `step` is safe on disk; -1: everything so far."""
    if _channel.path:
        try:
            packet = b'{"kind":"checkpoint","step":%d}'
            packet % step  # refuses text
            number = whole(step, -1)
        except Exception:
            lost()
            return
        if _by_hand is not None:
            number = _by_hand("checkpoint", number)
        _channel.send(packet % number)


def metric(name: str, value: Any, group: str = "worker", step: int | None = None, *,
           labels: Mapping[str, object] | None = None, unit: str = "", help: str = "") -> None:
    """One sample of a number, in a metric group as in torchelastic's put_metric. It is one of
    training step `step`; None: of the last one that this process has told by step(). `labels`,
    `unit`, `help`: as for elastrun.metrics.put_metric.
    """
    if not _channel.path:
        return
    try:
        number, key = _number(value), (text(group), text(name))
        fields: dict[str, Any] = {"kind": "metric", "name": key[1], "value": number,
                                  "group": key[0], "time": round(time.time(), 6)}
        if labels:
            fields["labels"] = {text(one): cut(text(other)) for one, other in labels.items()}
        if unit:
            fields["unit"] = text(unit)
        if help:
            fields["help"] = text(help)
        if step is not None or _step is not None:
            fields["step"] = _step if step is None else whole(step)
    except Exception:
        lost()
        return
    _channel.send_object(fields)
    if (mine := page()) is not None:
        mine.put(key, float(number))


def event(name: str, /, **attributes: Any) -> None:
    """Something happened. Attributes are text, numbers, booleans or None; others become text."""
    if _channel.path:
        send_event(name, attributes)


# Its name, until when it may last by time.monotonic(), and whether no block ends it.
_phase: tuple[str, float | None, bool]
_phase = _TRAIN = ("train", None, False)
_bare_told = False


class _Block:
    def __init__(self, before: tuple[str, float | None, bool]) -> None:
        self._before = before

    def __enter__(self) -> _Block:
        global _phase
        _phase = (*_phase[:2], False)
        return self

    def __exit__(self, *_: object) -> None:
        _enter(*self._before)


def _enter(name: str, until: float | None, is_bare: bool) -> None:
    global _phase
    _phase = (name, until, is_bare)
    if _channel.path:
        fields: dict[str, Any] = {"kind": "phase", "phase": cut(name)}
        if until is not None:
            fields["at_most"] = _number(max(round(until - time.monotonic(), 3), 0.001))
        # One that is lost would make a hang of an evaluation, or hide one.
        _channel.send_object(fields, surely=True)
        if (mine := page()) is not None:
            mine.phase(name)


def _end_bare(step: int) -> None:
    """The agent ends it with the step: the work of that step has counted as the phase."""
    global _phase, _bare_told
    name, _phase = _phase[0], _TRAIN
    if not _bare_told:
        _bare_told = True
        import logging  # as json above

        logging.getLogger(__name__).warning(
            "elastrun: phase(%r) had no end before step %d, whose time counts as %s: use "
            "`with elastrun.phase(%r):`, or call elastrun.phase('train') after it",
            name, step, name, name)


def phase(name: str, at_most: float | None = None) -> contextlib.AbstractContextManager[Any]:
    """Tells that this process does something else than training steps, and may take its time for
    it: hang detection waits until it says `phase("train")`, or until the end of the block:

        with elastrun.phase("eval", at_most=1800):
            evaluate(model)

    After `at_most` seconds it waits no longer; without it, after a time that it learns from earlier
    phases of that name (elastrun-timers(7)). A step ends it, too, with a warning, as its time has
    counted as the phase.
    """
    block, until = _Block(_phase), None
    try:
        if at_most is not None and float(at_most) > 0:
            until = time.monotonic() + float(at_most)
    except Exception:
        lost()
    try:
        said = text(name) or "train"
        _enter(said, until, said != "train")
    except Exception:
        lost()
    return block


def send_event(name: str, attributes: Mapping[str, Any], at: float | None = None) -> bool:
    """Sends an event of another module. `at`: when it happened, in seconds since the epoch.
    An attribute that cannot be made into text is left out, and counted.
    """
    told: dict[str, Any] = {}
    try:
        fields: dict[str, Any] = {"kind": "event", "name": text(name), "attributes": told}
        if at is not None and math.isfinite(at):
            fields["time"] = at
        pairs = list(attributes.items())
    except Exception:
        lost()
        return False
    for key, value in pairs:
        try:
            said = text(key)
            if value is not None and not isinstance(value, bool):
                try:
                    value = text(value) if isinstance(value, str) else _number(value)
                except Exception:
                    value = text(value)
            told[said] = value
        except Exception:
            lost()
    # Longer ones the agent refuses: of a stack of 20 kB its beginning, rather than no event.
    for most in _LONGEST_TEXTS:
        texts = {key: value for key, value in told.items() if isinstance(value, str)}
        if (sum(map(len, texts.values())) * _LONGEST_ESCAPE < _LONGEST_PACKET // 2
                or len(_packet(fields)) <= _LONGEST_PACKET):
            break
        told.update({key: cut(value, most) for key, value in texts.items()})
    return send_object(fields)


def is_configured() -> bool:
    """Tells if this process runs under an agent."""
    return bool(_channel.path)


def agent_folder() -> str:
    """The folder of the program of this worker's agent; empty: it has none, or has gone."""
    with contextlib.suppress(OSError):  # of another user or container
        peer = _channel._socket or _channel._connect()
        if peer:
            pid = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED)
            return os.path.dirname(os.readlink(f"/proc/{pid}/exe"))
    return ""


def dropped() -> int:
    """The number of messages that were thrown away: no agent, or one that is behind."""
    return _channel.dropped


at_begin(_begin)
