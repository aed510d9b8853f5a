"""``acache stats``: what the cache was good for."""

from __future__ import annotations

from typing import Annotated

import typer

from acache.cli._shared import Directory, Json, layout_of, print_json, reading, settings_here

__all__ = ["stats"]


def stats(
    limit: Annotated[int, typer.Option(min=1, help="Show so many labels at most.")] = 20,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Show hits by origin, launches and seconds saved, by label and by compiler, over all processes.

    Each process leaves a small record when it closes its Cache; on network mounts only with
    ACACHE_RECORD_STATS=1. Seconds saved are what the compiles of what was hit took when they ran; hits in
    memory save none. Only reads.
    """
    from acache._fs import OsFileSystem, perform
    from acache._ledger import read_ledger
    from acache.cli import _stats

    layout = layout_of(directory, settings_here())
    with reading(layout):
        ledger = perform(read_ledger(layout), OsFileSystem())
    if as_json:
        print_json(_stats.as_json(ledger, layout))
    else:
        _stats.show(ledger, layout, limit)
