"""One of several processes that publish into one small directory: prints what it saw, as JSON.

``python evicting.py DIRECTORY BACKEND FIRST COUNT SIZE CAPACITY``; begins when a line comes in.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio

import acache


async def main(directory: str, first: int, count: int, size: int, capacity: int) -> None:
    settings = acache.Settings(max_bytes=capacity, max_entry_bytes=capacity // 8, memory_bytes=0)
    fullest = wrong = hits = 0
    async with acache.Cache(directory, settings=settings) as cache:
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(first, first + count):

            async def compiled(number: int = number) -> bytes:
                return number.to_bytes(4, "big") * (size // 4)

            artifact = await cache.get_or_compile(acache.key(number=number), compiled)
            wrong += artifact.data != await compiled()
            hits += artifact.origin is not acache.Origin.COMPILED
            if number % 16 == 0:
                fullest = max(fullest, await anyio.to_thread.run_sync(taken, directory))
        stats = cache.stats()
    print(
        json.dumps(
            {
                "wrong": wrong,
                "hits": hits,
                "fullest": fullest,
                "evicted": stats.evicted,
                "published": stats.published,
                "errors": stats.store_errors,
            }
        )
    )


def taken(directory: str) -> int:
    """Return the bytes of all entries, as they are found one after the other."""
    total = 0
    for path in Path(directory).glob("v1/*/*.art"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


if __name__ == "__main__":
    where, backend, *numbers = sys.argv[1:]
    uvloop = backend == "uvloop"
    anyio.run(
        main,
        where,
        *map(int, numbers),
        backend="trio" if backend == "trio" else "asyncio",
        backend_options={"use_uvloop": uvloop} if backend != "trio" else {},
    )
