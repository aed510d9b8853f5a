"""What lies in a directory, for people: every entry and failure with its owner, and what is no good and why.

Lookups need none of this: they read one file each, and pass over what is bad.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from acache import _policy
from acache._format import FormatError, UnknownVersionError, decode_entry
from acache._store import ENTRY_LIMIT, GONE, ODD, again_if_stale, read_header

if TYPE_CHECKING:
    from acache._format import Entry
    from acache._fs import File, Steps
    from acache._store import Layout

__all__ = ["Fault", "Item", "Unreadable", "examine", "take_stock"]

Fault: TypeAlias = Literal["corrupt", "later", "unreadable", "untrusted"]
"""It does not pass its own check; it is of a later format; the disk, or its permissions, say no; it was not
even read, for it belongs to somebody whom ``trust`` does not cover."""


@dataclass(frozen=True, slots=True)
class Item:
    """A file that is an entry of this version, as far as it was read."""

    path: str
    name: str
    """64 hex digits: shard and stem."""
    entry: Entry
    used: float
    """Its mtime."""
    owner: int
    believed: bool
    """Whether ``trust`` covers its owner: if not, it is a miss for every lookup."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that has an entry's name, and is none."""

    path: str
    name: str
    fault: Fault
    why: str


def take_stock(
    layout: Layout, shard: str, suffixes: tuple[str, ...] = (".art", ".err")
) -> Steps[tuple[list[Item], list[Unreadable]]]:
    """Read the headers of all that lies in one shard; what vanishes meanwhile is left out.

    :raises OSError: the shard is there, and cannot be listed.
    """
    folder = f"{layout.base}/{shard}"
    items: list[Item] = []
    faults: list[Unreadable] = []
    try:
        names: list[str] = yield ("listdir", folder)
    except OSError as error:
        if error.errno in GONE:
            return items, faults
        raise
    for file_name in sorted(names):
        stem, dot, suffix = file_name.partition(".")
        if dot + suffix not in suffixes or not _policy.is_name(shard + stem):
            continue
        path, name = f"{folder}/{file_name}", shard + stem
        try:
            file, entry = yield from read_header(path)
        except (OSError, FormatError) as error:
            if (fault := _fault(path, name, error)) is not None:
                faults.append(fault)
        else:
            items.append(Item(path, name, entry, file.mtime, file.uid, layout.trust.believes(file)))
    return items, faults


def examine(
    layout: Layout, path: str, name: str, *, strangers: bool = True
) -> Steps[Item | Unreadable | None]:
    """Read a whole file and check all of it; None: it is not there.

    :param strangers: False: the owner is judged first, and nothing is read of what is not believed.

    One whose parts are bad while its header is good is `Unreadable` as well: `read_header` still reads that.
    """
    try:
        covers = None if strangers else layout.trust.covers
        file: File = yield from again_if_stale("read", path, ENTRY_LIMIT, covers)
        if not strangers and not layout.trust.believes(file):
            return Unreadable(path, name, "untrusted", f"it belongs to user {file.uid}")
        entry = decode_entry(file.data, key=None, namespace=None)
    except (OSError, FormatError) as error:
        return _fault(path, name, error)
    return Item(path, name, entry, file.mtime, file.uid, layout.trust.believes(file))


def _fault(path: str, name: str, error: OSError | FormatError) -> Unreadable | None:
    if isinstance(error, UnknownVersionError):
        return Unreadable(path, name, "later", str(error))
    if isinstance(error, FormatError):
        return Unreadable(path, name, "corrupt", str(error))
    if error.errno in GONE:
        return None
    why = error.strerror or str(error)
    return Unreadable(path, name, "corrupt" if error.errno in ODD else "unreadable", why)
