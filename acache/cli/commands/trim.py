"""``acache trim``: bring a directory down to a size and an age."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from acache._settings import parse_size
from acache.cli._shared import (
    BAD,
    OK,
    Directory,
    Json,
    fail,
    layout_of,
    print_json,
    reading,
    settings_here,
    wrong,
)
from acache.cli._text import amount, plain, size

__all__ = ["trim"]

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d|w)?", re.ASCII)
_SECONDS = {None: 1, "s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST = 1e10


def trim(
    max_bytes: Annotated[
        str | None,
        typer.Option(
            "--max-bytes", help="What may stay: 500MiB, 2GiB.", show_default="ACACHE_MAX_BYTES, else 2 GiB"
        ),
    ] = None,
    max_age: Annotated[
        str | None, typer.Option("--max-age", help="Longest time since the last use: 90min, 12h, 7d, 4w.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Remove the least recently used files of all namespaces, until a size and an age are met.

    Programs keep their directory within its size anyway; this is for a smaller size, or for what nobody uses
    any more. What is read meanwhile stays. A use is noted to within a minute, on network mounts an hour.
    """
    from acache.cli import _trim

    settings = settings_here()
    whole = settings.max_bytes if max_bytes is None else _bytes(max_bytes)
    age = None if max_age is None else _seconds(max_age)
    if settings.mode == "readonly" and not dry_run:
        fail("ACACHE_MODE is readonly, so nothing is removed; --dry-run says what would be")
    layout = layout_of(directory, settings)
    with reading(layout):
        planned = _trim.plan(layout, max_bytes=whole, max_entries=settings.max_entries, max_age=age)
    report, why = (planned.report, planned.why) if dry_run else _trim.carry_out(planned)
    if as_json:
        print_json({"directory": layout.root, **_trim.as_json(report)})
    else:
        verb = "would be removed" if report.dry_run else "removed"
        gone = f"{amount(report.evicted, 'file')} ({size(report.evicted_size)}) {verb}"
        left = f"{amount(report.kept, 'file')} ({size(report.kept_size)}) left"
        typer.echo(plain(f"{gone}, {left}: {layout.root}"))
        if report.spared:
            typer.echo(
                f"{amount(report.spared, 'file')} spared: used or waited for meanwhile, or of a later format"
            )
    if report.refused:
        typer.echo(
            plain(f"acache: {report.refused} could not be read or removed, the first is {why}"), err=True
        )
    raise typer.Exit(BAD if report.refused else OK)


def _bytes(text: str) -> int:
    try:
        return parse_size(text.strip())
    except ValueError:
        wrong(f"{text!r} is no size; say 500MiB, 2GiB, or a number of bytes", "--max-bytes")


def _seconds(text: str) -> float:
    found = _AGE.fullmatch(text.strip())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else _LONGEST
    if seconds >= _LONGEST:
        wrong(f"{text!r} is no length of time; say 90min, 12h, 7d, 4w, or a number of seconds", "--max-age")
    return seconds
