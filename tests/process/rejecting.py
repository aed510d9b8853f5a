"""One of several processes that load an artifact, find it bad, and want another.

``python rejecting.py BACKEND ORDERS``; ORDERS is JSON: ``directory``, ``tiers``, ``log``. Says ``loaded``,
waits for a line, rejects and asks again, and prints what it got as JSON.
"""

from __future__ import annotations

import json
import os
import sys

import anyio

import acache

KEY = acache.key(loaded="by all")


async def main(orders: dict) -> None:
    settings = acache.Settings(
        read_only_directories=orders["tiers"], mode=orders.get("mode", "on"), poll_max=0.1
    )

    async def compiled() -> bytes:
        with open(orders["log"], "a", encoding="ascii") as file:  # noqa: ASYNC230
            file.write(f"{os.getpid()}\n")
        await anyio.sleep(0.3)
        return b"good"

    async with acache.Cache(orders["directory"], settings=settings) as cache:
        bad = await cache.get(KEY)
        print(json.dumps(None if bad is None else bad.data.decode()), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        rejected = await cache.invalidate(KEY, bad) if orders.get("reject", True) else None
        good = await cache.get_or_compile(KEY, compiled)
        again = await cache.get(KEY)
        found = [good.data.decode(), good.origin.value, rejected, again.data.decode()]
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    backend = sys.argv[1]
    anyio.run(
        main,
        json.loads(sys.argv[2]),
        backend="trio" if backend == "trio" else "asyncio",
        backend_options={"use_uvloop": backend == "uvloop"} if backend != "trio" else {},
    )
