"""``acache doctor``: what a cache directory can do, and what stands in the way."""

from __future__ import annotations

from typing import Annotated

import typer

import acache
from acache.cli._shared import BAD, OK, Directory, Json, print_json

__all__ = ["doctor"]


def doctor(
    directory: Directory = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds until a directory that hangs is given up.")
    ] = 10.0,
    as_json: Json = False,
) -> None:
    """Examine the cache directory: where it is and why, on what, and whether processes can coordinate there.

    Makes the directory if it does not exist, as a cache would, and tries in it what leases need.
    """
    from acache.cli import _doctor, _tables

    found = _doctor.examine(directory, version=acache.__version__, timeout=timeout)
    if as_json:
        print_json(found.as_json())
    else:
        _tables.show_diagnosis(found)
    raise typer.Exit(OK if found.healthy else BAD)
