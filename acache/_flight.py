"""Single flight inside a process: one piece of shared work per key, owned by the cache and not by a caller.

The rules, each learned from a fault: a flight runs in the cache's own context, so that no caller's deadline,
cancel scope or context variable leaks into it. Callers are counted; when the last leaves, that caller's
``on_abandon`` decides. A flight that is to stop is detached from its key before it is cancelled, so that no
newcomer joins a dying flight. A flight never raises into the task group that owns it: what its work raises
goes to its callers, and is logged when there are none left.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from acache._errors import CacheClosedError
from acache._report import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextvars import Context

    from anyio.abc import TaskGroup

    from acache._keys import Key
    from acache._settings import OnAbandon

__all__ = ["Flight", "Flights"]

T = TypeVar("T")


class Flight(Generic[T]):
    """Shared work for one key. ``deadline`` is the earliest of the present callers'."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.landed = anyio.Event()
        self.scope = anyio.CancelScope()
        self.result: T | None = None
        self.error: BaseException | None = None
        self._callers: dict[object, float] = {}
        self._waiting: anyio.CancelScope | None = None
        self._not_before = -math.inf

    @property
    def deadline(self) -> float:
        """On the loop's clock; infinite when nobody waits any more."""
        return min(self._callers.values(), default=math.inf)

    @property
    def callers(self) -> int:
        """How many wait for it; 0 once the last has left."""
        return len(self._callers)

    def board(self, deadline: float) -> object:
        """Take in a caller; the flight's wait ends at the earliest deadline, also when it joins late."""
        ticket = object()
        self._callers[ticket] = deadline
        self._reschedule()
        return ticket

    def leave(self, ticket: object) -> None:
        """Let a caller go."""
        del self._callers[ticket]
        self._reschedule()

    def until_deadline(self, *, at_least: float = -math.inf) -> anyio.CancelScope:
        """Return a scope that ends at the callers' deadline, even when that changes while it runs.

        :param at_least: it ends no earlier than ``at_least`` seconds from now.
        """
        self._not_before = anyio.current_time() + at_least
        self._waiting = anyio.CancelScope(deadline=max(self.deadline, self._not_before))
        return self._waiting

    def _reschedule(self) -> None:
        if self._waiting is not None:
            self._waiting.deadline = max(self.deadline, self._not_before)


class Flights(Generic[T]):
    """All flights of one cache.

    :param group: the task group that runs them.
    :param context: the context they start in.
    :param abandoned: is told when the last caller of a flight has left it, and what is done about it.
    """

    def __init__(
        self, group: TaskGroup, context: Context, abandoned: Callable[[Key, OnAbandon], object]
    ) -> None:
        self._group = group
        self._context = context
        self._abandoned = abandoned
        self._flying: dict[Key, Flight[T]] = {}
        self._closing = False

    def __len__(self) -> int:
        return len(self._flying)

    def find(self, key: Key) -> Flight[T] | None:
        """Return the flight that a caller for ``key`` would join."""
        return self._flying.get(key)

    async def join(
        self,
        key: Key,
        work: Callable[[Flight[T]], Awaitable[T]],
        *,
        deadline: float,
        on_abandon: OnAbandon,
    ) -> T:
        """Join the flight for ``key``, or start one with ``work``, and return its result.

        Cancellation takes this caller off; the flight goes on for the others.

        :raises CacheClosedError: the cache is closing.
        :raises BaseException: what ``work`` raised, the same object for every caller.
        """
        if self._closing:
            raise CacheClosedError("this Cache was closed meanwhile; make a new one")
        flight = self._flying.get(key)
        if flight is None:
            flight = self._flying[key] = Flight(key)
            self._context.copy().run(self._group.start_soon, self._fly, flight, work)
        ticket = flight.board(deadline)
        try:
            await flight.landed.wait()
        finally:
            flight.leave(ticket)
            if not flight.callers and not flight.landed.is_set():
                self._abandoned(key, on_abandon)
                if on_abandon == "stop":
                    self._detach(flight)
                    flight.scope.cancel()
        if flight.error is not None:
            raise flight.error
        assert flight.result is not None
        return flight.result

    def close(self) -> None:
        """Stop all flights; their callers are woken with `CacheClosedError`."""
        self._closing = True
        for flight in list(self._flying.values()):
            self._detach(flight)
            flight.scope.cancel()

    def _detach(self, flight: Flight[T]) -> None:
        if self._flying.get(flight.key) is flight:
            del self._flying[flight.key]

    async def _fly(self, flight: Flight[T], work: Callable[[Flight[T]], Awaitable[T]]) -> None:
        try:
            with flight.scope:
                flight.result = await work(flight)
        except anyio.get_cancelled_exc_class() as cancelled:
            if self._group.cancel_scope.cancel_called or anyio.current_effective_deadline() == -math.inf:
                raise  # the cache is closing, or is cancelled from outside
            # On asyncio anybody may raise this, and an awaited task that was cancelled does. The group would
            # take it for a reason to cancel everything.
            flight.error = RuntimeError("the compile function was cancelled from inside")
            flight.error.__cause__ = cancelled
        except BaseException as error:
            if not isinstance(error, Exception) and not flight.callers:
                raise  # KeyboardInterrupt, and nobody else there to take it
            flight.error = error
        finally:
            self._detach(flight)
            if flight.result is None and flight.error is None:
                flight.error = CacheClosedError("the cache was closed while this compile was under way")
            elif flight.error is not None and not flight.callers:
                logger.error(
                    "a compile failed after its last caller had left: %s",
                    flight.key.hex[:12],
                    exc_info=flight.error,
                )
            flight.landed.set()
