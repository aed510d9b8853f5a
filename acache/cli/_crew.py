"""Real processes that start together: all import first, one release lets them go, none outlives the demo."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from acache.cli._worker import BOOT, Orders

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from anyio.abc import Process

__all__ = ["Crew", "CrewError", "Result", "open_crew"]

_READY_SECONDS: Final = 300.0
"""How long all workers together may take to import; a bound for what hangs, not an aim."""
_STOP_SECONDS: Final = 10.0
"""How long a worker that was told to stop may take, its compiler included, before it is killed."""
_LINE_LIMIT: Final = 4 << 20
_ERRORS_SHOWN: Final = 4000


class CrewError(Exception):
    """A worker could not start, died, or reports a failure; the text says what it said."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one worker reports when it is done."""

    digests: dict[str, str]
    """Of each kernel's artifact."""
    children_cpu_s: float
    """CPU seconds of all processes that it started, and that these started; all have ended."""


@dataclass(slots=True)
class _Worker:
    number: int
    process: Process
    lines: BufferedByteReceiveStream
    errors: Path
    """What it writes on stderr: a file, for nobody reads a pipe while all is well."""

    async def hear(self) -> dict[str, Any]:
        """Return its next message.

        :raises CrewError: it reports a failure, or it is gone.
        """
        try:
            line = await self.lines.receive_until(b"\n", _LINE_LIMIT)
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.ClosedResourceError):
            status = await self.process.wait()
            said = await anyio.to_thread.run_sync(_tail, self.errors)
            raise CrewError(f"worker {self.number} ended with status {status}\n{said}".rstrip()) from None
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise CrewError(f"worker {self.number} failed: {message['error']}")
        return message


def _tail(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _ERRORS_SHOWN))
        return file.read().decode("utf-8", "replace").strip()


class Crew:
    """Workers that have been started; made by `open_crew`.

    ``ready`` and ``finished`` count those that have reported.
    """

    def __init__(self, workers: Sequence[_Worker]) -> None:
        self._workers = workers
        self.ready = 0
        self.finished = 0

    async def assemble(self) -> None:
        """Wait until all have imported what they need.

        :raises CrewError: one of them cannot, or they hang.
        """

        async def one(worker: _Worker) -> None:
            await worker.hear()
            self.ready += 1

        with anyio.move_on_after(_READY_SECONDS) as scope:
            await _together(one, self._workers)
        if scope.cancelled_caught:
            raise CrewError(
                f"{self.ready} of {len(self._workers)} workers are ready after {_READY_SECONDS:.0f} s"
            )

    async def run(self) -> tuple[float, list[Result]]:
        """Release all at once and wait for their results.

        :return: seconds from the release to the last result, and each worker's result.
        :raises CrewError: one of them failed.
        """
        results: list[Result] = []
        last = 0.0

        async def one(worker: _Worker) -> None:
            nonlocal last
            message = await worker.hear()
            last = time.perf_counter()
            results.append(Result(**message))
            self.finished += 1

        released = time.perf_counter()
        for worker in self._workers:
            assert worker.process.stdin is not None
            # One that is gone already is reported when it is heard.
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await worker.process.stdin.send(b"\n")
        await _together(one, self._workers)
        return last - released, results


async def _together(work: Callable[[_Worker], Awaitable[None]], workers: Sequence[_Worker]) -> None:
    """Do the work for all at once; the first failure ends it and leaves as itself, not in a group."""
    failures: list[CrewError] = []

    async def guarded(worker: _Worker) -> None:
        try:
            await work(worker)
        except CrewError as error:
            failures.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for worker in workers:
            group.start_soon(guarded, worker)
    if failures:
        raise failures[0]


@asynccontextmanager
async def open_crew(count: int, orders: Orders, folder: Path) -> AsyncIterator[Crew]:
    """Start workers with these orders, and stop them on the way out, however that is taken.

    The end of its stdin tells a worker to stop, and the kernel ends it even when this process is killed.
    Workers are in sessions of their own, so that Ctrl-C reaches this process alone, which then ends them in
    good order.

    :param folder: where what they write on stderr is kept.
    :raises CrewError: a process cannot be started.
    """
    workers: list[_Worker] = []
    try:
        for number in range(1, count + 1):
            workers.append(await _start(number, count, folder / f"worker-{number}.err"))
            stdin = workers[-1].process.stdin
            assert stdin is not None
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await stdin.send(orders.line())
        yield Crew(workers)
    finally:
        with anyio.CancelScope(shield=True):
            await _dismiss(workers)


async def _start(number: int, count: int, errors: Path) -> _Worker:
    command = [sys.executable, "-c", BOOT, json.dumps(sys.path)]
    # The demo shows the defaults: an operator's ACACHE_MODE=off would make nonsense of it.
    env = {name: value for name, value in os.environ.items() if not name.startswith("ACACHE_")}
    try:
        with open(errors, "wb") as stderr:  # noqa: ASYNC230  # our own, in the temporary folder
            process = await anyio.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=env,
                start_new_session=True,
            )
    except OSError as error:
        raise CrewError(f"worker {number} of {count} cannot be started: {error}") from error
    assert process.stdout is not None
    return _Worker(number, process, BufferedByteReceiveStream(process.stdout), errors)


async def _dismiss(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        assert worker.process.stdin is not None
        with contextlib.suppress(anyio.BrokenResourceError):
            await worker.process.stdin.aclose()
    with anyio.move_on_after(_STOP_SECONDS):
        for worker in workers:
            await worker.process.wait()
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            worker.process.kill()
        await worker.process.aclose()
