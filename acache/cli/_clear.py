"""Removes what is cached under a namespace: first counted, then removed file by file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from acache import _store
from acache._format import Kind
from acache._fs import OsFileSystem, perform
from acache._inventory import Item
from acache.cli._entries import survey

if TYPE_CHECKING:
    from acache._fs import FileSystem
    from acache._store import Layout
    from acache.cli._entries import Scope

__all__ = ["Cleared", "clear", "plan"]


@dataclass(slots=True)
class Cleared:
    """What went, or would go."""

    artifacts: int = 0
    size: int = 0
    """Bytes of these artifacts."""
    marks: int = 0
    """Marks that results are too cheap to be kept, or could not be."""
    failures: int = 0
    untrusted: int = 0
    """Files of owners whom ``trust`` does not cover: left in place."""
    refused: int = 0
    """Files that could not be removed."""
    why: str | None = None
    """Why the first of these could not."""
    paths: list[tuple[str, Kind, int]] = field(default_factory=list)
    """What is to go: path, kind and size."""

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        found = asdict(self)
        del found["paths"]
        return found

    @property
    def any(self) -> bool:
        """Whether there is anything to remove."""
        return bool(self.artifacts or self.marks or self.failures)

    def add(self, kind: Kind, size: int) -> None:
        """Count one file."""
        self.artifacts += kind is Kind.ARTIFACT
        self.size += size if kind is Kind.ARTIFACT else 0
        self.marks += kind is Kind.CHEAP
        self.failures += kind is Kind.FAILURE


def plan(layout: Layout, scope: Scope, fs: FileSystem | None = None) -> Cleared:
    """Find out what there is to remove. Blocks; only reads.

    :raises OSError: the directory is there and cannot be listed.
    """
    found = Cleared()
    for item in survey(layout, fs):
        if isinstance(item, Item) and scope.has(item.entry.header.get("namespace")):
            if item.believed:
                found.add(item.entry.kind, item.entry.size)
                found.paths.append((item.path, item.entry.kind, item.entry.size))
            else:
                found.untrusted += 1
    return found


def clear(planned: Cleared, fs: FileSystem | None = None) -> Cleared:
    """Remove what was planned, and say what went; what is gone already counts as removed. Blocks."""
    fs = OsFileSystem() if fs is None else fs
    done = Cleared(untrusted=planned.untrusted)
    for path, kind, size in planned.paths:
        try:
            perform(_store.remove(path), fs)
        except OSError as error:
            done.refused += 1
            done.why = done.why or f"{path}: {error.strerror or error}"
        else:
            done.add(kind, size)
    return done
