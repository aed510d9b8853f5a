"""A process that forks while its Cache is open; the child's calls must be refused with a sentence.

Run as ``python forked.py BACKEND DIRECTORY``; prints what each call raised in the child, as JSON.
"""

from __future__ import annotations

import functools
import json
import os
import sys

import anyio

import acache
from acache.compilers import Command

KEY = acache.key(n=1)


async def compile() -> bytes:
    return b"x"


def refusals(cache: acache.Cache) -> dict[str, str]:
    request = Command(["cp", "in", "out"], inputs=["in"], outputs=["out"]).request("x")
    calls = {
        "get_or_compile": cache.get_or_compile(KEY, compile),
        "key_of": cache.key_of(request),
        "get": cache.get(KEY),
        "put": cache.put(KEY, b"x"),
        "delete": cache.delete(KEY),
        "status": cache.status(KEY),
        "entries": cache.entries(),
        "clear": cache.clear(),
    }
    found = {}
    for name, call in calls.items():
        try:
            call.send(None)  # the loop belongs to the parent: one step, without it
        except acache.CacheClosedError as error:
            found[name] = str(error)
        finally:
            call.close()
    try:
        cache.get_nowait(KEY)
    except acache.CacheClosedError as error:
        found["get_nowait"] = str(error)
    return found


async def main(directory: str) -> None:
    async with acache.Cache(directory) as cache:
        await cache.put(KEY, b"x")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.write(1, json.dumps(refusals(cache)).encode())
                status = 0
            finally:
                os._exit(status)
        await anyio.to_thread.run_sync(os.waitpid, child, 0)
        assert (await cache.get(KEY)) is not None  # the parent's own goes on


if __name__ == "__main__":
    backend, options = json.loads(sys.argv[1])
    anyio.run(functools.partial(main, sys.argv[2]), backend=backend, backend_options=options)
