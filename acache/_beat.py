"""The beat of a lease: file operations as a generator, and what runs them in the guard.

The guard, the beating thread of a ``Cache`` and the simulator share the generator and differ in who performs
its operations. Only modules that the interpreter has at hand, for the guard's sake.
"""

from __future__ import annotations

import _thread
import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

RECORD_SIZE = 512
"""Bytes of a lease record; a beat knows only the offsets here (LEASE_PROTOCOL: Record)."""
NONCE_AT, NONCE_END = 52, 84


def beat(
    slot: str | bytes,
    successor: str | bytes,
    nonce: str,
    counter: int,
    progress: int,
    folder: str | bytes | None = None,
) -> Generator[tuple[Any, ...], Any, str]:
    """One beat of a lease, one file operation at a time (LEASE_PROTOCOL: Beat).

    Yields ``("refresh", folder)``, ``("open_rw", path) -> fd`` (never creating: a beat must not raise a lease
    from the dead), ``("pread", fd, count, offset) -> bytes``, ``("exists", path) -> bool`` (does an open
    succeed), ``("pwrite", fd, data, offset) -> int`` and ``("close", fd)``; is sent the result or thrown
    the OSError. ``folder`` is given on network mounts only, where a cached "not there" would hide a
    successor until the folder has been opened.

    :returns: ``beaten``; or, with nothing written, ``superseded`` (a successor exists; it may vanish again),
        ``gone`` (no such slot), ``foreign`` (the slot holds another nonce).
    :raises OSError: what an operation raised; the descriptor was closed.
    """
    if folder:
        yield ("refresh", folder)
    try:
        fd = yield ("open_rw", slot)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return "gone"
        raise
    try:
        outcome = yield from _beat_open(fd, successor, nonce, counter, progress)
    except OSError:
        try:
            yield ("close", fd)
        except OSError:
            pass  # the first error is the one to tell
        raise
    yield ("close", fd)  # NFS tells of a failed write only here
    return outcome


def _beat_open(
    fd: int, successor: str | bytes, nonce: str, counter: int, progress: int
) -> Generator[tuple[Any, ...], Any, str]:
    record = yield ("pread", fd, RECORD_SIZE, 0)
    if record[NONCE_AT:NONCE_END] != nonce.encode():
        return "foreign"
    if record[:20] == b"9" * 20:
        return "gone"  # its holder said so, in place
    if (yield ("exists", successor)):
        return "superseded"
    # Only these 40 bytes, in place: a rewrite of the whole record tears concurrent reads.
    yield ("pwrite", fd, b"%020d%020d" % (counter, progress), 0)
    return "beaten"


def perform(operation: tuple[Any, ...]) -> Any:
    """Do one operation of `beat` on the real file system.

    :raises OSError: whatever the system says.
    """
    import posix  # here, for the generator is also imported where there is no such module

    match operation:
        case ("open_rw", path):
            return posix.open(path, posix.O_RDWR | posix.O_CLOEXEC)
        case ("pread", fd, count, offset):
            return posix.pread(fd, count, offset)
        case ("pwrite", fd, data, offset):
            return posix.pwrite(fd, data, offset)
        case ("close", fd):
            return posix.close(fd)
        case ("exists", path):
            try:
                posix.close(posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC))
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ESTALE):
                    return False
                raise
            return True
        case ("refresh", folder):
            return posix.close(posix.open(folder, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_DIRECTORY))
    raise ValueError(operation)


def drive(
    steps: Generator[tuple[Any, ...], Any, str], perform: Callable[[tuple[Any, ...]], Any] = perform
) -> str:
    """Run a beat to its end and return its outcome.

    :raises OSError: what the beat raised.
    """
    try:
        operation = next(steps)
        while True:
            try:
                answer = perform(operation)
            except OSError as error:
                operation = steps.throw(error)
            else:
                operation = steps.send(answer)
    except StopIteration as end:
        return str(end.value)


class Beater:
    """Beats in a thread of its own, so that a hung mount stops the beats and never the supervision."""

    def __init__(self) -> None:
        self._go = _thread.allocate_lock()
        self._go.acquire()
        self._task: tuple[Any, ...] | None = None
        self._threaded = False

    def hand(self, task: tuple[Any, ...]) -> None:
        """Beat once with the arguments of `beat`, unless the last beat still hangs."""
        if self._task is not None:
            return
        self._task = task
        try:
            if not self._threaded:
                _thread.start_new_thread(self._work, ())
                self._threaded = True
            self._go.release()
        except RuntimeError:  # no more threads for this user: beat here
            self._beat()

    def _work(self) -> None:
        while self._go.acquire():
            self._beat()

    def _beat(self) -> None:
        try:
            if self._task is not None:
                drive(beat(*self._task))
        except OSError:
            pass  # the next interval tries again
        finally:
            self._task = None
