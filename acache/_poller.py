"""One poller per cache: it looks for all waited keys in one trip to a thread."""

from __future__ import annotations

import heapq
import itertools
import math
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

    from acache._threads import Workers

__all__ = ["Poller", "Ticket"]

T = TypeVar("T")


class Ticket(Generic[T]):
    """One look that somebody waits for."""

    __slots__ = ("answer", "at", "done", "error", "look")

    def __init__(self, look: Callable[[], T], at: float) -> None:
        self.look = look
        self.at = at
        self.done = anyio.Event()
        self.answer: T
        self.error: Exception | None = None


class Poller(Generic[T]):
    """Batches looks: callers say what to look at and when; `run` makes the trips."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._due: list[tuple[float, int, Ticket[T]]] = []
        self._order = itertools.count()
        self._wake = anyio.Event()

    async def look(
        self,
        look: Callable[[], T],
        at: float,
        *,
        subscribe: Callable[[Callable[[], None]], object] | None = None,
    ) -> T:
        """Return what ``look`` finds in a thread at time ``at`` (the loop's clock), or earlier.

        :param subscribe: is given a function that makes the look due at once.

        Cancellation leaves at once. The look is then not made, or made for nobody.

        :raises Exception: as ``look`` did.
        """
        ticket: Ticket[T] = Ticket(look, at)
        self._post(ticket)
        if subscribe is not None:
            subscribe(partial(self._hurry, ticket))
        try:
            await ticket.done.wait()
        except BaseException:
            ticket.done.set()  # a look that nobody waits for is left out
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.answer

    def _hurry(self, ticket: Ticket[T]) -> None:
        ticket.at = anyio.current_time()
        self._post(ticket)

    def _post(self, ticket: Ticket[T]) -> None:
        """Put a look on the list; one that is there twice is made once."""
        heapq.heappush(self._due, (ticket.at, next(self._order), ticket))
        self._wake.set()

    async def run(self) -> None:
        """Make the trips, until cancelled."""
        while True:
            self._wake = anyio.Event()
            batch = self._take(anyio.current_time())
            if batch:
                await self._trip(batch)
                continue
            next_at = self._due[0][0] if self._due else math.inf
            with anyio.CancelScope(deadline=next_at):
                await self._wake.wait()

    def _take(self, now: float) -> list[Ticket[T]]:
        batch: list[Ticket[T]] = []
        while self._due and (self._due[0][2].done.is_set() or self._due[0][0] <= now):
            ticket = heapq.heappop(self._due)[2]
            if not ticket.done.is_set():
                batch.append(ticket)
        return list(dict.fromkeys(batch))

    async def _trip(self, batch: list[Ticket[T]]) -> None:
        def looks() -> None:
            for ticket in batch:
                if ticket.done.is_set():
                    continue
                try:
                    ticket.answer = ticket.look()
                except Exception as error:  # for its caller alone: the poller serves others too
                    ticket.error = error

        try:
            await self._workers.run(looks, abandon=True)
        except OSError as error:  # the directory does not answer at all
            for ticket in batch:
                if not hasattr(ticket, "answer"):
                    ticket.error = error
        for ticket in batch:
            ticket.done.set()
