"""Streams one part of a published artifact into an asyncio response, through aiofiles and in little memory.

::

    from acache.integrations.aiofiles import open_part

    async with open_part(cache, key) as part:
        if part is None:
            raise web.HTTPNotFound
        response = web.StreamResponse()
        response.content_length = part.size
        await response.prepare(request)
        async for chunk in part:
            await response.write(chunk)
        await response.write_eof()

*A wrong artifact is never delivered.* The part is read and checked once before it is offered, so that a
corrupt entry is None, a miss that heals, while there is still time to answer otherwise. It is checked again
on the way, and its last chunk is held back until the check of all has passed: should the file rot in between,
the iteration raises `CorruptEntryError` before the announced size is reached, and no client takes what it has
for whole. The price is a second read, which the page cache serves.

*The entry may be replaced, evicted or deleted meanwhile*: the open file stays what it was.

Only on asyncio (uvloop too). aiofiles reads in the loop's default executor, whose threads are not daemons: a
network mount that hangs in the middle of a stream does not hold up cancellation, but may hold up the
interpreter's exit.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, final

import xxhash
from anyio import lowlevel

from acache._checks import check_key
from acache._errors import CorruptEntryError
from acache._models import Artifact

try:
    from aiofiles.threadpool import wrap
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "aiofiles":
        raise
    raise ModuleNotFoundError(
        'acache.integrations.aiofiles needs aiofiles: pip install "acache[aiofiles]"', name="aiofiles"
    ) from None

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from io import BufferedReader

    from acache._cache import Cache
    from acache._held import HeldPart
    from acache._keys import Key
    from acache._models import JSON, Origin

__all__ = ["PartStream", "open_part", "part_of"]

CHUNK_BYTES = 256 * 1024
"""Each chunk of a file costs a trip to a thread, some 100 µs, and is kept in memory once."""


@final
class PartStream:
    """One part of an artifact, to be iterated over once: ``async for chunk in part``.

    Iterating yields bytes, ``size`` of them in all, in chunks of at most ``chunk_size``. Cancellation leaves
    at once.

    :raises CorruptEntryError: (while iterating) the file changed under us; the last chunk was not yielded.
    :raises OSError: (while iterating) the disk failed.
    :raises RuntimeError: (while iterating) it was iterated before, or its ``async with`` is over.
    """

    def __init__(
        self,
        name: str,
        size: int,
        origin: Origin | None,
        metadata: Mapping[str, JSON],
        chunks: AsyncIterator[bytes],
    ) -> None:
        self.name = name
        """The part's name."""
        self.size = size
        """Bytes in all: the response's Content-Length."""
        self.origin = origin
        """Where the artifact was found; None on one that you built."""
        self.metadata = metadata
        """The artifact's metadata."""
        self._chunks: AsyncIterator[bytes] | None = chunks
        self._over = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        chunks, self._chunks = self._chunks, None
        if self._over:
            raise RuntimeError("this part is closed; iterate over it inside `async with open_part(...)`")
        if chunks is None:
            raise RuntimeError("a part is streamed once; open it again")
        return chunks

    def __repr__(self) -> str:
        return f"<PartStream {self.name!r}, {self.size} bytes>"


@asynccontextmanager
async def open_part(
    cache: Cache, key: Key, part: str | None = None, *, chunk_size: int = CHUNK_BYTES
) -> AsyncIterator[PartStream | None]:
    """Open one part of the artifact for ``key``, from memory or disk; None: there is none, or no good one.

    Never waits for a compile, and keeps nothing in memory: it counts as a hit, as `Cache.get` would. Leaving
    closes the file, cancelled or not, off the loop's thread.

    :param part: the part's name; None: the first one.
    :param chunk_size: bytes, 1 or more.
    :raises KeyError: the artifact has no part of that name; the text says which it has.
    :raises RuntimeError: not on asyncio.
    :raises CacheClosedError: the cache is not open here.
    """
    _check_loop()
    live = cache._open_here()
    check_key(key)
    _check_part(part)
    _check_size(chunk_size)
    held = await live.shelf.hold(key, part)
    if held is None or isinstance(held, Artifact):
        yield None if held is None else part_of(held, part, chunk_size=chunk_size)
        return
    stream = PartStream(
        held.name, held.size, held.origin, held.metadata, _read(held, wrap(held.stream), chunk_size)
    )
    try:
        yield stream
    finally:
        stream._over = True
        await _close(held.stream)


def part_of(artifact: Artifact, part: str | None = None, *, chunk_size: int = CHUNK_BYTES) -> PartStream:
    """Return one part of an artifact that is in memory (that was just compiled, say) as such a stream.

    No file is involved, and only the chunk under way is copied.

    :raises KeyError: the artifact has no part of that name; the text says which it has.
    """
    _check_part(part)
    _check_size(chunk_size)
    name = next(iter(artifact.parts)) if part is None else part
    if name not in artifact.parts:
        raise KeyError(f"there is no part {name!r}; this artifact has {', '.join(map(repr, artifact.parts))}")
    view = artifact.view(name)
    return PartStream(name, len(view), artifact.origin, artifact.metadata, _cut(view, chunk_size))


async def _cut(view: memoryview, chunk_size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(view), chunk_size):
        await lowlevel.checkpoint()
        yield bytes(view[start : start + chunk_size])


async def _read(held: HeldPart, file: Any, chunk_size: int) -> AsyncIterator[bytes]:
    digest, left = xxhash.xxh3_128(), held.size
    while left:
        chunk = await file.read(min(left, chunk_size))
        digest.update(chunk)
        left -= len(chunk)
        if not chunk or (not left and digest.hexdigest() != held.digest):
            raise CorruptEntryError("a cache entry changed while it was streamed", held.path)
        yield chunk


async def _close(stream: BufferedReader) -> None:
    """Close in a thread, for a read under way there holds the file's lock; shielded, for a task that is
    cancelled here takes back what no thread has begun.
    """
    try:
        closing = asyncio.get_running_loop().run_in_executor(None, stream.close)
    except RuntimeError:  # the loop has let its threads go
        stream.close()
    else:
        await asyncio.shield(closing)


def _check_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "acache.integrations.aiofiles works on asyncio only, as aiofiles does; on trio, send the view() "
            "of `await cache.get(key)`"
        ) from None


def _check_part(part: object) -> None:
    if part is not None and not isinstance(part, str):
        raise TypeError(f"part must be the name of a part or None, not {type(part).__name__}")


def _check_size(chunk_size: object) -> None:
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
        raise ValueError(f"chunk_size must be bytes, 1 or more, not {chunk_size!r}")
