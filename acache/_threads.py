"""The cache's own worker threads: few, daemons, and never waited for without a bound.

anyio's worker threads are not daemons, and abandoning one is not bounded by its limiter: a hung network
mount would hang cancellation and interpreter exit. So file work runs here. When every worker is stuck, new
work fails at once: the directory counts as unusable.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from errno import ETIMEDOUT
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from anyio import lowlevel
from anyio.lowlevel import RunVar

from acache._models import lend_writer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Workers"]

T = TypeVar("T")


class _Work(Generic[T]):
    """One piece of work on its way to a thread and back."""

    __slots__ = ("call", "done", "dropped", "error", "finished", "late", "result", "started")

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.done = anyio.Event()
        self.result: T
        self.error: BaseException | None = None
        self.started = self.finished = False
        self.dropped = False
        self.late = False


class Workers:
    """A bounded pool of daemon threads that belong to one event loop.

    :param size: threads at most; they are started when needed and end with `close`.
    :param patience: seconds after which a caller stops waiting for a thread; the thread then counts as stuck
        until it returns.
    """

    def __init__(self, size: int = 8, patience: float = 30.0) -> None:
        self._size = size
        self._patience = patience
        self._queue: queue.SimpleQueue[_Work[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._late = 0
        self._schedule: Callable[[Callable[[], object]], object] | None = None

    async def run(self, call: Callable[[], T], *, abandon: bool = False) -> T:
        """Run ``call`` in a thread and return what it returns.

        :param abandon: cancellation leaves at once and lets the thread go on alone (for reads only). Else
            cancellation waits for the call to end: what it did must be known.
        :raises OSError: ETIMEDOUT when it does not end within ``patience``, or at once when all threads are
            stuck.
        """
        if self._late >= self._size:
            raise OSError(ETIMEDOUT, "every worker thread is stuck in the cache directory")
        work = _Work(call)
        self._submit(work)
        try:
            with anyio.move_on_after(self._patience, shield=not abandon):
                await work.done.wait()
        finally:
            if not work.done.is_set():
                self._leave(work)
        if not work.done.is_set():
            raise OSError(ETIMEDOUT, f"the cache directory did not answer within {self._patience:g} s")
        if work.error is not None:
            raise work.error
        return work.result

    def close(self) -> None:
        """Let the threads end; those that are stuck end when their system call does."""
        with self._lock:
            for _ in range(self._threads):
                self._queue.put(None)
            self._threads = self._size  # nobody starts another

    def _submit(self, work: _Work[Any]) -> None:
        if self._schedule is None:
            native: Any = lowlevel.current_token().native_token
            self._schedule = getattr(native, "call_soon_threadsafe", None) or native.run_sync_soon
        with self._lock:
            start = self._idle == 0 and self._threads < self._size
            self._threads += start
            self._idle += start
            self._idle -= 1
        self._queue.put(work)
        if start:
            name = f"acache-worker-{self._threads}"
            try:
                threading.Thread(target=self._loop, name=name, daemon=True).start()
            except RuntimeError:  # no more threads to be had: those that there are do the work
                with self._lock:
                    self._threads -= 1
                    self._idle -= 1
                if self._threads == 0:
                    raise OSError(ETIMEDOUT, "no worker thread can be started") from None

    def _leave(self, work: _Work[Any]) -> None:
        """The caller goes away; work that no thread has begun is not begun any more."""
        with self._lock:
            work.dropped = True
            work.late = work.started and not work.finished
            self._late += work.late

    def _loop(self) -> None:
        while True:
            work = self._queue.get()
            if work is None:
                return
            with self._lock:
                begin = not work.dropped
                work.started = begin
            if begin:
                try:
                    work.result = work.call()
                except BaseException as error:
                    work.error = error
            with self._lock:
                work.finished = True
                self._late -= work.late
                self._idle += 1
            if begin and self._schedule is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
                    self._schedule(work.done.set)
            del work


_writers: RunVar[anyio.CapacityLimiter] = RunVar("acache_writers")


async def _write_file(path: str | os.PathLike[str], data: memoryview) -> None:
    """Write an artifact's part for `Artifact.write_to`, wherever the user wants it."""
    limiter = _writers.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(4)
        _writers.set(limiter)
    await anyio.to_thread.run_sync(partial(_write_atomically, os.fspath(path), data), limiter=limiter)


def _write_atomically(path: str, data: memoryview) -> None:
    temporary = f"{path}.{os.urandom(8).hex()}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


lend_writer(_write_file)
