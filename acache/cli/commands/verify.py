"""``acache verify``: check every entry."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

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
)
from acache.cli._text import amount, one_line, plain, size

__all__ = ["verify"]


def verify(
    repair: Annotated[bool, typer.Option("--repair", help="Remove what is corrupt.")] = False,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Read every file of the directory, in all namespaces, and check all of it.

    A corrupt entry is a miss, and the next compile replaces it; --repair removes it now. Files of later
    formats, and of owners whom ACACHE_TRUST does not cover, are counted and left.
    """
    from acache.cli import _verify

    settings = settings_here()
    if settings.mode == "readonly" and repair:
        fail("ACACHE_MODE is readonly, so nothing is repaired")
    layout = layout_of(directory, settings)
    with reading(layout):
        report = _verify.verify(layout, repair=repair)
    if as_json:
        faults = [{"path": path, "why": why} for path, why in report.faults]
        print_json({"directory": layout.root, "ok": report.ok, **asdict(report), "faults": faults})
    else:
        good = f"{amount(report.artifacts, 'artifact')} ({size(report.size)}) good"
        words = [good, amount(report.marks, "mark"), amount(report.failures, "failed compile")]
        words += [
            amount(count, one, many)
            for count, one, many in (
                (report.corrupt, "corrupt file", None),
                (report.repaired, "of these removed", "of these removed"),
                (report.unreadable, "unreadable", "unreadable"),
                (report.later, "of a later format", "of a later format"),
                (report.untrusted, "of a stranger", "of strangers"),
            )
            if count
        ]
        typer.echo(plain(f"{', '.join(words)}: {layout.root}"))
        for path, why in report.faults:
            typer.echo(f"  {one_line(path, 400)}: {one_line(why)}")
    raise typer.Exit(OK if report.ok else BAD)
