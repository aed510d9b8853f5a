"""acache's own threads: few, daemons, and never waited for without a bound.

anyio's worker threads are not daemons, and abandoning one is not bounded by its limiter: a hung network
mount would hang cancellation, and a loop closed in the middle of a compile would hang interpreter exit. So
all blocking work runs here. When every worker is stuck in the cache directory, new work fails at once: the
directory counts as unusable.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from errno import EAGAIN, ETIMEDOUT
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from anyio import lowlevel
from anyio.lowlevel import RunVar

from acache._errors import CacheClosedError
from acache._models import lend_writer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Crew", "NoThreadError", "Workers"]

T = TypeVar("T")


class NoThreadError(OSError):
    """There is no thread to be had: they count as processes of a user, and those are limited."""

    def __init__(self) -> None:
        super().__init__(EAGAIN, "no worker thread can be started")


class _Work(Generic[T]):
    """One piece of work on its way to a thread and back."""

    __slots__ = ("call", "done", "dropped", "error", "late", "result")

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.done = anyio.Event()
        self.result: T
        self.error: BaseException | None = None
        self.dropped = self.late = False


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
        self._running: dict[_Work[Any], float] = {}
        self._schedule: Callable[[Callable[[], object]], object] | None = None
        self._waits: set[anyio.CancelScope] = set()
        self._closed = False

    async def run(self, call: Callable[[], T], *, abandon: bool = False) -> T:
        """Run ``call`` in a thread and return what it returns.

        :param abandon: cancellation leaves at once and lets the thread go on alone (for reads only). Else
            cancellation waits for the call to end: what it did must be known.
        :raises OSError: ETIMEDOUT when it does not end within ``patience``, or at once when all threads are
            stuck.
        :raises CacheClosedError: after `close`.
        """
        if self._closed:
            raise CacheClosedError("this Cache was closed meanwhile; make a new one")
        if self._stuck() >= self._size:
            raise OSError(ETIMEDOUT, "every worker thread is stuck in the cache directory")
        work = _Work(call)
        scope = anyio.CancelScope(deadline=anyio.current_time() + self._patience, shield=not abandon)
        self._waits.add(scope)
        try:
            self._submit(work)
            with scope:
                await work.done.wait()
        finally:
            self._waits.discard(scope)
            if not work.done.is_set():
                self._leave(work)
        if not work.done.is_set():
            work.late = True
            raise OSError(ETIMEDOUT, f"the cache directory did not answer within {self._patience:g} s")
        if work.error is not None:
            raise work.error
        return work.result

    def hurry(self, patience: float) -> None:
        """Lower the patience to so many seconds from now on, for calls under way too."""
        self._patience = min(self._patience, patience)
        limit = anyio.current_time() + self._patience
        for scope in self._waits:
            scope.deadline = min(scope.deadline, limit)

    def close(self) -> None:
        """Let the threads end once they have done what was handed in; those that are stuck end when their
        system call does.
        """
        self._closed = True
        with self._lock:
            for _ in range(self._threads):
                self._queue.put(None)
            self._threads = self._size  # nobody starts another

    def _submit(self, work: _Work[Any]) -> None:
        if self._schedule is None:
            native: Any = lowlevel.current_token().native_token
            self._schedule = getattr(native, "call_soon_threadsafe", None) or native.run_sync_soon
        with self._lock:
            start = self._idle <= 0 and self._threads < self._size
            self._threads += start
            self._idle += start
            self._idle -= 1
        self._queue.put(work)
        if start:
            name = f"acache-worker-{self._threads}"
            try:
                threading.Thread(target=self._loop, name=name, daemon=True).start()
            except RuntimeError:  # no more threads to be had: those that there are do the work
                self._without_thread()

    def _without_thread(self) -> None:
        with self._lock:
            self._threads -= 1
            self._idle -= 1
            if self._threads:
                return
            self._idle = 0
        with contextlib.suppress(queue.Empty):
            self._queue.get_nowait()  # this very work: without a thread there is no other
        raise NoThreadError

    def _stuck(self) -> int:
        """Count the threads whose call takes longer than anybody waits for it."""
        with self._lock:
            limit = time.monotonic() - self._patience
            return sum(work.late or began <= limit for work, began in self._running.items())

    def _leave(self, work: _Work[Any]) -> None:
        """The caller goes away; work that no thread has begun is not begun any more."""
        with self._lock:
            work.dropped = True

    def _loop(self) -> None:
        while True:
            work = self._queue.get()
            if work is None:
                return
            with self._lock:
                begin = not work.dropped
                if begin:
                    self._running[work] = time.monotonic()
            if begin:
                try:
                    work.result = work.call()
                except BaseException as error:
                    work.error = error
            with self._lock:
                self._running.pop(work, None)
                self._idle += 1
            if begin and self._schedule is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
                    self._schedule(work.done.set)
            del work


class Crew:
    """At most ``size`` daemon threads at once in one loop, each for one call; for what is not done to the
    cache directory: starting programs, reading sources, writing artifacts where the user wants them.

    :param name: what tells this crew's limit from others'.
    """

    def __init__(self, name: str, size: int) -> None:
        self._limiter: RunVar[anyio.CapacityLimiter] = RunVar(name)
        self._size = size

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Call ``function`` in a thread and return what it returns; cancellation waits for it.

        :raises NoThreadError: nothing was done.
        """
        await lowlevel.checkpoint_if_cancelled()
        limiter = self._limiter.get(None)
        if limiter is None:
            limiter = anyio.CapacityLimiter(self._size)
            self._limiter.set(limiter)
        async with limiter:
            workers = Workers(size=1, patience=math.inf)
            try:
                return await workers.run(partial(function, *arguments))
            finally:
                workers.close()


_writers = Crew("acache_writers", 4)


async def _write_file(path: str | os.PathLike[str], data: memoryview) -> None:
    """Write an artifact's part for `Artifact.write_to`, wherever the user wants it."""
    await _writers.run(_write_atomically, os.fspath(path), data)


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
