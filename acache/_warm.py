"""Warm workers: processes that serve many compiles, one at a time each, and are kept between them."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar, final

import anyio

from acache._errors import CacheClosedError, CompileError, CompilerCrashedError, CompilerNotFoundError
from acache._guardlink import in_thread, not_started
from acache._models import CompileFailure, WorkerProgram
from acache._process import GuardLostError, ServerEndedError, open_workspace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from acache._models import JSON
    from acache._process import GuardedWorkspace, LeaseOrders

__all__ = ["IDLE_SECONDS", "START_SECONDS", "Loan", "WarmWorkers"]

T = TypeVar("T")

IDLE_SECONDS = 60.0
"""An idle worker that nobody asked to start ahead is let go after so long."""
START_SECONDS = 60.0
"""A worker that is not ready after so long is stopped, and counts as one that cannot be started."""
_ATTEMPTS = 3
"""So many workers are tried for one compile before it counts as a fault that they end unasked."""
_TEXT_LIMIT = 16 * 1024
"""Characters kept of what a worker that died wrote to standard error: its last words."""


class _UnaskedError(Exception):
    """A worker ended before it began with the order: nothing was tried."""

    def __init__(self, end: ServerEndedError) -> None:
        super().__init__(end)
        self.end = end


@final
class WarmWorker:
    """One worker process under its own guard, as one compile after the other sees it."""

    def __init__(self, program: WorkerProgram, stack: AsyncExitStack, workspace: GuardedWorkspace) -> None:
        self.program = program
        self.idle_since = 0.0
        self._stack = stack
        self._workspace = workspace
        self._compiles = 0
        self._used = False  # by the present compile
        self._healthy = True
        self._size = 0

    @classmethod
    async def start(cls, program: WorkerProgram, grace: float, orders: LeaseOrders | None) -> WarmWorker:
        """Start a worker and wait until it is ready to serve; its guard beats the lease meanwhile.

        :raises CompilerNotFoundError: there is no such program, or it says that something is missing.
        :raises CompilerCrashedError: it could not be started, or ended at once.
        :raises GuardLostError: its guard was killed.
        """
        with anyio.move_on_after(START_SECONDS):
            async with AsyncExitStack() as stack:
                workspace = await stack.enter_async_context(open_workspace(grace=grace, lease=orders))
                await workspace.serve(program.argv, env=program.env)
                worker = cls(program, stack, workspace)
                greeting = await worker._heard(b"")
                if isinstance(missing := greeting.get("missing"), str):
                    raise CompilerNotFoundError(CompileFailure(reason="missing", text=missing))
                try:
                    worker._size = await in_thread(worker._tidy)
                except OSError as error:  # no thread is to be had, say
                    raise not_started(f"{program.argv[0]}: {error}", error.errno) from error
                worker._used = False
                worker._stack = stack.pop_all()
                return worker
        raise not_started(f"{program.argv[0]}: the worker was not ready within {START_SECONDS:g} s")

    @property
    def path(self) -> Path:
        """Its folder; see `acache.compilers.Worker`."""
        return self._workspace.path

    async def ask(self, order: Mapping[str, JSON]) -> dict[str, JSON]:
        """Give it an order and return its answer; see `acache.compilers.Worker`."""
        line = json.dumps(dict(order), allow_nan=False).encode()
        if not self._healthy:
            raise RuntimeError(
                "this worker serves no more: its compile was cancelled or failed, or it said so"
            )
        return await self._heard(line)

    async def _heard(self, line: bytes) -> dict[str, JSON]:
        self._healthy = False  # until it has answered
        first, self._used = not self._used, True
        try:
            answer = json.loads(await self._workspace.ask(line))
        except ServerEndedError as error:
            if not error.begun and first:
                raise _UnaskedError(error) from error
            raise _ended(error) from error
        except (ValueError, RecursionError) as error:
            raise _unclear(f"{self.program.argv[0]}: the worker's answer is no JSON: {error}") from error
        if not isinstance(answer, dict):
            raise _unclear(f"{self.program.argv[0]}: the worker's answer is no JSON object")
        self._healthy = answer.get("last") is not True
        return answer

    async def hold(self, orders: LeaseOrders | None) -> bool:
        """Take an idle worker for a compile; False if it, or its guard, ended meanwhile."""
        if not self._workspace.quiet():
            return False
        try:
            if orders is not None:
                await self._workspace.hold(orders)
        except GuardLostError:
            return False
        return True

    async def rest(self) -> bool:
        """Make ready for the next compile; False if this worker should serve none any more."""
        self._compiles += 1
        self._used = False
        if not self._healthy or self._compiles >= self.program.max_compiles:
            return False
        try:
            await self._workspace.idle()
            grown = await in_thread(self._tidy)
        except (GuardLostError, OSError):
            return False
        return grown <= self.program.max_growth and self._workspace.quiet()

    def _tidy(self) -> int:
        _empty(self.path)
        return _resident(self._workspace.pid) - self._size

    def dismiss(self) -> None:
        """Begin to stop it."""
        self._workspace.dismiss()

    async def leave(self) -> None:
        """Stop it and wait, shielded and bounded, until nothing of it is left."""
        await self._stack.aclose()


def _ended(error: ServerEndedError) -> CompileError:
    done = error.completed
    text = done.stderr.decode("utf-8", "replace").strip()[-_TEXT_LIMIT:]
    how = f"signal {done.signal}" if done.signal is not None else f"exit status {done.exit_status}"
    failure = CompileFailure(
        reason="exit" if done.signal is None else "signal",
        text=f"the worker ended ({how}) instead of answering\n{text}".rstrip(),
        exit_status=done.exit_status,
        signal=done.signal,
        seconds=done.seconds,
    )
    return CompileError(failure) if done.signal is None else CompilerCrashedError(failure)


def _unclear(text: str) -> CompileError:
    return CompileError(CompileFailure(reason="exit", text=text, exit_status=0))


def _empty(folder: Path) -> None:
    """Remove all that is in a folder. Blocks.

    :raises OSError: something cannot be removed.
    """
    for name in os.listdir(folder):
        path = folder / name
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path)
        else:
            path.unlink()


def _resident(pid: int) -> int:
    """Return a process's resident memory in bytes; 0 where that cannot be told (proc(5): statm)."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0


