"""Verifying: every file of a directory is read whole, checked, and (if asked) removed when it is no good.

A move per batch of files, so that who drives them can stop in between; one file is in memory at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
    """A `VerifyReport` in the making."""

    artifacts: int = 0
    size: int = 0
    marks: int = 0
    failures: int = 0
    corrupt: int = 0
    later: int = 0
    unreadable: int = 0
    untrusted: int = 0
    repaired: int = 0
    faults: list[tuple[str, str]] = field(default_factory=list)

    def report(self) -> VerifyReport:
        """Return what was found so far."""
        return VerifyReport(
            artifacts=self.artifacts,
            size=self.size,
            marks=self.marks,
            failures=self.failures,
            corrupt=self.corrupt,
            later=self.later,
            unreadable=self.unreadable,
            untrusted=self.untrusted,
            repaired=self.repaired,
            faults=tuple(self.faults),
        )

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
        if isinstance(found, Item):
            count(findings, found)
        elif found is not None:
            why = yield from amiss(layout, paths, path, found, findings, repair=repair)
            if why is not None:
                findings.fault(path, why)


def judge(layout: Layout, path: str, name: str, *, failure: bool) -> Steps[Item | Unreadable | None]:
    """Read and check one file; one that describes another key than its name is corrupt.

    :param failure: whether its name is that of a failure.
    """
    found = yield from examine(layout, path, name)
    if not isinstance(found, Item) or not found.believed:
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


def count(findings: Findings, item: Item) -> None:
    """Count a file that is whole."""
    kind = item.entry.kind
    if not item.believed:
        findings.untrusted += 1
    elif kind is Kind.ARTIFACT:
        findings.artifacts += 1
        findings.size += item.entry.size
    elif kind is Kind.CHEAP:
        findings.marks += 1
    else:
        findings.failures += 1


def amiss(
    layout: Layout, paths: Paths, path: str, found: Unreadable, findings: Findings, *, repair: bool
) -> Steps[str | None]:
    """Count a file that is no good, and remove it if it is corrupt and still the same; returns why."""
    if found.fault == "later":
        findings.later += 1
        return None
    if found.fault == "unreadable":
        findings.unreadable += 1
        return found.why

    def is_bad(there: str) -> Steps[bool]:
        again = yield from judge(layout, there, found.name, failure=path.endswith(".err"))
        return isinstance(again, Unreadable) and again.fault == "corrupt"

    findings.corrupt += 1
    if repair:
        try:
            if (yield from remove_if(layout, paths, path, is_bad)):
                findings.repaired += 1
            else:
                findings.corrupt -= 1  # somebody replaced it meanwhile
                return None
        except OSError as error:
            return f"{found.why}; it cannot be removed: {error.strerror or error}"
    return found.why
