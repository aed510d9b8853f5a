"""Beats for compiles that run inside this process: one daemon thread per cache, outside the loop, which GPU
programs block for many seconds. (Compiles in a subprocess are beaten for by their guard.)
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acache._beat import beat
from acache._fs import perform

if TYPE_CHECKING:
    from acache._fs import FileSystem
    from acache._moves import Lease

__all__ = ["Beats"]


@dataclass(slots=True)
class _Beating:
    lease: Lease
    folder: str
    counter: int = 0


class Beats:
    """The leases that this process beats itself; every method may be called from the loop's thread."""

    def __init__(self, fs: FileSystem, interval: float) -> None:
        self._fs = fs
        self._interval = interval
        self._held: dict[str, _Beating] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, lease: Lease, *, network: bool) -> None:
        """Begin to beat a lease."""
        self._held[lease.nonce] = _Beating(lease, lease.paths.folder if network else "")
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="acache-beats", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads to be had: unbeaten, the lease is taken over in time
                return
            self._thread = thread

    def drop(self, lease: Lease) -> None:
        """Beat it no more. A beat that is under way may still end: it checks the nonce itself."""
        self._held.pop(lease.nonce, None)

    def close(self) -> None:
        """Let the thread end."""
        self._held.clear()
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            for held in list(self._held.values()):
                if os.getpid() != held.lease.pid:
                    return
                held.counter += 1
                try:
                    lease = held.lease
                    perform(
                        beat(lease.slot, lease.successor, lease.nonce, held.counter, 0, held.folder), self._fs
                    )
                except OSError:
                    continue  # the next beat may succeed; if none does, the lease goes silent
