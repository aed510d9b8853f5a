"""Capacity: which shards share a budget, how large it is, and which entries go first.

After Mesa 23.1 (``src/util/disk_cache_os.c``, the multi-file cache): the shard that was just written is
brought down to its part of the capacity, least recently used first, by whoever wrote there. What is ours:
shards are grouped, so that one large entry neither empties its shard nor is too large for it; and each
process keeps an account of a group, so that a publication need not read the whole group again.

No I/O and no clock: times are those of the file system, as they were read.
"""

from __future__ import annotations

import heapq
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from acache._policy import SHARDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["Account", "Limits", "Row", "Share", "group_of", "shard_in", "shards_per_group", "share_of"]

LARGE_ENTRIES = 2
"""A group has room for so many entries of the largest size: one of them pushes out half the group at most."""
FEWEST_ENTRIES = 8
"""A group has room for so many entries where ``max_entries`` counts them: fewer would be no choice at all."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Shards per group: powers of two, so that any two groupings nest."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a directory may hold; bytes are those of whole files."""

    max_bytes: int
    max_entries: int | None
    max_entry_bytes: int


@dataclass(frozen=True, slots=True)
class Share:
    """What one group may hold."""

    bytes: int
    entries: int | None


def shards_per_group(limits: Limits) -> int:
    """Return how many neighbouring shards share a budget: 1 where 1/256 of the capacity is ample."""
    for count in SIZES:
        share = share_of(limits, count)
        if share.bytes < LARGE_ENTRIES * limits.max_entry_bytes:
            continue
        if share.entries is None or share.entries >= FEWEST_ENTRIES:
            return count
    return SIZES[-1]


def share_of(limits: Limits, count: int) -> Share:
    """Return the budget of a group of ``count`` shards; all groups together never exceed the limits."""
    entries = limits.max_entries
    return Share(
        limits.max_bytes * count // len(SHARDS), None if entries is None else entries * count // len(SHARDS)
    )


def group_of(shard: str, count: int) -> tuple[str, ...]:
    """Return the shards that share a budget with this one, itself included, in order."""
    first = int(shard, 16) // count * count
    return SHARDS[first : first + count]


def shard_in(path: str) -> str:
    """Return the shard of a path in the folder of this format."""
    return path.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Row:
    """A file that counts: its path in the folder of this format (``ab/....art``), its bytes, its mtime."""

    path: str
    size: int
    used: float


@dataclass(slots=True)
class Account:
    """What one group holds, as far as this process knows; used from several threads.

    ``stamps`` remember each folder as it was when it was last read: another stamp means that somebody else
    has been there, and that it has to be read again.
    """

    stamps: dict[str, int | None] = field(default_factory=dict)
    shared: bool = False
    """Somebody else publishes here too, so that a folder may change between two looks of ours."""
    bytes: int = 0
    entries: int = 0
    _rows: dict[str, dict[str, Row]] = field(default_factory=dict)
    _heap: list[tuple[float, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def replace(self, shard: str, rows: Iterable[Row]) -> None:
        """Note what one shard holds, instead of all that was known of it."""
        with self._lock:
            for path in list(self._rows.get(shard, ())):
                self._drop(path)
            for row in rows:
                self._note(row)

    def note(self, row: Row) -> None:
        """Note one file, as it is now."""
        with self._lock:
            self._note(row)

    def drop(self, path: str) -> None:
        """Forget a file that is gone."""
        with self._lock:
            self._drop(path)

    def victim(self, share: Share, spare: Collection[str]) -> Row | None:
        """Take out the least recently used file while the group is over its budget; None: it is not, or
        nothing is left to take. Ties are broken by name, so that all processes choose alike.

        Whoever takes a row evicts it, or notes it again: so two threads never evict for the same want.
        """
        spared: list[tuple[float, str]] = []
        found: Row | None = None
        with self._lock:
            while self._heap and found is None and self._over(share):
                used, path = heapq.heappop(self._heap)
                row = self._rows.get(shard_in(path), {}).get(path)
                if row is None or row.used != used:
                    continue  # an older note of it
                if path in spare:
                    spared.append((used, path))
                else:
                    found = row
                    self._drop(path)
            for item in spared:
                heapq.heappush(self._heap, item)
        return found

    def _over(self, share: Share) -> bool:
        return self.bytes > share.bytes or (share.entries is not None and self.entries > share.entries)

    def _note(self, row: Row) -> None:
        self._drop(row.path)
        self._rows.setdefault(shard_in(row.path), {})[row.path] = row
        self.bytes += row.size
        self.entries += 1
        heapq.heappush(self._heap, (row.used, row.path))
        if len(self._heap) > 2 * self.entries + 64:  # mostly older notes
            self._heap = [(each.used, each.path) for rows in self._rows.values() for each in rows.values()]
            heapq.heapify(self._heap)

    def _drop(self, path: str) -> None:
        row = self._rows.get(shard_in(path), {}).pop(path, None)
        if row is not None:
            self.bytes -= row.size
            self.entries -= 1
