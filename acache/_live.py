"""All that exists only while a cache is open, wired together."""

from __future__ import annotations

import os
from contextvars import copy_context
from typing import TYPE_CHECKING

from anyio import lowlevel

from acache._beats import Beats
from acache._build import Builder
from acache._directory import Directory
from acache._flight import Flights
from acache._lease import Coordinator
from acache._memory import Memory
from acache._poller import Poller
from acache._shelf import Shelf
from acache._slots import Slots

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
        self.loop = lowlevel.current_token().native_token
        self.memory: Memory[Artifact] = Memory(settings.memory_bytes)
        self.flights: Flights[Landing] = Flights(group, copy_context(), abandoned)
        self.directory = Directory(root, settings, workers, report, fs)
        self.shelf = Shelf(self.directory, settings, report, self.memory, namespace)
        self.beats = Beats(fs, settings.heartbeat_interval)
        poller: Poller[Sighting] = Poller(workers)
        group.start_soon(poller.run)
        builder = Builder(self.directory, settings, report, poller, group, namespace)
        slots = Slots(settings.max_compiles)
        self.coordinator = Coordinator(self.directory, settings, report, poller, slots, builder)

    def close(self) -> None:
        """Let its threads go."""
        self.beats.close()
        self.workers.close()
