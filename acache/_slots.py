"""Local compile slots: how many compiles run at once in this process, first come, first served."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Claim", "Slots"]


class Slots:
    """A counter with a queue that can be watched instead of awaited.

    Who queues goes on looking for somebody else's result meanwhile, so a claim is granted by a callback.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._queue: deque[Claim] = deque()

    def claim(self) -> Claim:
        """Queue for a slot; it may be granted at once. Give every claim back."""
        claim = Claim(self)
        self._queue.append(claim)
        self._grant()
        return claim

    def give_back(self, claim: Claim) -> None:
        """Free a granted slot, or leave the queue; once."""
        if claim.granted:
            claim.granted = False
            self._free += 1
            self._grant()
        elif claim in self._queue:
            self._queue.remove(claim)

    def _grant(self) -> None:
        while self._free and self._queue:
            self._free -= 1
            self._queue.popleft().grant()


class Claim:
    """A place in the queue, then a slot."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._tell: Callable[[], None] | None = None
        self.granted = False

    def subscribe(self, tell: Callable[[], None]) -> None:
        """Have ``tell`` called when the slot is granted (at once, if it is already)."""
        self._tell = tell
        if self.granted:
            tell()

    def grant(self) -> None:
        """Make the slot this claim's."""
        self.granted = True
        if self._tell is not None:
            self._tell()

    def give_back(self) -> None:
        """Free the slot, or leave the queue; more than once does no harm."""
        self._slots.give_back(self)
