"""A process that does everything a Cache can do, and reports every file operation on the loop's thread.

Run as ``python watched.py BACKEND FOLDER``. Two nets are cast: the ``FileSystem`` seam records the thread of
each operation, and an audit hook (plus wrappers of the calls that raise no audit event, such as `os.stat`)
watches the loop's thread for any file operation at all. Prints a report as JSON.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

import acache
from acache._fs import OsFileSystem
from acache.compilers import Command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

WATCHED = (
    "open",
    "os.",
    "shutil.",
    "tempfile.",
    "subprocess.Popen",
    "glob.",
    "pathlib.",
    "fcntl.",
    "mmap.",
    "socket.getaddrinfo",
)
HARMLESS = ("os.putenv", "os.unsetenv")
SILENT = ("stat", "lstat", "access", "readlink", "statvfs", "pread", "pwrite", "fsync", "read", "write")
"""Functions of `os` that raise no audit event. Loops read and write their wake-up pipes with others."""


class Net:
    """Records what happens on one thread while it is cast, by step."""

    def __init__(self) -> None:
        self.loop = threading.get_ident()
        self.step: str | None = None
        self.catch: dict[str, list[str]] = {}
        sys.addaudithook(self._hook)
        for name in SILENT:
            setattr(os, name, self._wrap(name, getattr(os, name)))

    def _note(self, what: str) -> None:
        if self.step is None or threading.get_ident() != self.loop:
            return
        step, self.step = self.step, None  # formatting a stack reads sources
        where = [f"{Path(at.filename).name}:{at.lineno}" for at in traceback.extract_stack(limit=8)[:-2]]
        self.catch.setdefault(step, []).append(f"{what} at {' < '.join(reversed(where))}")
        self.step = step

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.step is not None and event.startswith(WATCHED) and event not in HARMLESS:
            self._note(f"{event} {arguments[:1]}")

    def _wrap(self, name: str, function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            self._note(f"os.{name} {arguments[:1]}")
            return function(*arguments, **named)

        return wrapper


class Seam(OsFileSystem):
    """The real file system, counting operations by whether they ran on the loop's thread."""

    def __init__(self, loop: int) -> None:
        self.on_loop: list[str] = []
        self.elsewhere = 0
        for name in [each for each in dir(OsFileSystem) if not each.startswith("_")]:
            setattr(self, name, self._wrap(name, loop, getattr(super(), name)))

    def _wrap(self, name: str, loop: int, operation: Any) -> Any:
        def perform(*arguments: Any) -> Any:
            if threading.get_ident() == loop:
                self.on_loop.append(name)
            else:
                self.elsewhere += 1
            return operation(*arguments)

        return perform


def spoil(directory: str) -> None:
    for entry in Path(directory).rglob("*.art"):
        entry.write_bytes(b"bad")


def touch_files(path: str) -> int:
    """Do on the loop's thread what must not be done there; return how much that is."""
    with open(path, "rb") as file:
        file.read()
    fd = os.open(path, os.O_RDONLY)
    os.pread(fd, 1, 0)
    os.close(fd)
    os.stat(path)
    os.path.exists(path)
    os.listdir(os.path.dirname(path))
    return 6


async def until(fact: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(20):
        while not await fact():  # noqa: ASYNC110  # these facts are on disk
            await anyio.sleep(0.005)


async def compile() -> bytes:
    return b"x" * 100_000


async def fail() -> bytes:
    failure = acache.CompileFailure("diagnostic", "k.x:1: error: no", exit_status=1, deterministic=True)
    raise acache.CompileError(failure)


async def main(folder: str) -> None:
    net = Net()
    seam = Seam(net.loop)
    directory = os.path.join(folder, "cache")
    source = Path(__file__)
    key, other = acache.key(n=1), acache.key(n=2)
    copy = Command(["cp", "in", "out"], inputs=["in"], outputs=["out"])

    def make(**settings: Any) -> acache.Cache:
        lower = [os.path.join(folder, "image")]
        chosen = acache.Settings(recency_grain=0, read_only_directories=lower, **settings)
        cache = acache.Cache(directory, settings=chosen)
        cache._fs = seam
        return cache

    async def shared_failure(cache: acache.Cache) -> None:
        try:
            await cache.get_or_compile(other, fail)
        except acache.CompileError:
            return
        raise AssertionError("this had to fail")

    async def beaten(times: int) -> bool:
        status = await cache.status(acache.key(n=3))
        return status.state == "compiling" and (status.beats or 0) >= times

    async def wait_for_a_peer() -> None:
        go = anyio.Event()

        async def slow() -> bytes:
            await go.wait()
            return b"slow"

        async with make(heartbeat_interval=0.01) as peer, anyio.create_task_group() as group:
            group.start_soon(peer.get_or_compile, acache.key(n=3), slow)
            await until(lambda: beaten(0))
            group.start_soon(cache.get_or_compile, acache.key(n=3), compile)
            await until(lambda: beaten(3))
            go.set()

    steps: list[str] = []

    async def step(name: str, call: Any) -> Any:
        steps.append(name)
        net.step = name
        try:
            return await call
        finally:
            net.step = None

    cache = make()
    await step("enter", cache.__aenter__())
    await step("miss and publish", cache.get_or_compile(key, compile, label="labelled"))
    await step("memory hit", cache.get_or_compile(key, compile))
    await step("failure", shared_failure(cache))
    await step("remembered failure", shared_failure(cache))
    await step("a compiler's miss", cache.compile(copy.request(source, label="copy")))
    await step("a peer's artifact", wait_for_a_peer())
    await step("leave", cache.__aexit__(None, None, None))
    cache = make(memory_bytes=0)
    await step("enter again", cache.__aenter__())
    artifact = await step("disk hit", cache.get_or_compile(key, compile, label="labelled"))
    await step("a compiler's hit", cache.compile(copy.request(source)))
    await step("get", cache.get(key))
    await step("get nothing", cache.get(acache.key(n=4)))
    await step("get many", cache.get_many([key, acache.key(n=4), acache.key(baked=1)]))
    await step("status", cache.status(key))
    await step("write_to", artifact.write_to(os.path.join(folder, "written")))
    await step("put", cache.put(key, b"y"))
    await step("invalidate", cache.invalidate(key, artifact))
    await step("put again", cache.put(key, b"z"))
    await step("verify", cache.verify(repair=True))
    await step("trim", cache.trim(max_bytes=100_000, max_age=1e6))
    await step("entries", cache.entries())
    await step("delete", cache.delete(key))
    spoil(directory)
    await step("heal", cache.compile(copy.request(source)))
    await step("clear", cache.clear())
    await step("leave again", cache.__aexit__(None, None, None))
    report = {"catch": net.catch, "on_loop": seam.on_loop, "elsewhere": seam.elsewhere, "steps": steps}
    net.step = "self-test"
    wanted = touch_files(__file__)
    net.step = None
    report["missed"] = wanted - len(net.catch.pop("self-test"))
    print(json.dumps(report))


if __name__ == "__main__":
    backend, options = json.loads(sys.argv[1])
    options.pop("debug", None)  # asyncio's debug mode reads sources, to tell where a callback came from
    anyio.run(functools.partial(main, sys.argv[2]), backend=backend, backend_options=options)
