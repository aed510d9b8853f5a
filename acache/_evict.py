"""Eviction: after a publication, the group of shards that was written is brought down to its budget.

A move, as in `_store`, that runs in the same trip to a thread as the publication. What it decides by is in
`_capacity`. A fault in here never fails the publication: it is returned, to be told.
"""

from __future__ import annotations

import enum
import json
import threading
from dataclasses import dataclass, field
from errno import EEXIST
from typing import TYPE_CHECKING, TypeVar

from acache._capacity import SIZES, Account, Limits, Row, group_of, shard_in, shards_per_group, share_of
from acache._format import FormatError, UnknownVersionError, header_span
from acache._policy import SHARDS
from acache._store import GONE, Paths, publish, unlink_quietly, write_temporary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from acache._fs import File, Steps
    from acache._store import Layout

__all__ = ["Capacity", "Room", "evict", "survey", "within"]

T = TypeVar("T")

COUNTED = (".art", ".err")
"""Entries, cheap marks and remembered failures take room; leases and temporaries are gone soon."""
NAME_LENGTH = 62 + len(".art")
JUST_WRITTEN = 60.0
"""Seconds for which an entry with a lease beside it is somebody's result on its way to those who wait."""
LAYOUT_FORMAT = 1
LAYOUT_LIMIT = 4096


@dataclass(slots=True)
class Room:
    """What was evicted: artifacts and marks, the bytes of all files, and the first fault that was met."""

    entries: int = 0
    bytes: int = 0
    fault: OSError | None = None


@dataclass(slots=True)
class Capacity:
    """The limits of one directory, and what this process knows of how full it is."""

    limits: Limits
    count: int | None = None
    """Shards per group; None: the directory was not asked yet."""
    accounts: dict[str, Account] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def account(self, group: tuple[str, ...]) -> Account:
        """Return the account of a group: one for all threads."""
        with self._lock:
            return self.accounts.setdefault(group[0], Account())


def within(capacity: Capacity, layout: Layout, paths: Paths, steps: Steps[T]) -> Steps[tuple[T, Room]]:
    """Run a move that publishes in one shard, then evict what has no room beside it."""
    before: int | None
    try:
        (before,) = yield ("stamps", (paths.folder,))
    except OSError:
        before = None
    result = yield from steps
    room = Room()
    try:
        yield from make_room(capacity, layout, paths, before, room)
    except OSError as error:
        room.fault = room.fault or error
    return result, room


def make_room(
    capacity: Capacity, layout: Layout, paths: Paths, before: int | None, room: Room
) -> Steps[None]:
    """Bring the group of the shard that was just written down to its budget.

    :param before: that shard's stamp before it was written.
    """
    if capacity.count is None:
        capacity.count = yield from grouping(layout, capacity.limits)
    count, shard = capacity.count, shard_in(paths.folder.removeprefix(f"{layout.base}/"))
    group = group_of(shard, count)
    account = capacity.account(group)
    own = yield from written(layout, paths)
    yield from catch_up(account, layout, group, shard, before, own, room)
    spare = {row.path for row in own}
    now = max((row.used for row in own), default=0.0)
    changed: set[str] = {shard}
    share = share_of(capacity.limits, count)
    while (row := account.victim(share, spare)) is not None:
        try:
            present = yield from evict(layout, row, now)
        except OSError as error:
            room.fault = room.fault or error  # nobody here may evict it, so it is out of the account
            continue
        if present is None:
            changed.add(shard_in(row.path))
            room.bytes += row.size
            room.entries += row.path.endswith(".art")
        elif present.size:
            account.note(present)
            if present == row:
                spare.add(row.path)
    yield from restamp(account, layout, changed)


def written(layout: Layout, paths: Paths) -> Steps[list[Row]]:
    """Return what stands there now of the key that was just written."""
    rows = []
    for path in (paths.art, paths.err):
        try:
            file: File = yield ("head", path, 0)
        except OSError:
            continue
        rows.append(Row(path.removeprefix(f"{layout.base}/"), file.size, file.mtime))
    return rows


def catch_up(
    account: Account,
    layout: Layout,
    group: tuple[str, ...],
    shard: str,
    before: int | None,
    own: list[Row],
    room: Room,
) -> Steps[None]:
    """Read those shards again in which others have been since they were last read."""
    known = account.stamps
    stamps: list[int | None] = yield ("stamps", [f"{layout.base}/{each}" for each in group])
    now = dict(zip(group, stamps, strict=True))
    seen = now | {shard: before}
    if not account.shared and any(each in known and known[each] != seen[each] for each in group):
        account.shared = True  # and what changed in the moments between two looks is not known either
        known.clear()
    for each in group:
        if each in known and known[each] == seen[each] and not (each == shard and account.shared):
            continue
        try:
            account.replace(each, [] if now[each] is None else (yield from survey(layout, each)))
        except OSError as error:
            room.fault = room.fault or error
        known[each] = now[each]
    for row in own:
        account.note(row)


