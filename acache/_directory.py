"""A cache directory as the loop sees it: moves run on worker threads, its abilities are learned once, and
its faults become events, counters and one warning each instead of exceptions.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from errno import EAGAIN, EBUSY, EDQUOT, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, ESTALE, ETIMEDOUT
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio

from acache import _events, _host, _policy, _store
from acache._capacity import Limits
from acache._errors import CorruptEntryError, StoreError
from acache._evict import Capacity, Room, within
from acache._fs import perform
from acache._probe import Level, Probe, probe
from acache._store import Layout, Subject, kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from acache._fs import FileSystem, Steps
    from acache._keys import Key
    from acache._protocol import SeenArtifact
    from acache._report import Report
    from acache._settings import Settings
    from acache._threads import Workers

__all__ = ["Directory"]

T = TypeVar("T")

PROBE_AGAIN = 60.0
"""Seconds after which a probe that met a passing fault is made again."""
PASSING = frozenset({EMFILE, ENFILE, EAGAIN, ENOMEM, ENOSPC, EDQUOT, EIO, ESTALE, EBUSY, ETIMEDOUT})

_ADVICE = {
    Level.LINKLESS: "leases are made by exclusive create instead of link",
    Level.PROCESS: "processes cannot coordinate there, so each compiles for itself",
    Level.NONE: "nothing can be cached there, so each process compiles for itself",
}


class Directory:
    """One cache directory.

    :param root: an absolute path; nothing is touched before the first move.
    :param fs: the file operations; tests hand in others.
    """

    def __init__(
        self, root: str, settings: Settings, workers: Workers, report: Report, fs: FileSystem
    ) -> None:
        self.root = root
        self._found: Probe | None = None
        self._probe_again = 0.0
        self._settings = settings
        self._workers = workers
        self._report = report
        self.fs = fs
        self._layout: Layout | None = None
        self._mount: _host.Mount | None = None
        self._probing: anyio.Lock = anyio.Lock()
        limits = Limits(settings.max_bytes, settings.max_entries, settings.max_entry_bytes)
        self._capacity = Capacity(limits)

    async def layout(self) -> Layout:
        """Return what is known of the directory; the first call reads the mount table, off the loop."""
        if self._layout is None:
            try:
                layout, mount = await self._workers.run(self._survey, abandon=True)
            except OSError:
                return self.unsurveyed()  # no thread answers: what follows will say so
            if self._layout is None:
                self._layout, self._mount = layout, mount
        return self._layout

    def unsurveyed(self) -> Layout:
        """Return a layout of which nothing was looked up, for those who will not touch the directory."""
        unknown = _host.Identity(None, None, None, os.getpid(), None, "", False)
        return Layout.on(self.root, self._settings, None, unknown)

    def _survey(self) -> tuple[Layout, _host.Mount | None]:
        try:
            mount = _host.mount_of(self.root)
        except OSError:
            mount = None
        return Layout.on(self.root, self._settings, mount, _host.my_identity()), mount

    async def run(self, steps: Steps[T], *, abandon: bool = False) -> T:
        """Run a move in one trip to a worker thread.

        :param abandon: for moves that only read: cancellation does not wait for the disk.
        :raises OSError: as the disk says, or ETIMEDOUT when it says nothing.
        """
        return await self._workers.run(partial(perform, steps, self.fs), abandon=abandon)

    async def publish(self, layout: Layout, subject: Subject, steps: Steps[T]) -> T:
        """Run a move that writes one key's files, and evict what has no room beside them: one trip.

        :raises OSError: as the move does; a fault of the eviction alone is only told.
        """
        result, room = await self.run(within(self._capacity, layout, subject.paths, steps))
        self.evicted(room)
        return result

    def evicted(self, room: Room) -> None:
        """Count and tell what went.

        :raises StoreError: only with ``strict``: something could not be read or removed.
        """
        if room.bytes or room.entries:
            self._report.tell(_events.Evicted(entries=room.entries, size=room.bytes), evicted=room.entries)
        if room.fault is not None:
            self.fault("evict", room.fault)

    async def ready(self) -> Level:
        """Find out once what the directory can do: before the first acquire, never on a hit.

        What a passing fault prevented (a full disk, no descriptors) is tried again after `PROBE_AGAIN`.
        Each step down the ladder is one event and one warning, which name folder, mount and reason.

        :raises StoreError: only with ``strict``, each time: processes cannot coordinate there.
        """
        async with self._probing:
            known, now = self._found, anyio.current_time()
            if known is None or (known.errno in PASSING and now >= self._probe_again):
                self._found = await self._probed()
                self._probe_again = now + PROBE_AGAIN
                self._adapt(self._found, news=known is None or known.level is not self._found.level)
        found = self._found
        assert found is not None
        if self._settings.strict and found.level in (Level.PROCESS, Level.NONE):
            raise StoreError(f"the cache directory is degraded: {found.reason}", self.root, found.errno)
        return found.level

    @property
    def level(self) -> Level | None:
        """How far processes can coordinate here; None before `ready`."""
        return None if self._found is None else self._found.level

    async def _probed(self) -> Probe:
        layout = await self.layout()
        mount = self._mount
        if sys.platform == "win32":
            return Probe(Level.PROCESS, "processes do not coordinate on Windows")
        if mount is not None and kind_of(mount) == "denied":
            return Probe(Level.PROCESS, f"{mount.fstype} does not keep the promises that leases need")
        try:
            return await self.run(probe(layout))
        except OSError as error:
            return Probe(Level.NONE, error.strerror or str(error), error.errno)

    def _adapt(self, found: Probe, *, news: bool) -> None:
        layout = self._layout or self.unsurveyed()
        me = layout.trust.me if found.owner is None else layout.trust.me | {found.owner}
        self._layout = replace(
            layout,
            trust=replace(layout.trust, me=me),
            linkless=found.level is Level.LINKLESS,
        )
        if news and found.level is not Level.SHARED:
            self._degraded(found)

    def _degraded(self, found: Probe) -> None:
        mount = f"{self._mount.fstype} on {self._mount.point}" if self._mount else None
        self._report.tell(
            _events.Degraded(level=found.level.value, folder=self.root, mount=mount, reason=found.reason)
        )
        self._report.warn_once(
            self.root,
            found.errno or found.reason,
            "cache directory %s (%s): %s; %s. `acache doctor` says more",
            self.root,
            mount or "mount unknown",
            found.reason,
            _ADVICE[found.level],
        )

    def fault(self, operation: str, error: OSError, key: Key | None = None) -> None:
        """Turn a fault of the disk into an event, a counter, and one warning per folder and reason.

        :raises StoreError: only with ``strict``.
        """
        path = os.fsdecode(error.filename) if error.filename is not None else self.root
        self._report.tell(
            _events.StoreFault(
                operation=operation,
                path=path,
                errno=error.errno,
                message=error.strerror or str(error),
                key=key,
            ),
            store_errors=1,
        )
        self._report.warn_once(
            self.root,
            error.errno,
            "cache directory %s: %s failed: %s; what it cannot hold is compiled again",
            self.root,
            operation,
            error.strerror or error,
        )
        if self._settings.strict:
            raise StoreError(f"{operation} failed: {error.strerror or error}", path, error.errno) from error

    async def believed(self, subject: Subject, seen: SeenArtifact) -> SeenArtifact:
        """Look again at an entry of another owner, once it is known who I am there (a squashed mount)."""
        if seen.what != "untrusted" or self.level is not None or self._settings.mode == "readonly":
            return seen  # to find out means to write
        await self.ready()
        return await self.run(_store.read_artifact(await self.layout(), subject), abandon=True)

    def note(self, key: Key, subject: Subject, seen: SeenArtifact) -> None:
        """Count and tell of an entry that was no good; it is a miss, and heals."""
        if seen.what == "bad":
            event = _events.CorruptEntry(
                key=key, path=subject.paths.art, reason="it does not pass its own check"
            )
            self._report.tell(event, corrupt=1)
            if self._settings.strict:
                raise CorruptEntryError("a cache entry does not pass its own check", subject.paths.art)
        elif seen.what == "untrusted":
            event2 = _events.UntrustedEntry(key=key, path=subject.paths.art, owner=seen.owner)
            self._report.tell(event2, untrusted=1)

    async def touch(self, subject: Subject, seen: SeenArtifact) -> None:
        """Refresh an entry's recency after a hit, when it is older than ``recency_grain``; best effort."""
        await self.touch_many([(subject, seen)])

    async def touch_many(self, used: Sequence[tuple[Subject, SeenArtifact]]) -> None:
        """Refresh the recency of several entries, in one trip if any is old enough; best effort."""
        layout = await self.layout()
        if self._settings.mode == "readonly":
            return
        grain, now = self._settings.recency_grain, time.time()
        worn = [
            subject.paths.art
            for subject, seen in used
            if _policy.needs_touch(now - seen.used, grain, layout.network)
        ]
        if worn:
            with suppress(OSError):  # the entries are in hand: a disk that hangs only now is not worth a word
                await self.run(_store.touch_many(worn))
