"""Which entry a person means: by a key, a file's name, or the beginning of one. Only reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from acache._format import Kind
from acache._fs import OsFileSystem, perform
from acache._inventory import Item, Unreadable, examine
from acache._keys import Key, name_of
from acache.cli._entries import survey

if TYPE_CHECKING:
    from acache._fs import FileSystem
    from acache._store import Layout
    from acache.cli._entries import Scope

__all__ = ["Found", "Match", "find", "inspect", "is_hex"]

DIGITS = 64


@dataclass(frozen=True, slots=True)
class Match:
    """One name that fits; what its header says, where that is known."""

    name: str
    key: str | None = None
    namespace: str | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """All that lies under one name, read whole and checked."""

    name: str
    entry: Item | Unreadable | None
    """The artifact or the cheap mark, or why it is neither."""
    failure: Item | Unreadable | None

    @property
    def any(self) -> Item | None:
        """The entry, else the failure: whose header says what this is about."""
        for each in (self.entry, self.failure):
            if isinstance(each, Item):
                return each
        return None


def is_hex(text: str) -> bool:
    """Whether a text may be a key, a name, or the beginning of one."""
    return 0 < len(text) <= DIGITS and not set(text) - set("0123456789abcdef")


def find(layout: Layout, text: str, scope: Scope, fs: FileSystem | None = None) -> list[Match]:
    """Return what a key, a name or the beginning of one may mean, in order of names. Blocks.

    A whole key or name is looked up; for a part, and for a key of an unknown namespace, all headers are read.

    :raises OSError: the directory is there and cannot be listed.
    """
    fs = OsFileSystem() if fs is None else fs
    if len(text) == DIGITS:
        for name in dict.fromkeys((text, name_of(Key.from_hex(text), scope.namespace))):
            if match := _match(inspect(layout, name, fs), scope):
                return [match]
    matches: dict[str, Match] = {}
    for found in survey(layout, fs):
        if isinstance(found, Unreadable):
            if len(found.name) == DIGITS and found.name.startswith(text):
                matches.setdefault(found.name, Match(found.name))
            continue
        match = _described(found)
        fits = found.name.startswith(text) or (match.key or "").startswith(text)
        if fits and found.entry.kind is not Kind.CHEAP and scope.has(match.namespace):
            matches[found.name] = match
    return [matches[name] for name in sorted(matches)]


def inspect(layout: Layout, name: str, fs: FileSystem | None = None) -> Found:
    """Read and check all that lies under a name."""
    fs = OsFileSystem() if fs is None else fs
    paths = layout.paths(name)
    return Found(
        name,
        perform(examine(layout, paths.art, name), fs),
        perform(examine(layout, paths.err, name), fs),
    )


def _match(found: Found, scope: Scope) -> Match | None:
    if found.any is not None:
        match = _described(found.any)
        return match if scope.has(match.namespace) else None
    return Match(found.name) if found.entry or found.failure else None


def _described(item: Item) -> Match:
    header = item.entry.header
    namespace = header.get("namespace")
    return Match(
        item.name, str(header["key"]), namespace if isinstance(namespace, str) else None, item.entry.label
    )
