"""What all commands share: options, exit codes, one JSON object on stdout, one sentence on stderr."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from acache._settings import Settings
from acache.cli._text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from acache._store import Layout

__all__ = [
    "BAD",
    "OK",
    "AllNamespaces",
    "Directory",
    "Json",
    "Namespace",
    "codes",
    "fail",
    "layout_of",
    "print_json",
    "reading",
    "settings_here",
    "wrong",
]

OK, BAD = 0, 1
"""The code of a wrong call, 2, comes from `wrong` and from typer itself."""

_CODES = """\
Exit codes: 0 well; 1 {bad}; 2 the command was called wrongly, and did
nothing; 128 + n stopped by signal n (130: Ctrl-C).
"""

Directory = Annotated[
    str | None,
    typer.Option(
        "--directory", "-d", help="The cache directory.", show_default="ACACHE_DIR, else the user's cache"
    ),
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Only this namespace.", show_default="no namespace")
]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


def codes(bad: str) -> str:
    """Return the last lines of a command's help; ``bad`` says what exit code 1 means there."""
    return _CODES.format(bad=bad)


def settings_here() -> Settings:
    """Return the settings that a cache would take from the environment; a bad variable is a wrong call."""
    try:
        return Settings.from_env()
    except ValueError as error:
        raise typer.BadParameter(f"{error} (`acache doctor` says more)", param_hint="environment") from None


def layout_of(directory: str | None, settings: Settings) -> Layout:
    """Return the layout of the directory that a command is about."""
    from acache.cli import _place

    return _place.place_of(_place.where(directory)[0], settings).layout


@contextmanager
def reading(layout: Layout) -> Iterator[None]:
    """Turn a directory that cannot be read into one sentence and exit code 1."""
    try:
        yield
    except OSError as error:
        fail(f"{layout.root} cannot be read: {error.strerror or error}")


def print_json(what: Mapping[str, Any]) -> None:
    """Print one JSON object; ASCII only: text of strangers stays harmless, and any encoding will do."""
    typer.echo(json.dumps(what, indent=2))


def fail(text: str) -> NoReturn:
    """Say in one sentence on stderr what is not well, and exit with 1."""
    typer.echo(plain(f"acache: {text}"), err=True)
    raise typer.Exit(BAD)


def wrong(text: str, hint: str) -> NoReturn:
    """Say what is wrong about the call, and exit with 2; ``hint`` names the argument or option."""
    raise typer.BadParameter(plain(text), param_hint=hint)
