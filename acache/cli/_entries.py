"""Entries and remembered failures of a cache directory, as ``ls``, ``show`` and ``clear`` need them."""

from __future__ import annotations

import heapq
import math
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from acache import _store
from acache._describe import entry_info
from acache._format import Kind
from acache._fs import OsFileSystem, perform
from acache._inventory import Unreadable, take_stock
from acache._store import Listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from acache._fs import FileSystem
    from acache._inventory import Fault, Item
    from acache._store import Layout

__all__ = ["SORTS", "Failure", "Listing", "Row", "Scope", "failure_of", "gather", "row_of", "survey"]


@dataclass(frozen=True, slots=True)
class Scope:
    """Which namespaces are meant."""

    namespace: str | None = None
    all: bool = False

    def has(self, namespace: object) -> bool:
        """Whether an entry of that namespace is meant."""
        return self.all or namespace == self.namespace

    def __str__(self) -> str:
        if self.all:
            return "all namespaces"
        return "no namespace" if self.namespace is None else f"namespace {self.namespace!r}"


@dataclass(frozen=True, slots=True)
class Row:
    """One artifact; sizes in bytes, times in seconds."""

    key: str
    name: str
    """64 hex digits, the name of its file: a digest of namespace and key."""
    namespace: str | None
    label: str | None
    compiler: str | None
    size: int
    compile_seconds: float
    created: float
    """Wall clock of its publisher."""
    used: float
    """When it was last written or, within ``recency_grain``, read."""
    owner: int
    trusted: bool
    """Whether ``trust`` covers its owner; if not, it is a miss for every lookup."""

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure that was left for others; times in seconds."""

    key: str
    name: str
    namespace: str | None
    label: str | None
    reason: str
    summary: str
    text: str
    """The compiler's own words."""
    exit_status: int | None
    signal: int | None
    deterministic: bool
    """Only such a failure is remembered, for ``failure_ttl``; others are for who waited."""
    compile_seconds: float
    written: float
    owner: int
    trusted: bool

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)


# What `--sort` takes, as (what rows are ordered by, whether the largest comes first).
SORTS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "used": (lambda row: row.used, True),
    "age": (lambda row: row.created, True),
    "size": (lambda row: row.size, True),
    "seconds": (lambda row: row.compile_seconds, True),
    "label": (lambda row: (row.label is None, row.label or ""), False),
    "compiler": (lambda row: (row.compiler is None, row.compiler or ""), False),
    "namespace": (lambda row: (row.namespace is not None, row.namespace or ""), False),
    "key": (lambda row: row.key, False),
}


@dataclass(slots=True)
class Listing:
    """What was found: the rows that were asked for, and what there is besides."""

    rows: list[Row] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    entries: int = 0
    """All artifacts in scope, also those that a limit left out of ``rows``."""
    size: int = 0
    compile_seconds: float = 0.0
    untrusted: int = 0
    elsewhere: Counter[str | None] = field(default_factory=Counter)
    """Artifacts in namespaces out of scope."""
    faults: Counter[Fault] = field(default_factory=Counter)
    exists: bool = True
    """Whether there is a cache in the directory at all."""


def survey(layout: Layout, fs: FileSystem | None = None) -> Iterator[Item | Unreadable]:
    """Yield all that lies in the directory, shard by shard. Blocks; only reads.

    :raises OSError: the directory is there and cannot be listed.
    """
    fs = OsFileSystem() if fs is None else fs
    for shard in perform(_store.list_shards(layout), fs):
        try:
            items, faults = perform(take_stock(layout, shard), fs)
        except OSError as error:
            yield Unreadable(f"{layout.base}/{shard}", shard, "unreadable", error.strerror or str(error))
        else:
            yield from items
            yield from faults


def gather(
    layout: Layout,
    scope: Scope,
    *,
    sort: str = "used",
    reverse: bool = False,
    limit: int | None = None,
    fs: FileSystem | None = None,
) -> Listing:
    """List what is in scope; with a limit, memory is bounded by it.

    :raises OSError: the directory is there and cannot be listed.
    """
    listing = Listing(exists=os.path.isdir(layout.base))
    order, largest_first = SORTS[sort]

    def rows() -> Iterator[Row]:
        for found in survey(layout, fs):
            if isinstance(found, Unreadable):
                listing.faults[found.fault] += 1
            elif found.entry.kind is Kind.FAILURE:
                failure = failure_of(found)
                if scope.has(failure.namespace):
                    listing.failures.append(failure)
            elif found.entry.kind is Kind.ARTIFACT:
                row = row_of(found)
                if row is None:
                    listing.faults["corrupt"] += 1
                elif not scope.has(row.namespace):
                    listing.elsewhere[row.namespace] += 1
                else:
                    listing.entries += 1
                    listing.size += row.size
                    listing.compile_seconds += row.compile_seconds
                    listing.untrusted += not row.trusted
                    yield row

    if limit is None:
        listing.rows = sorted(rows(), key=order, reverse=largest_first != reverse)
    else:
        best = heapq.nlargest if largest_first != reverse else heapq.nsmallest
        listing.rows = best(limit, rows(), key=order)
    listing.failures.sort(key=lambda failure: failure.written, reverse=True)
    return listing


def row_of(item: Item) -> Row | None:
    """Return an artifact as a row; None for a header that makes no sense."""
    info = entry_info(Listed(item.path, item.entry, item.used))
    if info is None or not isinstance(info.namespace, str | None):
        return None
    return Row(
        key=info.key.hex,
        name=item.name,
        namespace=info.namespace,
        label=info.label,
        compiler=info.compiler,
        size=info.size,
        compile_seconds=_number(info.compile_seconds),
        created=_number(info.created),
        used=info.used,
        owner=item.owner,
        trusted=item.believed,
    )


def failure_of(item: Item) -> Failure:
    """Return a remembered failure; its header was checked when it was read."""
    failure = item.entry.failure
    namespace = item.entry.header.get("namespace")
    return Failure(
        key=str(item.entry.header["key"]),
        name=item.name,
        namespace=namespace if isinstance(namespace, str) else None,
        label=item.entry.label,
        reason=failure.reason,
        summary=failure.summary,
        text=failure.text,
        exit_status=failure.exit_status,
        signal=failure.signal,
        deterministic=failure.deterministic,
        compile_seconds=_number(failure.seconds),
        written=item.used,
        owner=item.owner,
        trusted=item.believed,
    )


def _number(value: object) -> float:
    """Return a time that can be shown and added: a header may hold anything that JSON can say."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return max(0.0, float(value)) if known else 0.0  # type: ignore[arg-type]  # it is a number then
