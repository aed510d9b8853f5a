"""Trimming: a whole directory is brought down to a size and an age, least recently used first.

Moves of bounded length: one per shard to see what is there, one per batch of victims, so that who drives
them can stop in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from acache._evict import evict
from acache._store import Paths, file_clock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from acache._capacity import Row
    from acache._fs import Steps
    from acache._store import Layout

__all__ = ["BATCH", "Batch", "batches", "choose", "clock", "remove"]

BATCH = 64
"""Files that are removed in one move."""


def clock(layout: Layout) -> Steps[float | None]:
    """Return the file system's own time in seconds; None: nothing can be written there, nor removed."""
    return (yield from file_clock(Paths(layout.base, "")))


def choose(
    rows: Sequence[Row],
    *,
    max_bytes: int | None,
    max_entries: int | None = None,
    max_age: float | None = None,
    now: float | None = None,
) -> list[Row]:
    """Return what has to go, least recently used first; ties are broken by name.

    :param now: the file system's time; what ``max_age`` is counted from.
    """
    size, count = sum(row.size for row in rows), len(rows)
    chosen = []
    for row in sorted(rows, key=lambda row: (row.used, row.path)):
        old = max_age is not None and now is not None and now - row.used > max_age
        large = max_bytes is not None and size > max_bytes
        many = max_entries is not None and count > max_entries
        if not (old or large or many):
            break  # what follows was used later
        chosen.append(row)
        size, count = size - row.size, count - 1
    return chosen


@dataclass(slots=True)
class Batch:
    """What became of one batch of victims."""

    files: int = 0
    entries: int = 0
    size: int = 0
    spared: int = 0
    refused: int = 0
    fault: OSError | None = None

    def add(self, more: Batch) -> None:
        """Add what became of another batch."""
        self.files += more.files
        self.entries += more.entries
        self.size += more.size
        self.spared += more.spared
        self.refused += more.refused
        self.fault = self.fault or more.fault


def batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Cut victims into pieces of one move each."""
    return (rows[start : start + BATCH] for start in range(0, len(rows), BATCH))


def remove(layout: Layout, rows: Sequence[Row], now: float) -> Steps[Batch]:
    """Evict a batch; what cannot be removed is counted, and its first fault returned."""
    done = Batch()
    for row in rows:
        try:
            present = yield from evict(layout, row, now)
        except OSError as error:
            done.refused += 1
            done.fault = done.fault or error
            continue
        if present is None:
            done.files += 1
            done.entries += row.path.endswith(".art")
            done.size += row.size
        else:
            done.spared += 1
    return done
