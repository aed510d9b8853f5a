"""``acache ps``: who compiles what."""

from __future__ import annotations

from typing import Annotated

import typer

from acache._keys import Key, name_of
from acache.cli._shared import Directory, Json, layout_of, print_json, reading, settings_here

__all__ = ["ps"]


def ps(
    key: Annotated[
        str | None,
        typer.Argument(
            help="A key (64 hex digits), or the beginning of a name that was printed here.",
            show_default="all",
        ),
    ] = None,
    directory: Directory = None,
    namespace: Annotated[str | None, typer.Option(help="The namespace that KEY belongs to.")] = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--for", min=0, max=86400, help="Watch for so many seconds, and judge by beats and progress."
        ),
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Show who compiles what, and how a waiter would judge them. Only reads.

    One look tells a dead holder on this host from a living one; whether a holder beats and makes progress
    takes several looks: see --for. A verdict is one of: alive; dead (a waiter takes over); hedge (alive, but
    without progress or far over its usual time: a waiter starts a rival); closing; unknown; gone (it ended
    meanwhile).
    """
    from acache.cli import _ps, _tables

    settings = settings_here()
    wanted = None if key is None else _wanted(key, namespace)
    layout = layout_of(directory, settings)
    with reading(layout):
        names = _ps.find(layout)
    if wanted is not None:
        names = [name for name in names if name.startswith(wanted)]
    holders = _ps.Observer(layout, settings).observe(names, seconds)
    if as_json:
        print_json({"directory": layout.root, "compiles": [holder.as_json() for holder in holders]})
    else:
        _tables.show_holders(holders, layout.root)


def _wanted(key: str, namespace: str | None) -> tuple[str, ...]:
    """Return what a name may begin with: the name of a key's files, or the text itself."""
    text = key.lower()
    if not text or len(text) > 64 or set(text) - set("0123456789abcdef"):
        raise typer.BadParameter(
            "a key has 64 hex digits, and a name begins with hex digits", param_hint="KEY"
        )
    if len(text) == 64:
        return name_of(Key.from_hex(text), namespace), text
    if namespace is not None:
        raise typer.BadParameter("goes with a whole KEY of 64 hex digits", param_hint="--namespace")
    return (text,)
