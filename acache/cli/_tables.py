"""What ``ps`` and ``doctor`` print for people; text of strangers goes through `acache.cli._text` first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from acache.cli._text import duration, one_line, plain, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from acache.cli._doctor import Diagnosis
    from acache.cli._ps import Holder

__all__ = ["show_diagnosis", "show_holders"]

_NAME_DIGITS = 12
_STYLES = {"alive": "green", "dead": "red", "hedge": "yellow"}


def show_holders(holders: Sequence[Holder], directory: str) -> None:
    """Print a table of who compiles what."""
    console = Console()
    if not holders:
        console.print(Text(f"Nobody compiles anything in {plain(directory)}."), soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "label", "host", "pid", "age", "beats", "progress", "usual", "verdict", "why"):
        number = heading in ("pid", "age", "beats", "progress", "usual")
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for each in holders:
        known = [each.name[:_NAME_DIGITS], each.label, each.host, each.pid, duration(each.age_s), each.beats]
        cells = [Text("-" if cell is None else one_line(str(cell), 60)) for cell in [*known, each.progress]]
        cells += [Text(duration(each.usual_s)), Text(each.verdict, style=_STYLES.get(each.verdict, ""))]
        rivals = f"; {each.rivals} before it in the chain" if each.rivals else ""
        table.add_row(*cells, Text(plain(each.why) + rivals))
    console.print(table)


def show_diagnosis(found: Diagnosis) -> None:
    """Print a diagnosis: facts, then problems and notes, then the verdict."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _facts(found):
        table.add_row(name, Text(plain(value)))
    console = Console()
    console.print(table)
    for heading, lines, style in (("problem", found.problems, "red"), ("note", found.notes, "yellow")):
        for line in lines:
            console.print(Text.assemble((f"{heading}: ", style), plain(line)), soft_wrap=True)
    verdict = Text("healthy", style="green") if found.healthy else Text("degraded", style="red")
    console.print(verdict)


def _facts(found: Diagnosis) -> Iterable[tuple[str, str]]:
    yield "acache", f"{found.version} on Python {found.python}"
    yield "directory", f"{found.directory} ({found.why})"
    system, folder = found.file_system, found.folder
    if system is not None:
        read_only = ", read-only" if system.read_only else ""
        if system.type is None:
            yield "file system", f"unknown, taken as {system.kind}"
        else:
            yield (
                "file system",
                f"{system.type} on {system.mount} from {system.source} ({system.kind}{read_only})",
            )
    if folder is not None and folder.found == "folder":
        rights = [name for name, has in (("read", folder.readable), ("write", folder.writable)) if has]
        allowed = " and ".join(rights) or "neither read nor write"
        yield (
            "permissions",
            f"{folder.mode}, user {folder.owner}, group {folder.group}; this user may {allowed}",
        )
    elif folder is not None:
        yield "permissions", "it did not exist" if folder.found == "missing" else "no folder"
    level = "unknown" if found.coordination is None else found.coordination.value
    yield "probe", found.reason or "exclusive create, link, rename, rewrite in place and unlink work"
    yield "coordination", level
    belongs = (
        ""
        if found.owner_of_new_files is None
        else f"; files made there belong to user {found.owner_of_new_files}"
    )
    yield "trust", f"{found.trust}{belongs}"
    inodes = "" if found.space.free_inodes is None else f", {found.space.free_inodes} inodes"
    yield "free", f"{size(found.space.free_bytes)}{inodes}"
    variables = [f"{name}={value}" for name, value in found.environment.items()]
    yield "environment", "\n".join(map(one_line, variables)) or "no ACACHE_ variables"
