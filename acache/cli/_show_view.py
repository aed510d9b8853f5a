"""What ``show`` prints for people; text of strangers goes through `acache.cli._text` first."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from acache.cli._entry_tables import KEY_DIGITS, remembered
from acache.cli._text import ago, duration, one_line, plain, size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from acache.cli._entries import Failure
    from acache.cli._find import Match
    from acache.cli._show import Account, Difference

__all__ = ["listed", "show_account", "show_differences"]

MOST_MATCHES = 10


def show_account(account: Account, failure_ttl: float) -> None:
    """Print all that is known of an entry."""
    console = Console()
    _grid(console, _facts(account))
    if account.parts:
        _heading(console, "parts")
        table = _table(("part", "size", "xxh3-128"), numbers=("size",))
        for part in account.parts:
            table.add_row(*map(Text, (one_line(part.name, 60), size(part.size), one_line(part.xxh3_128))))
        console.print(table)
    if account.metadata:
        _heading(console, "metadata")
        _grid(console, ((name, json.dumps(value)) for name, value in account.metadata.items()))
    if account.fields:
        _heading(console, "fields of the key (digests; --against KEY2 compares)")
        _grid(console, account.fields.items())
    if account.failure is not None:
        _heading(console, "failed compile")
        _grid(console, _failure(account.failure, failure_ttl))
        _text(console, account.failure.text)
    if account.log:
        _heading(console, "log of the compiler")
        _text(console, account.log)


def _facts(account: Account) -> Iterable[tuple[str, str]]:
    row, now = account.artifact, time.time()
    yield "key", account.key
    yield "file", account.path
    if account.namespace is not None:
        yield "namespace", account.namespace
    yield "label", account.label or "-"
    if row is None:
        took = account.cheap_seconds
        if took is not None and took > 0:
            yield "artifact", f"none: compiled in {took:.3f} s, and not kept (min_compile_seconds)"
        elif took is not None:
            yield "artifact", "none: it was compiled, and could not be kept"
        else:
            yield "artifact", "none"
        return
    yield "compiler", row.compiler or "-"
    yield "compiled in", f"{row.compile_seconds:.3f} s" if row.compile_seconds else "- (it was handed in)"
    yield "size", f"{size(row.size)} ({row.size} bytes)"
    yield "published", f"{ago(now - row.created)} ago" if row.created else "-"
    yield "used", f"{ago(now - row.used)} ago"
    yield "check", "passed, header and parts"
    if not row.trusted:
        yield "owner", f"user {row.owner}, whom ACACHE_TRUST does not cover: a miss for every lookup of yours"


def _failure(failure: Failure, failure_ttl: float) -> Iterable[tuple[str, str]]:
    now = time.time()
    yield "what", failure.summary
    yield "when", f"{ago(now - failure.written)} ago, after {duration(failure.compile_seconds)}"
    left = remembered(failure, failure_ttl, now)
    why = "" if failure.deterministic else " (not certain to fail again)"
    yield "remembered", f"{left}{why}"


def show_differences(here: Account, there: Account, differences: list[Difference]) -> None:
    """Print the fields of two keys, those that differ first."""
    console = Console()
    if here.key == there.key:
        console.print(Text("They have the same key."))
        return
    for account in (here, there):
        if not account.fields:
            sentence = f"{account.key[:KEY_DIGITS]} has no fields: its key was made by Key.from_hex."
            console.print(Text(plain(sentence)), soft_wrap=True)
            return
    table = _table(("field", one_line(here.key[:KEY_DIGITS]), one_line(there.key[:KEY_DIGITS]), ""), ())
    for each in differences:
        style = "" if each.verdict == "same" else "yellow"
        cells = (one_line(each.field, 60), one_line(each.here or "-"), one_line(each.there or "-"))
        table.add_row(*map(Text, cells), Text(each.verdict, style=style))
    console.print(table)


def listed(matches: list[Match]) -> str:
    """Return several matches as lines, to choose from."""
    lines = []
    for match in matches[:MOST_MATCHES]:
        words = [f"key {match.key}" if match.key else "unreadable", f"file {match.name[:KEY_DIGITS]}..."]
        if match.namespace is not None:
            words.append(f"namespace {one_line(match.namespace, 40)}")
        if match.label is not None:
            words.append(f"label {one_line(match.label, 40)}")
        lines.append("  " + ", ".join(words))
    if len(matches) > MOST_MATCHES:
        lines.append(f"  and {len(matches) - MOST_MATCHES} more")
    return "\n".join(lines)


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"), soft_wrap=True)


def _text(console: Console, text: str) -> None:
    console.print(Text(plain(text.rstrip("\n"))), soft_wrap=True)


def _grid(console: Console, facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns; values stay on one line, so that they can be copied."""
    lines = [(one_line(name, 40), plain(value)) for name, value in facts]
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        console.print(Text.assemble((name.ljust(width), "bold"), "  ", value), soft_wrap=True)


def _table(headings: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", overflow="fold")
    return table
