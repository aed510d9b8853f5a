"""All that exists only while a cache is open, wired together."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING

import anyio
from anyio import lowlevel

from acache._beats import Beats
from acache._build import Builder
from acache._directory import Directory
from acache._flight import Flights
from acache._lease import Coordinator
from acache._ledger import leave_record
from acache._memory import Memory
from acache._poller import Poller
from acache._probe import Level
from acache._rejected import Rejected
from acache._shelf import Shelf
from acache._slots import Slots
from acache._tiers import Tiers
from acache._upkeep import Upkeep
from acache._warm import WarmWorkers

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskGroup

    from acache._build import Landing
    from acache._fs import FileSystem
    from acache._keys import Key
    from acache._models import Artifact
    from acache._protocol import Sighting
    from acache._report import Report
    from acache._settings import OnAbandon, Settings
    from acache._threads import Workers

__all__ = ["Live"]

RECORD_LIMIT = 1.0
"""Seconds that a closing cache waits at most for its record of what it counted."""


class Live:
    """The parts of one open cache, in one event loop and one process."""

    def __init__(
        self,
        root: str,
        settings: Settings,
        namespace: str | None,
        *,
        group: TaskGroup,
        workers: Workers,
        report: Report,
        fs: FileSystem,
        abandoned: Callable[[Key, OnAbandon], object],
    ) -> None:
        self.settings = settings
        self.group = group
        self.workers = workers
        self.pid = os.getpid()
        self._opened = time.time()
        self._report = report
        self.loop = lowlevel.current_token().native_token
        self.memory: Memory[Artifact] = Memory(settings.memory_bytes)
        self.flights: Flights[Landing] = Flights(group, copy_context(), abandoned)
        self.directory = Directory(root, settings, workers, report, fs)
        self.rejected = Rejected()
        tiers = Tiers(settings, report)
        self.shelf = Shelf(self.directory, settings, report, self.memory, namespace, tiers, self.rejected)
        self.upkeep = Upkeep(self.directory, settings, self.memory, namespace)
        self.beats = Beats(fs, settings.heartbeat_interval)
        poller: Poller[Sighting] = Poller(workers)
        group.start_soon(poller.run)
        self.warm = WarmWorkers(settings.max_compiles, settings.kill_grace)
        group.start_soon(self.warm.run)
        builder = Builder(self.directory, settings, report, poller, group, namespace)
        slots = Slots(settings.max_compiles)
        self.coordinator = Coordinator(
            self.directory, settings, report, poller, slots, builder, tiers, self.rejected
        )

    async def leave_record(self, limit: float) -> None:
        """Leave what was counted, for ``acache stats``: best effort, within ``limit`` seconds; no errors.

        Cancellation waits for it; a disk that hangs is left alone with it.
        """
        settings, tally = self.settings, self._report.tally
        if not tally.rows or settings.record_stats is False or settings.mode in ("off", "readonly"):
            return
        if self.directory.level is Level.NONE or limit <= 0:
            return
        tally.processes, tally.first, tally.last = 1, self._opened, time.time()
        with anyio.move_on_after(min(limit, RECORD_LIMIT), shield=True), suppress(OSError):
            layout = await self.directory.layout()
            if settings.record_stats or not layout.network:
                await self.directory.run(leave_record(layout, tally), abandon=True)

    def close(self) -> None:
        """Let its threads go."""
        self.beats.close()
        self.workers.close()
