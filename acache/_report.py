"""How a cache speaks: counters for programs, events for ``on_event``, one warning for people.

Warnings go through `logging` and never through `warnings`: with ``-W error`` the latter would fail a launch.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from acache import _events
from acache._tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from acache._events import Event

__all__ = ["Report", "logger"]

logger = logging.getLogger("acache")


class Report:
    """Counts, tells and warns; used on the loop's thread."""

    def __init__(self, on_event: Callable[[Event], object] | None) -> None:
        self.counters = _events.Counters()
        self.tally = Tally()
        self._on_event = on_event
        self._warned: set[tuple[str, object]] = set()

    def tell(self, event: Event, **counts: float) -> None:
        """Hand an event to ``on_event``, whose exceptions are logged, and add to counters."""
        for name, amount in counts.items():
            self.counters.add(name, amount)
        if counts:
            self.tally.count(event.label, event.compiler, counts)
        if isinstance(event, _events.Hit) and event.saved:
            self.tally.count(event.label, event.compiler, {f"{event.origin.value}_saved": event.saved})
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            logger.exception("on_event raised on %s; the cache goes on", type(event).__name__)

    def warn_once(self, folder: str, reason: object, message: str, *arguments: object) -> None:
        """Warn, once per folder and reason."""
        if (folder, reason) not in self._warned:
            self._warned.add((folder, reason))
            logger.warning(message, *arguments)
