"""``acache clear``: remove what is cached under a namespace."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from acache.cli._shared import (
    BAD,
    OK,
    AllNamespaces,
    Directory,
    Json,
    Namespace,
    fail,
    layout_of,
    print_json,
    reading,
    settings_here,
    wrong,
)
from acache.cli._text import amount, plain, size

if TYPE_CHECKING:
    from acache.cli._clear import Cleared

__all__ = ["clear"]


def clear(
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Remove the artifacts, marks and remembered failures of one namespace; says first what would go.

    Compiles under way go on and are published. Programs that run keep what they have in memory. Files of
    owners whom ACACHE_TRUST does not cover stay.
    """
    from acache.cli import _clear, _entries

    if namespace is not None and all_namespaces:
        wrong("either --namespace or --all-namespaces", "--all-namespaces")
    settings = settings_here()
    if settings.mode == "readonly":
        fail("ACACHE_MODE is readonly, so nothing is removed")
    scope = _entries.Scope(namespace, all_namespaces)
    layout = layout_of(directory, settings)
    with reading(layout):
        planned = _clear.plan(layout, scope)
    where = f"{layout.root} ({scope})"
    if planned.any and not yes:
        _ask(f"Remove {_what(planned)} from {where}?")
    done = _clear.clear(planned)
    if as_json:
        head = {"directory": layout.root, "namespace": scope.namespace, "all_namespaces": scope.all}
        print_json({**head, **done.as_json()})
    else:
        typer.echo(plain(f"{_what(done)} removed from {where}" if done.any else f"Nothing removed: {where}"))
        if done.untrusted:
            typer.echo(f"{amount(done.untrusted, 'file')} of owners whom ACACHE_TRUST does not cover: left")
    if done.refused:
        typer.echo(plain(f"acache: {amount(done.refused, 'file')} left, the first is {done.why}"), err=True)
    raise typer.Exit(BAD if done.refused else OK)


def _somebody_is_there() -> bool:
    return sys.stdin.isatty()


def _ask(question: str) -> None:
    if not _somebody_is_there():
        wrong("nobody can be asked here; --yes removes without asking", "--yes")
    typer.echo(plain(f"{question} [y/N] "), nl=False, err=True)  # typer.confirm writes on stdout too
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        fail("nothing was removed")


def _what(counts: Cleared) -> str:
    words = [f"{amount(counts.artifacts, 'artifact')} ({size(counts.size)})"]
    if counts.marks:
        words.append(amount(counts.marks, "mark"))
    if counts.failures:
        words.append(amount(counts.failures, "failed compile"))
    return ", ".join(words)
