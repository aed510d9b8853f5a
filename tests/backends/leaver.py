"""A process that opens and closes many caches, one after the other, where three records are already many.

Run as ``python leaver.py BACKEND DIRECTORY TIMES NUMBER``; starts when a line comes on stdin.
"""

from __future__ import annotations

import functools
import sys

import anyio

import acache
from acache import _cache, _ledger, _live

_ledger.FOLD_AT = 3
_cache.CLOSING_LIMIT = _live.RECORD_LIMIT = 60.0  # a slow machine loses no record either


async def main(directory: str, times: int, number: str) -> None:
    async def compile() -> bytes:
        return b"x"

    key = acache.key(number=number)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(times):
        async with acache.Cache(directory) as cache:
            await cache.get_or_compile(key, compile, label=f"leaver {number}")


if __name__ == "__main__":
    backend, directory, times, number = sys.argv[1:]
    options = {"use_uvloop": True} if backend == "uvloop" else {}
    name = "asyncio" if backend == "uvloop" else backend
    anyio.run(functools.partial(main, directory, int(times), number), backend=name, backend_options=options)
