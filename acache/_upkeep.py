"""The whole directory: list it, clear it, trim it, verify it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from anyio import lowlevel

from acache import _store, _trim, _verify
from acache._describe import entry_info
from acache._evict import Room, survey
from acache._models import EntryInfo, TrimReport, VerifyReport

if TYPE_CHECKING:
    from acache._capacity import Row
    from acache._directory import Directory
    from acache._memory import Memory
    from acache._models import Artifact
    from acache._settings import Settings
    from acache._store import Layout

__all__ = ["Upkeep"]


class Upkeep:
    """What is done to one cache's directory as a whole, shard by shard.

    Every method is the body of the method of that name of `acache.Cache`, which says what it promises.
    """

    def __init__(
        self, directory: Directory, settings: Settings, memory: Memory[Artifact], namespace: str | None
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._memory = memory
        self._namespace = namespace

    async def entries(self) -> list[EntryInfo]:
        directory = self._directory
        layout = await directory.layout()
        found: list[EntryInfo] = []
        for shard in await self._shards():
            try:
                listed = await directory.run(_store.list_shard(layout, shard), abandon=True)
            except OSError as error:
                directory.fault("entries", error)
                continue
            found += [
                info for item in listed if (info := entry_info(item)) and info.namespace == self._namespace
            ]
        return found

    async def clear(self) -> int:
        await lowlevel.checkpoint_if_cancelled()
        self._memory.clear()
        if self._settings.mode in ("off", "readonly"):
            await lowlevel.checkpoint()
            return 0
        directory = self._directory
        layout = await directory.layout()
        cleared = 0
        for shard in await self._shards():
            try:
                cleared += await directory.run(_store.clear_shard(layout, shard, self._namespace))
            except OSError as error:
                directory.fault("clear", error)
            await lowlevel.checkpoint()
        return cleared

    async def trim(self, max_bytes: int | None, max_age: float | None) -> TrimReport:
        directory, settings = self._directory, self._settings
        layout = await directory.layout()
        rows: list[Row] = []
        refused = 0
        for shard in await self._shards():
            try:
                rows += await directory.run(survey(layout, shard), abandon=True)
            except OSError as error:
                directory.fault("trim", error)
                refused += 1
        may_write = settings.mode in ("on", "refresh")
        now = await self._file_clock(layout) if may_write else time.time()
        whole = settings.max_bytes if max_bytes is None else max_bytes
        chosen = _trim.choose(
            rows, max_bytes=whole, max_entries=settings.max_entries, max_age=max_age, now=now
        )
        size = sum(row.size for row in rows)
        if not may_write:
            gone = sum(row.size for row in chosen)
            return TrimReport(len(rows), size, len(chosen), gone, refused=refused, dry_run=True)
        done, tried = _trim.Batch(), 0
        try:
            for batch in _trim.batches(chosen):
                await lowlevel.checkpoint()
                done.add(await directory.run(_trim.remove(layout, batch, now or 0.0)))
                tried += len(batch)
        except OSError as error:  # the disk hangs
            done.fault = done.fault or error
            done.refused += len(chosen) - tried
        finally:
            directory.evicted(Room(done.entries, done.size, done.fault))
        refused += done.refused
        return TrimReport(len(rows), size, done.files, done.size, refused=refused, spared=done.spared)

    async def verify(self, *, repair: bool) -> VerifyReport:
        directory, findings = self._directory, _verify.Findings()
        layout = await directory.layout()
        repair = repair and self._settings.mode in ("on", "refresh")
        for shard in await self._shards():
            try:
                for names in _verify.batches(await directory.run(_verify.files(layout, shard), abandon=True)):
                    move = _verify.verify(layout, shard, names, findings, repair=repair)
                    await directory.run(move, abandon=not repair)
                    await lowlevel.checkpoint()
            except OSError as error:
                directory.fault("verify", error)
                findings.counts["unreadable"] += 1
                findings.fault(f"{layout.base}/{shard}", error.strerror or str(error))
        return findings.report()

    async def _file_clock(self, layout: Layout) -> float | None:
        try:
            return await self._directory.run(_trim.clock(layout))
        except OSError as error:
            self._directory.fault("trim", error)
            return None

    async def _shards(self) -> list[str]:
        """Return the shards that there are; none, and one fault, where that cannot be seen."""
        try:
            return await self._directory.run(_store.list_shards(await self._directory.layout()), abandon=True)
        except OSError as error:
            self._directory.fault("list", error)
            return []