def restamp(account: Account, layout: Layout, changed: Iterable[str]) -> Steps[None]:
    """Remember the shards as they are after our own changes, or read them again next time."""
    shards = sorted(changed)
    if account.shared:
        for shard in shards:
            account.stamps.pop(shard, None)
        return
    stamps: list[int | None] = yield ("stamps", [f"{layout.base}/{shard}" for shard in shards])
    account.stamps.update(zip(shards, stamps, strict=True))


def survey(layout: Layout, shard: str) -> Steps[list[Row]]:
    """Return the files of one shard that count.

    :raises OSError: it is there, and cannot be read.
    """
    try:
        found: list[tuple[str, int, float]] = yield ("survey", f"{layout.base}/{shard}")
    except OSError as error:
        if error.errno in GONE:
            return []
        raise
    return [
        Row(f"{shard}/{name}", size, used)
        for name, size, used in found
        if name.endswith(COUNTED) and len(name) == NAME_LENGTH
    ]


def evict(layout: Layout, row: Row, now: float) -> Steps[Row | None]:
    """Unlink one file, unless it was used meanwhile, or is on its way to those who wait for it.

    :param now: the file system's time, in seconds.
    :returns: None when it was evicted; else the row as it is now, with a size of 0 when there is no such
        file any more, or it is of a later format, which an older program never deletes.
    :raises OSError: it cannot be unlinked.
    """
    path, nothing = f"{layout.base}/{row.path}", Row(row.path, 0, row.used)
    try:
        file: File = yield ("head", path, 64)
        try:
            header_span(bytes(file.data))
        except UnknownVersionError:
            return nothing
        except FormatError:
            pass  # a bad entry takes room as well
        if file.mtime != row.used:
            return Row(row.path, file.size, file.mtime)
        if abs(now - row.used) < JUST_WRITTEN and (yield ("exists", path.rpartition(".")[0] + ".lease")):
            return row
        yield ("unlink", path)
    except OSError as error:
        if error.errno in GONE:
            return nothing
        raise
    return None


# --- what all processes agree on -----------------------------------------------------------------


def grouping(layout: Layout, limits: Limits) -> Steps[int]:
    """Return how many shards share a budget here: what ``layout.json`` says, or more where my limits need it.

    Groupings nest, so a coarser one is as good for those who asked for a finer one, and they learn of it when
    they start. A file that is missing, silent about it or damaged is written; one of a later format, or of
    somebody who is not believed, is left alone. Nothing about it is ever an error: then each goes by their
    own limits.
    """
    own = shards_per_group(limits)
    path = f"{layout.base}/layout.json"
    try:
        agreed = yield from agreement(layout, path)
        if agreed is Agreed.NOTHING:
            yield from say_first(layout, path, own)
            agreed = yield from agreement(layout, path)
        if agreed is Agreed.SILENCE or (isinstance(agreed, int) and agreed < own):
            yield from publish(layout, Paths(layout.base, ""), path, (encode_layout(own),))
    except OSError:
        return own
    return max(agreed, own) if isinstance(agreed, int) else own


class Agreed(enum.Enum):
    """What a layout file is that gives no number."""

    NOTHING = "there is none"
    SILENCE = "it says nothing about groups, or is damaged"
    OTHERS = "it is of a later format, or of a stranger"


def agreement(layout: Layout, path: str) -> Steps[int | Agreed]:
    """Read the layout file.

    :raises OSError: the disk, or its permissions, say no.
    """
    try:
        file: File = yield ("read", path, LAYOUT_LIMIT)
    except OSError as error:
        if error.errno in GONE:
            return Agreed.NOTHING
        raise
    if not layout.trust.believes(file):
        return Agreed.OTHERS
    try:
        text = json.loads(bytes(file.data))
        version, shards, count = text["format"], text["shards"], text.get("shards_per_group")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Agreed.SILENCE
    if (version, shards) != (LAYOUT_FORMAT, len(SHARDS)):
        return Agreed.OTHERS
    return count if type(count) is int and count in SIZES else Agreed.SILENCE


def say_first(layout: Layout, path: str, count: int) -> Steps[None]:
    """Write the layout file unless somebody has: the first one counts.

    :raises OSError: it cannot be written.
    """
    temporary = yield from write_temporary(layout, Paths(layout.base, ""), (encode_layout(count),))
    try:
        yield ("link", temporary, path)
    except OSError as error:
        if error.errno != EEXIST:
            yield ("rename", temporary, path)  # no links here: the last one counts
    yield from unlink_quietly(temporary)


def encode_layout(count: int) -> bytes:
    """Return the layout file's content."""
    content = {"format": LAYOUT_FORMAT, "shards": len(SHARDS), "shards_per_group": count}
    return json.dumps(content).encode() + b"\n"
