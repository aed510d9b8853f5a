"""One part of an entry, checked, with the entry's file held open: for who passes it on piece by piece.

The entry may be replaced, evicted or deleted meanwhile: an open file stays what it was.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from acache._format import ALIGNMENT, PREAMBLE, FormatError, Kind, decode_entry, header_span
from acache._fs import OpenFile
from acache._models import Origin
from acache._store import ENTRY_LIMIT, GONE, ODD, again_if_stale

if TYPE_CHECKING:
    from collections.abc import Mapping
    from io import BufferedReader

    from acache._format import Entry
    from acache._fs import Steps
    from acache._models import JSON
    from acache._store import Layout, Subject

__all__ = ["Handover", "HeldPart", "hold"]

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class HeldPart:
    """A part whose check passed; ``stream`` stands at its first byte, and is the caller's to close."""

    stream: BufferedReader
    name: str
    size: int
    digest: str
    """Its xxh3-128 in hex, as the entry's header has it."""
    path: str
    used: float
    """The file's mtime, in seconds."""
    entry: Entry
    """The header only."""

    @property
    def metadata(self) -> Mapping[str, JSON]:
        """The artifact's metadata."""
        return self.entry.metadata

    @property
    def origin(self) -> Origin:
        """Where it was found."""
        return Origin.DISK


class Handover:
    """Hands what a worker thread has opened to a caller who may have left meanwhile; then it is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stream: BufferedReader | None = None
        self._left = False

    def offer(self, stream: BufferedReader) -> None:
        """Leave an open file for the caller (called in the thread)."""
        with self._lock:
            if not self._left:
                self._stream = stream
                return
        stream.close()

    def leave(self) -> None:
        """The caller will not come for it any more: who is later of the two closes it."""
        with self._lock:
            self._left, stream, self._stream = True, self._stream, None
        if stream is not None:
            stream.close()  # it was opened and read a moment ago: this answers


def hold(layout: Layout, subject: Subject, part: str | None, handover: Handover) -> Steps[HeldPart | None]:
    """Open ``K.art``, check its header and one part (None: the first), and leave it open at that part.

    The part is read once to be checked, a piece at a time, so that a wrong one is known before its first byte
    is passed on. None: absent, or not believed, or no good; `acache._store.read_artifact` tells which.

    :raises KeyError: a good artifact, but without a part of that name.
    :raises OSError: a fault of the disk itself.
    """
    try:
        file = yield from again_if_stale("hold", subject.paths.art, ENTRY_LIMIT)
    except OSError as error:
        if error.errno in GONE or error.errno in ODD:
            return None
        raise
    assert isinstance(file, OpenFile)
    found = None
    try:
        if layout.trust.believes(file):
            found = _checked(file, subject, part)
    except FormatError:
        pass
    finally:
        if found is None:
            file.stream.close()
    if found is not None:
        handover.offer(found.stream)
    return found


def _checked(file: OpenFile, subject: Subject, part: str | None) -> HeldPart:
    stream = file.stream
    head = stream.read(PREAMBLE.size)
    head += stream.read(header_span(head) - len(head))
    entry = decode_entry(head, key=subject.key, namespace=subject.namespace, parts=False)
    if entry.kind is not Kind.ARTIFACT or entry.size != file.size:
        raise FormatError("no whole artifact")
    spans = _spans(entry, len(head))
    if part is None:
        part = next(iter(spans))
    elif part not in spans:
        raise KeyError(f"there is no part {part!r}; this artifact has {', '.join(map(repr, spans))}")
    start, size, digest = spans[part]
    if _digest(stream, start, size) != digest:
        raise FormatError(f"the check of part {part!r} fails")
    stream.seek(start)
    return HeldPart(stream, part, size, digest, subject.paths.art, file.mtime, entry)


def _spans(entry: Entry, head: int) -> dict[str, tuple[int, int, str]]:
    """Return where in the file each part lies: its first byte, its length, its digest."""
    base, spans = head + -head % ALIGNMENT, {}
    try:
        for name, offset, size, digest in entry.header["parts"]:
            start, end = base + offset, base + offset + size
            if (
                not isinstance(name, str)
                or not isinstance(end, int)
                or not base <= start <= end <= entry.size
            ):
                raise FormatError(f"part {name!r} lies outside of the file")
            spans[name] = (start, size, digest)
    except (TypeError, ValueError) as error:
        raise FormatError(f"the table of parts makes no sense: {error}") from None
    return spans


def _digest(stream: BufferedReader, start: int, size: int) -> str | None:
    """Return the digest of what lies there; None where the file ends before it."""
    stream.seek(start)
    digest, left = xxhash.xxh3_128(), size
    while left:
        piece = stream.read(min(left, _PIECE))
        if not piece:
            return None
        digest.update(piece)
        left -= len(piece)
    return digest.hexdigest()
