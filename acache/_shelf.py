"""Entries as they stand: look one up, put one, remove one, list all; nothing here waits for a compile."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from anyio import lowlevel

from acache import _events, _keys, _moves, _store
from acache._describe import entry_info, status_of
from acache._format import Caption, encode_artifact
from acache._held import Handover, HeldPart, hold
from acache._models import Artifact, EntryInfo, Origin, Status
from acache._protocol import SeenArtifact
from acache._store import Subject, fresh_nonce

if TYPE_CHECKING:
    from acache._directory import Directory
    from acache._keys import Key
    from acache._memory import Memory
    from acache._report import Report
    from acache._settings import Settings

__all__ = ["Shelf"]


class Shelf:
    """What one cache holds, in memory and in its directory.

    Every method is the body of the method of that name of `acache.Cache`, which says what it promises.
    """

    def __init__(
        self,
        directory: Directory,
        settings: Settings,
        report: Report,
        memory: Memory[Artifact],
        namespace: str | None,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._report = report
        self._memory = memory
        self._namespace = namespace

    def subject(self, key: Key) -> Subject:
        """Say where a key lives in this directory and namespace."""
        name = _keys.name_of(key, self._namespace)
        return Subject(_store.paths_in(self._directory.root, name), key.hex, self._namespace)

    # --- single entries ------------------------------------------------------------------------

    def get_nowait(self, key: Key) -> Artifact | None:
        if self._settings.mode == "off":
            return None
        kept = self._memory.get(key)
        if kept is None:
            return None
        label, compiler, saved = kept._about
        event = _events.Hit(key=key, label=label, compiler=compiler, origin=Origin.MEMORY, saved=saved)
        self._report.tell(event, memory_hits=1)
        return kept._stamped(Origin.MEMORY, kept._identity)

    async def get(self, key: Key) -> Artifact | None:
        kept = self.get_nowait(key)
        if kept is not None or self._settings.mode == "off":
            await lowlevel.checkpoint()
            return kept
        subject = self.subject(key)
        directory = self._directory
        try:
            seen = await directory.run(_store.read_artifact(await directory.layout(), subject), abandon=True)
            seen = await directory.believed(subject, seen)
        except OSError as error:
            directory.fault("get", error, key)
            seen = None
        if seen is not None:
            directory.note(key, subject, seen)
        if seen is None or seen.what != "artifact" or seen.entry is None:
            self._report.tell(_events.Miss(key=key), misses=1)
            return None
        entry = seen.entry
        event = _events.Hit(
            key=key, label=entry.label, compiler=entry.compiler, origin=Origin.DISK, saved=entry.seconds
        )
        self._report.tell(event, disk_hits=1, bytes_read=entry.size)
        await directory.touch(subject, seen)
        artifact = entry.artifact()._stamped(Origin.DISK, entry.identity)
        self._memory.put(key, artifact, artifact.size)
        return artifact

    async def hold(self, key: Key, part: str | None) -> HeldPart | Artifact | None:
        """Return one part of a file, checked and left open at its first byte, for who passes it on piece by
        piece; or the whole artifact, where it is in memory or no such file is found; or None.

        Whoever gets a `HeldPart` closes its stream. Cancellation leaves at once and leaves no file open.

        :raises KeyError: the artifact in the file has no part of that name.
        """
        kept = self.get_nowait(key)
        if kept is not None or self._settings.mode == "off":
            await lowlevel.checkpoint()
            return kept
        subject, directory, handover = self.subject(key), self._directory, Handover()
        try:
            held = await directory.run(hold(await directory.layout(), subject, part, handover), abandon=True)
            if held is None:
                return await self.get(key)  # it knows what is wrong, and where else to look
            entry = held.entry
            event = _events.Hit(
                key=key, label=entry.label, compiler=entry.compiler, origin=Origin.DISK, saved=entry.seconds
            )
            self._report.tell(event, disk_hits=1, bytes_read=held.size)
            seen = SeenArtifact("artifact", entry.identity, entry.seconds, entry, used=held.used)
            await directory.touch(subject, seen)
        except BaseException as error:
            handover.leave()
            if not isinstance(error, OSError):
                raise
            directory.fault("hold", error, key)
            self._report.tell(_events.Miss(key=key), misses=1)
            return None
        return held

    async def put(self, key: Key, artifact: Artifact, label: str | None) -> None:
        limit = self._settings.max_entry_bytes
        if artifact.size > limit:
            raise ValueError(f"the artifact has {artifact.size} bytes; max_entry_bytes allows {limit}")
        if self._settings.mode == "off":
            await lowlevel.checkpoint()
            return
        caption = Caption(key.hex, self._namespace, fresh_nonce(), label, key.fields, time.time())
        kept = artifact._stamped(artifact.origin or Origin.COMPILED, caption.nonce, (label, None, 0.0))
        chunks = encode_artifact(caption, artifact, 0.0)
        await lowlevel.checkpoint_if_cancelled()
        self._memory.put(key, kept, artifact.size)
        if self._settings.mode == "readonly":
            await lowlevel.checkpoint()
            return
        directory = self._directory
        try:
            written = await directory.run(
                _store.replace_entry(await directory.layout(), self.subject(key), chunks)
            )
        except OSError as error:
            directory.fault("put", error, key)
        else:
            if written:
                size = sum(len(chunk) for chunk in chunks)
                self._report.tell(
                    _events.Published(key=key, label=label, size=size, seconds=0.0),
                    published=1,
                    bytes_written=size,
                )

    async def delete(self, key: Key) -> bool:
        await lowlevel.checkpoint_if_cancelled()
        kept = self._memory.discard(key)
        if self._settings.mode in ("off", "readonly"):
            await lowlevel.checkpoint()
            return kept
        directory = self._directory
        try:
            return await directory.run(_store.delete(await directory.layout(), self.subject(key))) or kept
        except OSError as error:
            directory.fault("delete", error, key)
            return kept

    async def status(self, key: Key) -> Status:
        directory = self._directory
        try:
            move = _moves.observe(await directory.layout(), self.subject(key))
            seen = await directory.run(move, abandon=True)
        except OSError as error:
            directory.fault("status", error, key)
            return Status("absent")
        return status_of(seen)

    # --- the whole directory -------------------------------------------------------------------

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

    async def _shards(self) -> list[str]:
        """Return the shards that there are; none, and one fault, where that cannot be seen."""
        try:
            return await self._directory.run(_store.list_shards(await self._directory.layout()), abandon=True)
        except OSError as error:
            self._directory.fault("list", error)
            return []
