"""What ``ls`` and ``clear`` print for people; text of strangers goes through `acache.cli._text` first."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from acache.cli._text import ago, amount, duration, one_line, plain, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from acache._inventory import Fault
    from acache.cli._entries import Failure, Listing, Row, Scope

__all__ = ["KEY_DIGITS", "passed_over", "remembered", "show_entries", "show_failures"]

KEY_DIGITS = 12
_FAULTS = {
    "corrupt": "does not pass its own check",
    "later": "is of a later format",
    "unreadable": "cannot be read",
}
_FAULTS_MANY = {
    "corrupt": "do not pass their own check",
    "later": "are of a later format",
    "unreadable": "cannot be read",
}


def show_entries(listing: Listing, scope: Scope, directory: str) -> None:
    """Print a table of artifacts, what they add up to, and what is not in it."""
    console = Console()
    if listing.rows:
        heading, *lines = _entry_lines(listing.rows, namespaces=scope.all)
        console.print(Text(heading, style="bold"), soft_wrap=True)
        sys.stdout.writelines(f"{line}\n" for line in lines)  # rich takes a minute for 10^5 rows
    for line in (_sum(listing, scope, directory), *_besides(listing)):
        console.print(Text(plain(line)), soft_wrap=True)


def _entry_lines(rows: list[Row], *, namespaces: bool) -> list[str]:
    strangers = any(not row.trusted for row in rows)
    headings = ["key", *(["namespace"] if namespaces else []), "label", "compiler"]
    numbers = ["size", "compile", "age", "used"]
    now = time.time()
    table = [[*headings, *numbers, *(["owner"] if strangers else [])]]
    for row in rows:
        cells = [one_line(row.key[:KEY_DIGITS])]
        if namespaces:
            cells.append(_name(row.namespace))
        cells += [_name(row.label), _name(row.compiler), size(row.size), _seconds(row.compile_seconds)]
        cells += [ago(now - row.created) if row.created else "-", ago(now - row.used)]
        if strangers:
            cells.append("" if row.trusted else f"user {row.owner}, not trusted")
        table.append(cells)
    right = range(len(headings), len(headings) + len(numbers))
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    return [_line(cells, widths, right) for cells in table]


def _line(cells: list[str], widths: list[int], right: range) -> str:
    padded = []
    for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        blank = " " * (width - cell_len(cell))
        padded.append(blank + cell if number in right else cell + blank)
    return "  ".join(padded).rstrip()


def _name(text: str | None) -> str:
    return "-" if text is None else one_line(text, 60)


def _seconds(seconds: float) -> str:
    """Return what a compile took; a dash for an artifact that was handed in."""
    if 0 < seconds < 0.1:
        return f"{seconds * 1000:.1f} ms"
    return duration(seconds) if seconds else "-"


def _sum(listing: Listing, scope: Scope, directory: str) -> str:
    if not listing.exists:
        return f"Nothing is cached in {directory}: there is no cache there (`acache doctor` says more)."
    if not listing.entries:
        return f"No artifacts in {directory} ({scope})."
    shown = len(listing.rows)
    part = "" if shown == listing.entries else f" ({shown} shown)"
    what = amount(listing.entries, "artifact")
    took = duration(listing.compile_seconds)
    return f"{what}{part} in {directory} ({scope}): {size(listing.size)}, {took} of compiling"


def _besides(listing: Listing) -> Iterable[str]:
    if listing.elsewhere:
        names = [repr(name) for name in sorted(filter(None, listing.elsewhere))]
        if None in listing.elsewhere:
            names.insert(0, "none")
        more = ", ..." if len(names) > 5 else ""
        count = amount(listing.elsewhere.total(), "artifact")
        one = "namespace" if len(names) == 1 else "namespaces"
        yield f"{count} in other {one} ({', '.join(names[:5])}{more}): --namespace NAME or --all-namespaces"
    if listing.failures:
        yield f"{amount(len(listing.failures), 'failed compile')} left for others to see: --failures"
    if listing.untrusted:
        yield (
            f"{amount(listing.untrusted, 'artifact')} of owners whom ACACHE_TRUST does not cover:"
            " a miss for every lookup of yours"
        )
    yield from passed_over(listing.faults)


def passed_over(faults: Mapping[Fault, int]) -> Iterable[str]:
    """Say how many files are no entries, and why."""
    for fault, count in sorted(faults.items()):
        words = _FAULTS if count == 1 else _FAULTS_MANY
        yield f"{amount(count, 'file')} that {words[fault]}: passed over"


def show_failures(failures: list[Failure], failure_ttl: float, scope: Scope, directory: str) -> None:
    """Print a table of failures, and what becomes of each."""
    console = Console()
    if not failures:
        console.print(Text(plain(f"No failed compile is left in {directory} ({scope}).")), soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("key", "label", "age", "remembered", "failure", "first words"):
        right, whole = heading in ("age", "remembered"), heading in ("key", "age", "remembered")
        table.add_column(heading, justify="right" if right else "left", overflow="fold", no_wrap=whole)
    now = time.time()
    for each in failures:
        cells = [one_line(each.key[:KEY_DIGITS]), _name(each.label), ago(now - each.written)]
        cells += [remembered(each, failure_ttl, now), one_line(each.reason)]
        table.add_row(*map(Text, [*cells, one_line(each.text.strip().partition("\n")[0], 100)]))
    console.print(table)


def remembered(failure: Failure, failure_ttl: float, now: float) -> str:
    """Say whether a newcomer is told this failure instead of compiling again."""
    if not failure.deterministic:
        return "no"
    left = failure.written + failure_ttl - now
    return f"{left:.0f} s more" if left > 0 else "no more"
