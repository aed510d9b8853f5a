"""Verifying: every file of a directory is read whole, checked, and (if asked) removed when it is no good.

A move per batch of files, so that who drives them can stop in between; one file is in memory at a time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from acache import _keys, _policy
from acache._format import Kind
from acache._inventory import Item, Unreadable, examine
from acache._models import VerifyReport
from acache._store import GONE, Paths, remove_if

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from acache._fs import Steps
    from acache._store import Layout

__all__ = ["BATCH", "Findings", "batches", "files", "verify"]

BATCH = 16
"""Files that are read in one move."""
TOLD = 100


@dataclass(slots=True)
class Findings:
    """A `VerifyReport` in the making: its numbers by name, and its faults."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[str, str]] = field(default_factory=list)

    def report(self) -> VerifyReport:
        """Return what was found so far."""
        numbers: dict[str, Any] = dict(self.counts)
        return VerifyReport(**numbers, faults=tuple(self.faults))

    def fault(self, path: str, why: str) -> None:
        """Keep the reason, if there are not too many."""
        if len(self.faults) < TOLD:
            self.faults.append((path, why))


def files(layout: Layout, shard: str) -> Steps[list[str]]:
    """Return the names of those files in one shard that entries and failures have.

    :raises OSError: it is there, and cannot be listed.
    """
    try:
        names: list[str] = yield ("listdir", f"{layout.base}/{shard}")
    except OSError as error:
        if error.errno in GONE:
            return []
        raise
    return sorted(
        name
        for name in names
        if name.endswith((".art", ".err")) and _policy.is_name(shard + name.rpartition(".")[0])
    )


def batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut files into pieces of one move each."""
    return (names[start : start + BATCH] for start in range(0, len(names), BATCH))


def verify(
    layout: Layout, shard: str, names: Sequence[str], findings: Findings, *, repair: bool
) -> Steps[None]:
    """Check some files of one shard, and count what they are; nothing is raised."""
    for file_name in names:
        stem = file_name.rpartition(".")[0]
        paths = Paths(f"{layout.base}/{shard}", stem)
        path = f"{paths.folder}/{file_name}"
        found = yield from judge(layout, path, shard + stem, failure=path.endswith(".err"))
        if repair and isinstance(found, Unreadable) and found.fault == "corrupt":
            found = yield from mend(layout, paths, path, found, findings)
        count(findings, path, found)
        del found  # and with it a whole file, before the next one is read


def judge(layout: Layout, path: str, name: str, *, failure: bool) -> Steps[Item | Unreadable | None]:
    """Read and check one file; one that describes another key than its name is corrupt.

    :param failure: whether its name is that of a failure.
    """
    found = yield from examine(layout, path, name, strangers=False)
    if not isinstance(found, Item):
        return found
    header = found.entry.header
    try:
        key = _keys.Key.from_hex(header["key"])
        own = _keys.name_of(key, header.get("namespace"))
    except (KeyError, TypeError, ValueError):
        return Unreadable(path, name, "corrupt", "it describes no key")
    if own != name or (found.entry.kind is Kind.FAILURE) != failure:
        return Unreadable(path, name, "corrupt", "it describes another key than its name")
    return found


def mend(
    layout: Layout, paths: Paths, path: str, found: Unreadable, findings: Findings
) -> Steps[Item | Unreadable | None]:
    """Remove a corrupt file if it is still one; returns what is there to be counted: it, as it was, or what
    somebody put in its place meanwhile.
    """
    last: Item | Unreadable | None = found

    def is_bad(there: str) -> Steps[bool]:
        nonlocal last
        last = yield from judge(layout, there, found.name, failure=path.endswith(".err"))
        return is_corrupt(last)

    try:
        if (yield from remove_if(layout, paths, path, is_bad)):
            findings.counts["repaired"] += 1
            return found
    except OSError as error:
        return replace(found, why=f"{found.why}; it cannot be removed: {error.strerror or error}")
    return None if is_corrupt(last) else last  # somebody was quicker


def is_corrupt(found: Item | Unreadable | None) -> bool:
    """Whether a repair would remove it."""
    return isinstance(found, Unreadable) and found.fault == "corrupt"


def count(findings: Findings, path: str, found: Item | Unreadable | None) -> None:
    """Count one file; nothing where there is none any more."""
    if isinstance(found, Unreadable):
        findings.counts[found.fault] += 1
        if found.fault in ("corrupt", "unreadable"):
            findings.fault(path, found.why)
    elif found is not None and found.entry.kind is Kind.ARTIFACT:
        findings.counts["artifacts"] += 1
        findings.counts["size"] += found.entry.size
    elif found is not None:
        findings.counts["marks" if found.entry.kind is Kind.CHEAP else "failures"] += 1
