"""``acache ls``: what is cached."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from acache.cli._shared import (
    AllNamespaces,
    Directory,
    Json,
    Namespace,
    layout_of,
    print_json,
    reading,
    settings_here,
    wrong,
)

__all__ = ["ls"]


class SortBy(enum.StrEnum):
    """What ``acache ls --sort`` takes."""

    USED = "used"
    AGE = "age"
    SIZE = "size"
    SECONDS = "seconds"
    LABEL = "label"
    COMPILER = "compiler"
    NAMESPACE = "namespace"
    KEY = "key"


def ls(
    sort: Annotated[
        SortBy,
        typer.Option(help="used and age: latest first; size and seconds (of compiling): most first."),
    ] = SortBy.USED,
    reverse: Annotated[bool, typer.Option("--reverse", "-r", help="The other way round.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="So many at most.", show_default="all")] = None,
    failures: Annotated[
        bool, typer.Option("--failures", help="List failed compiles that were left for others, instead.")
    ] = False,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """List the artifacts in the cache directory. Only reads.

    A key is shown by its first digits; `acache show` takes these. Age is since the artifact was published,
    used since somebody last read it (coarsely: see recency_grain).
    """
    from acache.cli import _entries, _entry_tables

    if namespace is not None and all_namespaces:
        wrong("either --namespace or --all-namespaces", "--all-namespaces")
    scope = _entries.Scope(namespace, all_namespaces)
    settings = settings_here()
    layout = layout_of(directory, settings)
    with reading(layout):
        listing = _entries.gather(layout, scope, sort=sort.value, reverse=reverse, limit=limit)
    if failures:
        if reverse:
            listing.failures.reverse()
        listing.failures = listing.failures[:limit]
    if as_json:
        print_json(
            {
                "directory": layout.root,
                "namespace": scope.namespace,
                "all_namespaces": scope.all,
                "entries": listing.entries,
                "size": listing.size,
                "compile_seconds": listing.compile_seconds,
                "elsewhere": listing.elsewhere.total(),
                "faults": dict(listing.faults),
                "failures" if failures else "artifacts": [
                    each.as_json() for each in (listing.failures if failures else listing.rows)
                ],
            }
        )
    elif failures:
        _entry_tables.show_failures(listing.failures, settings.failure_ttl, scope, layout.root)
    else:
        _entry_tables.show_entries(listing, scope, layout.root)
