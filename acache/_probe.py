"""What a directory can do: made, named, and tried once, before the first lease."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acache._store import Paths, publish, unlink_quietly

if TYPE_CHECKING:
    from acache._fs import File, Steps
    from acache._store import Layout

__all__ = ["Level", "Probe", "prepare", "probe"]

TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# This folder is a cache made by acache; it may be deleted at any time.\n"
    b"# https://bford.info/cachedir/\n"
)
LAYOUT = b'{"format":1,"shards":256}\n'


class Level(enum.StrEnum):
    """How far processes can coordinate in a directory, best first: each step down is announced once."""

    SHARED = "shared"
    """Leases by hard link."""
    LINKLESS = "linkless"
    """Leases by exclusive create."""
    PROCESS = "process"
    """Single flight within this process only; entries are still read, and written where that works."""
    NONE = "none"
    """No cache at all."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a directory can do. ``owner`` is the uid that files made here get."""

    level: Level
    reason: str = ""
    errno: int | None = None
    owner: int | None = None


def prepare(layout: Layout) -> Steps[None]:
    """Make the root and the files that name it; what exists stays.

    :raises OSError: the root cannot be made or written.
    """
    yield ("mkdir", layout.base)
    for path, text in ((f"{layout.root}/CACHEDIR.TAG", TAG), (f"{layout.base}/layout.json", LAYOUT)):
        if not (yield ("exists", path)):
            place = Paths(path.rpartition("/")[0], "")
            yield from publish(layout, place, path, (text,))


def probe(layout: Layout) -> Steps[Probe]:
    """Try what leases need: exclusive create, link, rename over, rewrite in place, unlink, and my own uid.

    It cannot prove what other clients of a network mount see; those are denied by mount type.
    """
    place = Paths(layout.base, "")
    names = place.temporary(), place.temporary(), place.temporary()
    try:
        yield from prepare(layout)
        found = yield from _trials(*names)
    except OSError as error:
        readable = yield from _succeeds(("listdir", layout.base))
        level = Level.PROCESS if readable else Level.NONE
        found = Probe(level, error.strerror or str(error), error.errno)
    for path in names:
        yield from unlink_quietly(path)
    return found


def _trials(one: str, two: str, three: str) -> Steps[Probe]:
    yield ("create", one, (b"0" * 64,), False)
    if (yield from _succeeds(("create", one, (b"1",), False))):
        return Probe(Level.PROCESS, "two exclusive creates of one name both succeed")
    fd: int = yield ("open_rw", one)
    rewritten = yield from _succeeds(("pwrite", fd, b"1" * 40, 0))
    yield ("close", fd)
    if not rewritten:
        return Probe(Level.PROCESS, "a file cannot be rewritten in place")
    file: File = yield ("read", one, 4096)
    if bytes(file.data) != b"1" * 40 + b"0" * 24:
        return Probe(Level.PROCESS, "a rewrite in place is not seen by a fresh open", owner=file.uid)
    linked = yield from _succeeds(("link", one, two))
    if linked and (yield from _succeeds(("link", one, two))):
        return Probe(Level.PROCESS, "two links to one name both succeed", owner=file.uid)
    if linked and not (yield ("exists", two)):
        linked = False
    yield ("create", three, (b"3",), False)
    yield ("rename", one, three)
    after: File = yield ("read", three, 4096)
    if after.data != file.data:
        return Probe(Level.PROCESS, "a rename over a file is not seen by a fresh open", owner=file.uid)
    yield ("unlink", three)
    if (yield ("exists", three)):
        return Probe(Level.PROCESS, "an unlinked file is still there", owner=file.uid)
    if not linked:
        return Probe(Level.LINKLESS, "hard links are refused here", owner=file.uid)
    return Probe(Level.SHARED, owner=file.uid)


def _succeeds(operation: tuple[object, ...]) -> Steps[bool]:
    try:
        yield operation
    except OSError:
        return False
    return True
