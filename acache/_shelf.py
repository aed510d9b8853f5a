"""Entries as they stand: look up, put, remove; nothing here waits for a compile."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio import lowlevel

from acache import _events, _keys, _moves, _store
from acache._describe import status_of
from acache._format import Caption, encode_artifact
from acache._held import Handover, HeldPart, hold
from acache._models import Artifact, Origin, Status
from acache._protocol import SeenArtifact
from acache._store import Subject, fresh_nonce

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from acache._directory import Directory
    from acache._fs import Steps
    from acache._keys import Key
    from acache._memory import Memory
    from acache._rejected import Rejected
    from acache._report import Report
    from acache._settings import Settings
    from acache._store import Layout
    from acache._tiers import Below, Tiers

__all__ = ["Shelf"]

MANY = 256
"""Keys that are looked up in one trip to a thread: some milliseconds, and then others have a turn."""


@dataclass(slots=True)
class _Look:
    """What one look found: in the directory (or why it could not be read), and below it."""

    seen: SeenArtifact | OSError | None = None
    below: Below | None = None


def _serves(seen: SeenArtifact | OSError | None, rejected: Container[str | None]) -> bool:
    return isinstance(seen, SeenArtifact) and seen.what == "artifact" and seen.identity not in rejected


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
        tiers: Tiers,
        rejected: Rejected,
    ) -> None:
        self._tiers = tiers
        self._rejected = rejected
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
        try:
            (found,) = await self._look(((key, subject),))
        except OSError as error:
            self._directory.fault("get", error, key)
            self._report.tell(_events.Miss(key=key), misses=1)
            return None
        artifact, worn = self._landed(key, subject, found)
        if worn is not None:
            await self._directory.touch(subject, worn)
        return artifact

    async def get_many(self, keys: Iterable[Key]) -> dict[Key, Artifact]:
        found: dict[Key, Artifact] = {}
        wanted: list[tuple[Key, Subject]] = []
        order = dict.fromkeys(keys)
        for key in order:
            kept = self.get_nowait(key)
            if kept is not None:
                found[key] = kept
            elif self._settings.mode != "off":
                wanted.append((key, self.subject(key)))
        await lowlevel.checkpoint()
        worn: list[tuple[Subject, SeenArtifact]] = []
        for start in range(0, len(wanted), MANY):
            batch = wanted[start : start + MANY]
            try:
                looks = await self._look(batch)
            except OSError as error:  # no thread answers
                self._directory.fault("get", error)
                self._report.tell(_events.Miss(), misses=len(batch))
                continue
            for (key, subject), look in zip(batch, looks, strict=True):
                artifact, used = self._landed(key, subject, look)
                if artifact is not None:
                    found[key] = artifact
                if used is not None:
                    worn.append((subject, used))
        await self._directory.touch_many(worn)
        return {key: found[key] for key in order if key in found}

    async def _look(self, wanted: Sequence[tuple[Key, Subject]]) -> list[_Look]:
        """Look in the directory and, where it has nothing, in the lower tiers: one trip for all.

        :raises OSError: no thread answers.
        """
        directory = self._directory
        looks = await directory.run(self._looks(await directory.layout(), wanted), abandon=True)
        for number, (_, subject) in enumerate(wanted):
            seen = looks[number].seen
            if isinstance(seen, SeenArtifact) and seen.what == "untrusted":
                with suppress(OSError):
                    looks[number].seen = await directory.believed(subject, seen)
        return looks

    def _looks(self, layout: Layout, wanted: Sequence[tuple[Key, Subject]]) -> Steps[list[_Look]]:
        looks = []
        tiers, rejected = self._tiers if self._settings.mode != "refresh" else None, self._rejected.known()
        for _, subject in wanted:
            look = _Look()
            looks.append(look)
            try:
                look.seen = yield from _store.read_artifact(layout, subject)
            except OSError as error:
                look.seen = error
            if tiers and not _serves(look.seen, rejected):
                look.below = yield from tiers.look(subject, rejected=rejected)
        return looks

    def _landed(self, key: Key, subject: Subject, look: _Look) -> tuple[Artifact | None, SeenArtifact | None]:
        """Count and tell what a look found; the second is what has to be marked as used."""
        seen, worn = look.seen, None
        if isinstance(seen, OSError):
            self._directory.fault("get", seen, key)
        elif seen is not None:
            self._directory.note(key, subject, seen)
        if look.below is not None:
            self._tiers.tell(key, look.below)
        if not isinstance(seen, OSError) and seen is not None and _serves(seen, self._rejected):
            worn = seen
        elif look.below is not None:
            seen = look.below.seen
        else:
            seen = None
        if not isinstance(seen, SeenArtifact) or seen.entry is None:
            self._report.tell(_events.Miss(key=key), misses=1)
            return None, None
        entry = seen.entry
        event = _events.Hit(
            key=key, label=entry.label, compiler=entry.compiler, origin=Origin.DISK, saved=entry.seconds
        )
        self._report.tell(event, disk_hits=1, bytes_read=entry.size)
        artifact = entry.artifact()._stamped(Origin.DISK, entry.identity)
        self._memory.put(key, artifact, artifact.size)
        return artifact, worn

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
            if held is None or held.entry.identity in self._rejected:
                handover.leave()
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
            if self._tiers:
                return await self.get(key)
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
            layout, subject = await directory.layout(), self.subject(key)
            written = await directory.publish(layout, subject, _store.replace_entry(layout, subject, chunks))
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

    async def invalidate(self, key: Key, artifact: Artifact) -> bool:
        await lowlevel.checkpoint_if_cancelled()
        identity = artifact._identity
        kept = self._memory.get(key)
        found = kept is not None and kept._identity == identity
        if found:
            self._memory.discard(key)
        if identity is None or self._settings.mode == "off":  # it was never on disk
            await lowlevel.checkpoint()
            return found
        is_news = identity not in self._rejected
        self._rejected.add(identity)
        directory, subject = self._directory, self.subject(key)
        try:
            layout = await directory.layout()
            if self._settings.mode != "readonly":
                found |= await directory.run(_store.discard(layout, subject, identity))
            else:
                seen = await directory.run(_store.read_artifact(layout, subject), abandon=True)
                found |= seen.identity == identity
            if self._tiers and is_news:
                below = await directory.run(self._tiers.look(subject), abandon=True)
                found |= below.seen is not None and below.seen.identity == identity
        except OSError as error:
            directory.fault("invalidate", error, key)
        return found

    async def status(self, key: Key) -> Status:
        directory, subject = self._directory, self.subject(key)
        try:
            move = _moves.observe(await directory.layout(), subject)
            status = status_of(await directory.run(move, abandon=True))
        except OSError as error:
            directory.fault("status", error, key)
            status = Status("absent")
        if status.state == "absent" and self._tiers:
            with suppress(OSError):
                look = self._tiers.look(subject, rejected=self._rejected.known())
                if (await directory.run(look, abandon=True)).seen is not None:
                    return Status("present")
        return status
