"""Programs that ask for keys, on a disk in memory with a clock of its own: eviction without waiting for it.

The moves are production's; only the file operations are not. Files have sizes and no content.
"""

from __future__ import annotations

import bisect
import errno
import itertools
import math
import os
import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from acache._evict import Capacity, within
from acache._fs import File, perform
from acache._host import Identity
from acache._store import Layout, Trust, paths_in, publish, touch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from acache._capacity import Limits
    from acache._evict import Room

ROOT = "/cache"
SMALLEST, LARGEST = 4 << 10, 8 << 20
"""Bytes of the smallest and the largest artifact of a trace."""

LAYOUT = Layout(ROOT, Trust("user", frozenset({0})), Identity(None, None, None, 1, None, "", False))


class Blob:
    """So many bytes, without having them."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


@dataclass(slots=True)
class Inode:
    """A file of which only the facts are kept, or a small content."""

    size: int
    mtime: float
    data: bytes


class Disk:
    """A file system in memory whose time stands still until it is told otherwise; counts operations."""

    def __init__(self) -> None:
        self.now = 1.0
        self.folders: dict[str, dict[str, Inode]] = {}
        self._changes: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.examined = 0
        """Files whose facts were read by `survey`."""

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if callable(value) and not name.startswith("_") and name != "bytes":
            counts = object.__getattribute__(self, "counts")
            counts[name] = counts.get(name, 0) + 1
        return value

    def _split(self, path: str) -> tuple[dict[str, Inode], str, str]:
        folder, _, name = path.rpartition("/")
        if folder not in self.folders:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self.folders[folder], folder, name

    def _find(self, path: str) -> Inode:
        names, _, name = self._split(path)
        if name not in names:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return names[name]

    def _changed(self, folder: str) -> None:
        self._changes[folder] = self._changes.get(folder, 0) + 1

    def create(self, path: str, chunks: Sequence[Any], durable: bool) -> None:
        names, folder, name = self._split(path)
        if name in names:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        data = b"".join(chunk for chunk in chunks if isinstance(chunk, bytes))
        names[name] = Inode(sum(len(chunk) for chunk in chunks), self.now, data)
        self._changed(folder)

    def link(self, source: str, target: str) -> None:
        inode = self._find(source)
        names, folder, name = self._split(target)
        if name in names:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        names[name] = inode
        self._changed(folder)

    def rename(self, source: str, target: str) -> None:
        inode = self._find(source)
        names, folder, name = self._split(source)
        del names[name]
        self._changed(folder)
        names, folder, name = self._split(target)
        names[name] = inode
        self._changed(folder)

    def unlink(self, path: str) -> None:
        self._find(path)
        names, folder, name = self._split(path)
        del names[name]
        self._changed(folder)

    def mkdir(self, folder: str) -> None:
        self.folders.setdefault(folder, {})

    def read(self, path: str, limit: int, covers: object = None) -> File:
        inode = self._find(path)
        return File(inode.data, 0, 0, inode.mtime, inode.size)

    def head(self, path: str, count: int) -> File:
        return self.read(path, count)

    def exists(self, path: str) -> bool:
        try:
            self._find(path)
        except OSError:
            return False
        return True

    def touch(self, path: str) -> None:
        self._find(path).mtime = self.now

    def survey(self, folder: str) -> list[tuple[str, int, float]]:
        if folder not in self.folders:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
        self.examined += len(self.folders[folder])
        return [(name, inode.size, inode.mtime) for name, inode in self.folders[folder].items()]

    def stamps(self, folders: Sequence[str]) -> list[int | None]:
        return [self._changes.get(folder) for folder in folders]

    def entries(self) -> Iterator[Inode]:
        """Return all published entries."""
        for names in self.folders.values():
            for name, inode in names.items():
                if name.endswith(".art"):
                    yield inode

    def bytes(self) -> int:
        """Return what all published entries take."""
        return sum(inode.size for inode in self.entries())


class Program:
    """One process with one cache on a disk: it asks for names, and makes what is missing."""

    def __init__(self, disk: Disk, limits: Limits) -> None:
        self.disk = disk
        self.capacity = Capacity(limits)

    def wants(self, name: str, size: int) -> bool:
        """Ask for a name; True: it was there, and is now the one used last."""
        path = paths_in(ROOT, name).art
        if not self.disk.exists(path):
            self.makes(name, size)
            return False
        perform(touch(path), self.disk)
        return True

    def makes(self, name: str, size: int) -> Room:
        """Publish an entry and make room for it, as `acache.Cache.put` does."""
        paths = paths_in(ROOT, name)
        move = publish(LAYOUT, paths, paths.art, (Blob(size),))
        _, room = perform(within(self.capacity, LAYOUT, paths, move), self.disk)
        return room


class GlobalLru:
    """What an eviction with full knowledge and no cost would keep."""

    def __init__(self, max_bytes: int, max_entries: int | None = None) -> None:
        self._max_bytes, self._max_entries = max_bytes, max_entries
        self._kept: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0

    def wants(self, name: str, size: int) -> bool:
        """Ask for a name; True: it was there."""
        hit = name in self._kept
        if hit:
            self._kept.move_to_end(name)
        else:
            self._kept[name] = size
            self._bytes += size
        while self._bytes > self._max_bytes or len(self._kept) > (self._max_entries or math.inf):
            self._bytes -= self._kept.popitem(last=False)[1]
        return hit


def named(number: int, seed: int = 0) -> str:
    """Return a file name, as digests are: spread evenly over all shards."""
    return random.Random(f"{seed}/{number}").randbytes(32).hex()


def zipf(seed: int, keys: int, requests: int, skew: float) -> Iterator[tuple[str, int]]:
    """Draw names and sizes: the n-th most wanted is asked for in proportion to n to the power of -``skew``;
    sizes are log-uniform, and have nothing to do with how much a key is wanted.
    """
    rng = random.Random(seed)
    sums = list(itertools.accumulate(rank**-skew for rank in range(1, keys + 1)))
    names = [named(number, seed) for number in range(keys)]
    span = math.log(LARGEST / SMALLEST)
    sizes = [round(SMALLEST * math.exp(rng.random() * span)) for _ in range(keys)]
    for _ in range(requests):
        chosen = bisect.bisect(sums, rng.random() * sums[-1])
        yield names[chosen], sizes[chosen]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How eviction by groups of shards did beside a global LRU of the same size."""

    ours: float
    """Hit rate, 0 to 1, of the second half of the trace."""
    best: float
    """The global LRU's."""
    fullest: int
    """The most bytes that lay there after a request."""


def compare(
    limits: Limits, trace: Sequence[tuple[str, int]], *, programs: int = 1, disk: Disk | None = None
) -> Comparison:
    """Play one trace, its requests dealt out to several programs in turn."""
    disk = Disk() if disk is None else disk
    crew = [Program(disk, limits) for _ in range(programs)]
    best = GlobalLru(limits.max_bytes, limits.max_entries)
    hits = best_hits = fullest = 0
    start = len(trace) // 2
    for number, (name, size) in enumerate(trace):
        disk.now += 1.0
        hit = crew[number % programs].wants(name, size)
        if not hit:
            fullest = max(fullest, disk.bytes())
        other = best.wants(name, size)
        if number >= start:
            hits, best_hits = hits + hit, best_hits + other
    total = len(trace) - start
    return Comparison(hits / total, best_hits / total, fullest)
