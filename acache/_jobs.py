"""What is compiled, and who beats the lease meanwhile: a caller's own coroutine, or a compiler's request."""

from __future__ import annotations

import inspect
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from acache._models import Artifact, WarmCompiler
from acache._process import LeaseOrders, open_workspace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from acache._beats import Beats
    from acache._models import Request
    from acache._moves import Lease
    from acache._warm import WarmWorkers

__all__ = ["CoroutineJob", "Job", "RequestJob"]


class Job(Protocol):
    """One compile that may be run more than once."""

    @property
    def label(self) -> str | None:
        """What people call it."""
        ...

    @property
    def compiler(self) -> str | None:
        """The compiler's class; None for a caller's own function."""
        ...

    def station(
        self, lease: Lease | None, *, network: bool
    ) -> AbstractAsyncContextManager[Callable[[], Awaitable[Artifact]]]:
        """Beat the lease while the context lasts, and yield the compile itself.

        Leaving the context stops whatever still runs.
        """
        ...


class CoroutineJob:
    """A caller's own ``compile``; the beats come from the cache's beat thread, without progress."""

    def __init__(
        self, compile: Callable[[], Awaitable[bytes | Artifact]], label: str | None, beats: Beats
    ) -> None:
        self._compile = compile
        self._beats = beats
        self.label = label
        self.compiler = None

    @asynccontextmanager
    async def station(
        self, lease: Lease | None, *, network: bool
    ) -> AsyncIterator[Callable[[], Awaitable[Artifact]]]:
        if lease is not None:
            self._beats.hold(lease, network=network)
        try:
            yield self._run
        finally:
            if lease is not None:
                self._beats.drop(lease)

    async def _run(self) -> Artifact:
        result: object = self._compile()
        if not inspect.isawaitable(result):
            raise TypeError(f"compile must be an async function; it returned {type(result).__name__}")
        result = await result
        if isinstance(result, Artifact):
            return result
        if isinstance(result, bytes | bytearray | memoryview):
            return Artifact.of(result)
        raise TypeError(f"compile must return bytes or an Artifact, not {type(result).__name__}")


class RequestJob:
    """A compiler's request, run in a workspace under a guard, which beats the lease with its progress.

    A compiler that is hosted by workers is lent one of the cache's.
    """

    def __init__(self, request: Request, kill_grace: float, interval: float, warm: WarmWorkers) -> None:
        self._request = request
        self._grace = kill_grace
        self._interval = interval
        self._warm = warm
        self.label = request.label
        self.compiler = type(request.compiler).__name__

    @asynccontextmanager
    async def station(
        self, lease: Lease | None, *, network: bool
    ) -> AsyncIterator[Callable[[], Awaitable[Artifact]]]:
        orders = None
        if lease is not None:
            orders = LeaseOrders(
                slot=lease.slot,
                successor=lease.successor,
                nonce=lease.nonce,
                interval=self._interval,
                folder=lease.paths.folder if network else None,
            )
        request, compiler = self._request, self._request.compiler
        if isinstance(compiler, WarmCompiler):
            async with self._warm.lend(await compiler.worker(), orders) as loan:
                yield partial(loan.use, partial(compiler.compile_with, request))
        else:
            async with open_workspace(grace=self._grace, lease=orders) as workspace:
                yield partial(compiler.compile, request, workspace)
