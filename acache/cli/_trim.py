"""Trims a directory, file by file: first planned, then carried out."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from acache import _store, _trim
from acache._evict import survey
from acache._fs import OsFileSystem, perform
from acache._models import TrimReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from acache._capacity import Row
    from acache._fs import FileSystem
    from acache._store import Layout

__all__ = ["Plan", "as_json", "carry_out", "plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to go, and what the report says as long as it has not."""

    layout: Layout
    chosen: Sequence[Row]
    now: float
    report: TrimReport
    why: str | None


def plan(
    layout: Layout,
    *,
    max_bytes: int,
    max_entries: int | None,
    max_age: float | None,
    fs: FileSystem | None = None,
) -> Plan:
    """Find out what has to go, by this machine's clock. Blocks; only reads.

    :raises OSError: the directory is there and cannot be listed.
    """
    fs = OsFileSystem() if fs is None else fs
    rows: list[Row] = []
    refused, why, now = 0, None, time.time()
    for shard in perform(_store.list_shards(layout), fs):
        try:
            rows += perform(survey(layout, shard), fs)
        except OSError as error:
            refused += 1
            why = why or _reason(error)
    chosen = _trim.choose(rows, max_bytes=max_bytes, max_entries=max_entries, max_age=max_age, now=now)
    size, gone = (sum(row.size for row in some) for some in (rows, chosen))
    report = TrimReport(len(rows), size, len(chosen), gone, refused=refused, dry_run=True)
    return Plan(layout, chosen, now, report, why)


def carry_out(planned: Plan, fs: FileSystem | None = None) -> tuple[TrimReport, str | None]:
    """Remove what was planned; returns what went, and why the first that could not go did not. Blocks."""
    fs = OsFileSystem() if fs is None else fs
    done = _trim.Batch()
    for batch in _trim.batches(planned.chosen):
        done.add(perform(_trim.remove(planned.layout, batch, planned.now), fs))
    why = planned.why or (_reason(done.fault) if done.fault else None)
    report = replace(
        planned.report,
        evicted=done.files,
        evicted_size=done.size,
        refused=planned.report.refused + done.refused,
        spared=done.spared,
        dry_run=False,
    )
    return report, why


def as_json(report: TrimReport) -> dict[str, Any]:
    """Return a report as a JSON object."""
    return {**asdict(report), "kept": report.kept, "kept_size": report.kept_size}


def _reason(error: OSError) -> str:
    return f"{error.filename}: {error.strerror or error}"