@final
class Loan:
    """A worker lent to one compile, and replaced unseen if it turns out to be gone before it was asked."""

    def __init__(self, pool: WarmWorkers, program: WorkerProgram, orders: LeaseOrders | None) -> None:
        self._pool = pool
        self._program = program
        self._orders = orders
        self.worker: WarmWorker | None = None

    async def use(self, compile: Callable[[WarmWorker], Awaitable[T]]) -> T:
        """Compile with the worker; once more, with another, for each that was gone before it was asked.

        :raises CompileError: what ``compile`` raised, or no worker can be started.
        :raises GuardLostError: the guard was killed in the middle.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            if self.worker is None:
                self.worker = await self._pool.take(self._program, self._orders)
            try:
                return await compile(self.worker)
            except _UnaskedError as error:
                if attempt == _ATTEMPTS:  # it is no accident
                    raise _ended(error.end) from error
                gone, self.worker = self.worker, None
                await gone.leave()
        raise AssertionError("unreachable")


@final
class WarmWorkers:
    """The workers of one cache: who serves is lent, who idles is kept for the next, last come first served.

    :param limit: how many may idle.
    :param grace: seconds between TERM and KILL when one is stopped.
    :param idle_seconds: how long one idles before it is let go.
    """

    def __init__(self, limit: int, grace: float, idle_seconds: float = IDLE_SECONDS) -> None:
        self._limit = limit
        self._grace = grace
        self._idle_seconds = idle_seconds
        self._idle: list[WarmWorker] = []  # the longest idle first
        self._wanted: list[tuple[WorkerProgram, int]] = []
        self._news = anyio.Event()
        self._starts: set[anyio.CancelScope] = set()
        self._closed = False

    @property
    def idle(self) -> int:
        """How many workers idle now."""
        return len(self._idle)

    @asynccontextmanager
    async def lend(self, program: WorkerProgram, orders: LeaseOrders | None) -> AsyncIterator[Loan]:
        """Lend a worker to one compile, whose lease its guard beats until the block is left.

        A worker that gave every answer is kept for the next; any other is stopped before the block is left,
        which also stops what it was doing.

        :raises CompilerNotFoundError: the program is not installed.
        :raises CompilerCrashedError: no worker can be started.
        :raises GuardLostError: a guard was killed at its start.
        """
        loan = Loan(self, program, orders)
        loan.worker = await self.take(program, orders)
        settled = kept = False
        try:
            yield loan
            settled = True
        finally:
            worker = loan.worker
            if worker is not None:
                try:
                    kept = settled and await worker.rest() and self._keep(worker)
                finally:
                    if not kept:
                        await worker.leave()
        if kept:
            await self._let_go(len(self._idle) - self._limit)

    async def take(self, program: WorkerProgram, orders: LeaseOrders | None) -> WarmWorker:
        """Return an idle worker, or a new one. Raises as `lend` does."""
        while (worker := self._pick(program)) is not None:
            held = False
            try:
                held = await worker.hold(orders)
            finally:
                if not held:
                    await worker.leave()
            if held:
                return worker
        return await WarmWorker.start(program, self._grace, orders)

    def _pick(self, program: WorkerProgram) -> WarmWorker | None:
        for index in range(len(self._idle) - 1, -1, -1):
            if self._idle[index].program == program:
                return self._idle.pop(index)
        return None

    def _keep(self, worker: WarmWorker) -> bool:
        if self._closed:
            return False
        worker.idle_since = anyio.current_time()
        self._idle.append(worker)
        self._news.set()
        return True

    async def start(self, program: WorkerProgram, count: int) -> int:
        """See to it that ``count`` workers idle (no more than the limit), and keep so many; return how many.

        Cancellation stops those that were not ready yet. Raises as `lend` does.

        :raises CacheClosedError: `close` was called, which also stops those that were not ready yet.
        """
        count = min(count, self._limit)
        self._wanted = [(each, number) for each, number in self._wanted if each != program]
        self._wanted.append((program, count))
        missing = count - sum(worker.program == program for worker in self._idle)
        errors: list[CompileError | GuardLostError] = []

        async def one() -> None:
            try:
                worker = await WarmWorker.start(program, self._grace, None)
            except (CompileError, GuardLostError) as error:
                errors.append(error)
                return
            if not self._keep(worker):
                await worker.leave()

        with anyio.CancelScope() as scope:
            self._starts.add(scope)
            if self._closed:
                scope.cancel()
            try:
                async with anyio.create_task_group() as group:
                    for _ in range(missing):
                        group.start_soon(one)
            finally:
                self._starts.discard(scope)
        if self._closed:
            raise CacheClosedError("the cache was closed while workers were started")
        if errors:
            error = errors[0]
            raise not_started(str(error)) if isinstance(error, GuardLostError) else error
        await self._let_go(len(self._idle) - self._limit)
        return sum(worker.program == program for worker in self._idle)

    async def run(self) -> None:
        """Let workers go that idle for too long, until cancelled."""
        while True:
            now = anyio.current_time()
            due = self._expired(now)
            for worker in due:
                self._idle.remove(worker)
            await _stop(due)
            self._news = anyio.Event()
            waits = [worker.idle_since + self._idle_seconds - now for worker in self._expiring()]
            with anyio.move_on_after(max(0.0, min(waits)) if waits else None):
                await self._news.wait()

    def _expired(self, now: float) -> list[WarmWorker]:
        return [each for each in self._expiring() if each.idle_since + self._idle_seconds <= now]

    def _expiring(self) -> list[WarmWorker]:
        """Return the idle workers beyond those that somebody asked to have ready."""
        keep = Counter[int]()
        found = []
        for worker in reversed(self._idle):  # the last come are kept
            wish = next((at for at, (each, _) in enumerate(self._wanted) if each == worker.program), -1)
            keep[wish] += 1
            if wish < 0 or keep[wish] > self._wanted[wish][1]:
                found.append(worker)
        return found

    async def _let_go(self, count: int) -> None:
        """Stop so many workers, those that nobody asked for and the longest idle first."""
        if count <= 0:
            return
        surplus = sorted(self._expiring(), key=lambda worker: worker.idle_since)
        others = [worker for worker in self._idle if worker not in surplus]
        going = [*surplus, *others][:count]
        self._idle = [worker for worker in self._idle if worker not in going]
        await _stop(going)

    async def close(self) -> None:
        """Stop all that idle or are being started ahead, and keep none from now on."""
        self._closed = True
        for scope in self._starts:
            scope.cancel()
        idle, self._idle = self._idle, []
        await _stop(idle)


async def _stop(workers: list[WarmWorker]) -> None:
    """Stop workers together; a cancellation (a native one) that breaks one wait off does not spare others."""
    for worker in workers:
        worker.dismiss()
    async with AsyncExitStack() as stack:
        for worker in workers:
            stack.push_async_callback(worker.leave)
