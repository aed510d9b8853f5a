"""``acache show``: one entry, whole; two keys, compared; one part, extracted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from acache.cli._shared import (
    Directory,
    Json,
    fail,
    layout_of,
    print_json,
    reading,
    settings_here,
    wrong,
)

if TYPE_CHECKING:
    from acache._store import Layout
    from acache.cli._entries import Scope
    from acache.cli._show import Account, Part

__all__ = ["show"]


def show(
    key: Annotated[
        str, typer.Argument(help="A key, the name of an entry's file, or the beginning of either, in hex.")
    ],
    against: Annotated[
        str | None,
        typer.Option(metavar="KEY2", help="Compare the fields of the two keys: why did it miss?"),
    ] = None,
    part: Annotated[
        str | None, typer.Option(metavar="NAME", help="The part that --output writes; else the first.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write a part to this file; - is stdout."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="The namespace of KEY.", show_default="any")
    ] = None,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Show one entry: header, parts, metadata, fields of its key, failure, compiler's log. Only reads.

    All of the entry is read and checked. The file that --output names is replaced in one step.
    """
    from acache.cli import _entries, _show, _show_view

    if part is not None and output is None:
        wrong("goes with -o FILE, or -o - for stdout", "--part")
    if output is not None and against is not None:
        wrong("does not go with --output", "--against")
    if output == "-" and as_json:
        wrong("stdout takes either the part or the JSON object", "--json")
    settings = settings_here()
    layout = layout_of(directory, settings)
    scope = _entries.Scope(namespace, all=namespace is None)
    here = _account(layout, key, "KEY", scope)
    if output is not None:
        written = _extract(here, part, output)
        if as_json:
            print_json({"key": here.key, "part": written.name, "size": written.size, "file": output})
    elif against is not None:
        there = _account(layout, against, "--against", scope)
        differences = _show.compare(here, there)
        if as_json:
            rows = [
                {"field": each.field, "here": each.here, "there": each.there, "verdict": each.verdict}
                for each in differences
            ]
            print_json({"here": here.key, "there": there.key, "fields": rows})
        else:
            _show_view.show_differences(here, there, differences)
    elif as_json:
        print_json({"directory": layout.root, **here.as_json()})
    else:
        _show_view.show_account(here, settings.failure_ttl)


def _account(layout: Layout, text: str, hint: str, scope: Scope) -> Account:
    """Find the one entry that is meant; none, several, or one that is no good is exit code 1."""
    from acache._inventory import Unreadable
    from acache.cli import _find, _show, _show_view

    text = text.lower()
    if not _find.is_hex(text):
        wrong("a key or a name has 64 hex digits, and its beginning fewer", hint)
    with reading(layout):
        matches = _find.find(layout, text, scope)
    if not matches:
        where = "" if scope.all else f", {scope}"
        fail(f"nothing in {layout.root}{where} has a key or name {text}; `acache ls` shows what there is")
    if len(matches) > 1:
        fail(f"{text} may mean {len(matches)} entries; say more of it:\n{_show_view.listed(matches)}")
    found = _find.inspect(layout, matches[0].name)
    account = _show.account_of(found)
    bad = found.entry if isinstance(found.entry, Unreadable) else found.failure
    if isinstance(bad, Unreadable) and (account is None or account.artifact is None):
        what = {
            "corrupt": "does not pass its own check, so it is a miss, and heals",
            "later": "is of a later format, which this version leaves alone",
            "unreadable": "cannot be read",
        }
        fail(f"{bad.path} {what[bad.fault]}: {bad.why}")
    if account is None:
        fail(f"{text} went away meanwhile")
    return account


def _extract(account: Account, name: str | None, path: str) -> Part:
    from acache.cli import _show

    row = account.artifact
    if row is None:
        fail(f"there is no artifact of {account.key}: `acache show {account.key}` says more")
    if not row.trusted:
        fail(
            f"{account.path} belongs to user {row.owner}, whom ACACHE_TRUST does not cover;"
            " ACACHE_TRUST=any writes it nevertheless"
        )
    parts = {part.name: part for part in account.parts}
    chosen = account.parts[0] if name is None else parts.get(name)
    if chosen is None:
        fail(f"there is no part {name!r}; the parts are {', '.join(map(repr, parts))}")
    try:
        _show.write(account.data[chosen.name], path)
    except BrokenPipeError:
        raise  # as for every command: whoever read stdout has had enough
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror or error}")
    return chosen
