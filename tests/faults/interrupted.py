"""A program that is ended in the middle of a compile: ``interrupted.py BACKEND ENDING DIRECTORY LOG MODE``.

ENDING is how: it ``waits`` for a signal; calls ``sys.exit`` or ``os._exit`` or ``raises`` inside the block
of the cache; ``never-leaves`` it, or ``stops-the-loop`` and closes it, with the compile under way. MODE is
the compiler's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import anyio
import trio

import acache
from acache.compilers import Command

SCRIPT = str(Path(__file__).parents[1] / "process" / "slow_compiler.py")


def request(log: str, mode: str) -> acache.Request:
    argv = [sys.executable, "-I", "-S", SCRIPT, log, "0", mode, "out"]
    return Command(argv, outputs=["out"], toolchain=SCRIPT, env=["ACACHE_TEST_TOKEN"]).request("source")


def launched(log: str) -> bool:
    return os.path.exists(log) and os.path.getsize(log) > 0


async def until_launched(log: str) -> None:
    while not launched(log):  # noqa: ASYNC110
        await anyio.sleep(0.01)


async def compile_it(cache: acache.Cache, log: str, mode: str) -> None:
    with contextlib.suppress(acache.CacheClosedError):
        await cache.compile(request(log, mode))


async def main(ending: str, directory: str, log: str, mode: str) -> None:
    async with acache.Cache(directory) as cache:
        # In no group of ours, which would wrap what ends the program.
        if sys.argv[1] == "trio":
            trio.lowlevel.spawn_system_task(compile_it, cache, log, mode)
        else:
            task = asyncio.create_task(compile_it(cache, log, mode))
            assert not task.done()
        await until_launched(log)
        match ending:
            case "sys.exit":
                sys.exit(3)
            case "os._exit":
                os._exit(3)
            case "raises":
                raise ZeroDivisionError
            case "waits":
                await anyio.sleep(3600)


async def never_leaves(directory: str, log: str, mode: str) -> None:
    """Enter the cache as a careless server does, and forget it."""
    cache = await acache.Cache(directory).__aenter__()
    task = asyncio.create_task(cache.compile(request(log, mode)))
    await until_launched(log)
    assert not task.done()


def stops_the_loop(directory: str, log: str, mode: str) -> None:
    """What some servers do on their way out: tasks are neither cancelled nor awaited."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(main("waits", directory, log, mode))
    while not launched(log):
        loop.call_later(0.05, loop.stop)
        loop.run_forever()
    assert not task.done()
    loop.close()


if __name__ == "__main__":
    name, ending, *rest = sys.argv[1:]
    backend, uvloop = name.removesuffix("+uvloop"), name.endswith("+uvloop")
    options = {"use_uvloop": True} if uvloop else {}
    if ending == "stops-the-loop":
        if uvloop:
            import uvloop as uv

            asyncio.set_event_loop_policy(uv.EventLoopPolicy())
        stops_the_loop(*rest)
    elif ending == "never-leaves":
        anyio.run(never_leaves, *rest, backend=backend, backend_options=options)
    else:
        anyio.run(main, ending, *rest, backend=backend, backend_options=options)
