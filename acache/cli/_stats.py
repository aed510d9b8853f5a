"""What all processes counted, from the records that they left; as one JSON object, or as tables."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from acache._tally import HITS, SAVED
from acache.cli._text import ago, amount, duration, one_line, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from acache._ledger import Ledger
    from acache._store import Layout

__all__ = ["as_json", "show"]

_ELSEWHERE = SAVED[1:]
"""A hit in memory saves a look at the disk: a program that kept its result would not have compiled again."""


def saved_of(row: Mapping[str, float]) -> float:
    """Return the seconds of compiling that hits on disk, of peers and remote made needless."""
    return sum(row.get(name, 0) for name in _ELSEWHERE)


def as_json(ledger: Ledger, layout: Layout) -> dict[str, Any]:
    """Return all of it as one JSON object; times in seconds."""
    tally = ledger.tally
    return {
        "directory": layout.root,
        "processes": tally.processes,
        "first": tally.first if tally.processes else None,
        "last": tally.last if tally.processes else None,
        "totals": _row(tally.totals()),
        "labels": [
            {"label": label, "rest": rest, **_row(row)} for (label, rest), row in _ordered(tally.by_label())
        ],
        "compilers": [{"compiler": name, **_row(row)} for name, row in _ordered(tally.by_compiler())],
        "records": {
            "read": ledger.records,
            "corrupt": ledger.corrupt,
            "untrusted": ledger.untrusted,
            "later": ledger.later,
        },
    }


def _row(row: Mapping[str, float]) -> dict[str, Any]:
    return {
        "hits": {name.removesuffix("_hits"): int(row.get(name, 0)) for name in HITS},
        "misses": int(row.get("misses", 0)),
        "launches": int(row.get("compiles", 0)),
        "failures": int(row.get("compile_failures", 0)),
        "compile_seconds": row.get("compile_seconds", 0.0),
        "wait_seconds": row.get("wait_seconds", 0.0),
        "saved_seconds": {name.removesuffix("_saved"): row.get(name, 0.0) for name in SAVED},
    }


def _ordered(groups: Mapping[Any, Mapping[str, float]]) -> list[tuple[Any, Mapping[str, float]]]:
    """What saved most first, then what cost most."""
    return sorted(
        groups.items(),
        key=lambda item: (saved_of(item[1]), item[1].get("compile_seconds", 0), str(item[0])),
        reverse=True,
    )


# --- for people -----------------------------------------------------------------------------------


def show(ledger: Ledger, layout: Layout, limit: int) -> None:
    """Print totals, then tables by label (at most ``limit`` of them) and by compiler."""
    console = Console()
    for line in _passed_over(ledger):
        console.print(Text(line), soft_wrap=True)
    if not ledger.records:
        console.print(Text(plain(_nothing(layout))), soft_wrap=True)
        return
    tally, totals = ledger.tally, ledger.tally.totals()
    now = time.time()
    since, until = ago(now - tally.first), ago(now - tally.last)
    who = amount(tally.processes, "closed cache")
    console.print(
        Text(plain(f"{who} in {layout.root}, the first opened {since} ago, the last closed {until} ago")),
        soft_wrap=True,
    )
    console.print(Text(_summary(totals)), soft_wrap=True)
    labels = _ordered(tally.by_label())
    rows = [(_label(label, rest), row) for (label, rest), row in labels[:limit]]
    console.print()
    console.print(_table("label", rows))
    if len(labels) > limit:
        console.print(Text(f"and {amount(len(labels) - limit, 'more label', 'more labels')}: --limit"))
    compilers = [("-" if name is None else one_line(name, 60), row) for name, row in _compilers(ledger)]
    console.print()
    console.print(_table("compiler", compilers))


class _Column(NamedTuple):
    heading: str
    value: Callable[[Mapping[str, float]], float]
    shown: Callable[[float], str]
    seldom: bool = False


def _count(heading: str, counter: str, *, seldom: bool = False) -> _Column:
    return _Column(heading, lambda row: row.get(counter, 0), lambda count: str(int(count)), seldom)


def _time(heading: str, counter: str, *, seldom: bool = False) -> _Column:
    return _Column(heading, lambda row: row.get(counter, 0.0), duration, seldom)


_COLUMNS = (
    *(_count(name.removesuffix("_hits"), name, seldom=name == "remote_hits") for name in HITS),
    _count("launches", "compiles"),
    _count("failed", "compile_failures", seldom=True),
    _time("compiling", "compile_seconds"),
    _time("waiting", "wait_seconds", seldom=True),
    _Column("saved", saved_of, duration),
)


def _compilers(ledger: Ledger) -> list[tuple[str | None, Mapping[str, float]]]:
    return _ordered(ledger.tally.by_compiler())


def _label(label: str | None, rest: bool) -> str:
    if rest:
        return "(all other labels)"
    return "-" if label is None else one_line(label, 60)


def _summary(totals: Mapping[str, float]) -> str:
    launches = int(totals.get("compiles", 0))
    elsewhere = int(sum(totals.get(name, 0) for name in HITS[1:]))
    rate = f" ({100 * elsewhere / (elsewhere + launches):.0f} %)" if elsewhere + launches else ""
    return (
        f"{amount(elsewhere, 'hit')}{rate} on disk, of peers or remote saved"
        f" {duration(saved_of(totals))} of compiling; {amount(launches, 'launch', 'launches')}"
        f" took {duration(totals.get('compile_seconds', 0.0))}"
    )


def _table(heading: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> Table:
    """Lay out a row each. What seldom happens has a column only where it did: terminals are narrow."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(heading, overflow="fold", min_width=len(heading))
    columns = [
        column for column in _COLUMNS if not column.seldom or any(column.value(row) for _, row in rows)
    ]
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for name, row in rows:
        cells = [column.shown(column.value(row)) for column in columns]
        table.add_row(*map(Text, [name, *cells]))
    return table


def _nothing(layout: Layout) -> str:
    empty = f"No records in {layout.base}/stats: each process leaves one when it closes its Cache"
    if layout.network:
        return f"{empty}, but not on a network mount, which this is, unless ACACHE_RECORD_STATS is 1."
    return f"{empty} (unless ACACHE_RECORD_STATS is 0)."


def _passed_over(ledger: Ledger) -> Iterable[str]:
    for count, what in (
        (ledger.corrupt, "not readable, or with a failed check"),
        (ledger.untrusted, "of owners whom ACACHE_TRUST does not cover"),
        (ledger.later, "of a later format"),
    ):
        if count:
            yield f"{amount(count, 'record')} passed over: {what}"
