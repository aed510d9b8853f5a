"""What the tests of the cache on three loops share: compiles on a lead, odd file systems, and short lives."""

from __future__ import annotations

import functools
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import acache
from acache import _cache
from acache._fs import OsFileSystem
from acache._threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KEY = acache.key(kernel="softmax", arch="sm_90")
SHORT = {"heartbeat_interval": 0.05, "lease_ttl": 0.2}
"""Settings under which a silent holder is found dead within a fifth of a second."""
HANG = 20.0
"""Seconds until something counts as hung; no aim."""
NATIVE = pytest.mark.parametrize(
    "anyio_backend",
    [
        pytest.param(("asyncio", {"debug": True, "use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ],
)
"""For what only asyncio has: ``Task.cancel()``."""
OPERATIONS = (
    "read",
    "head",
    "create",
    "link",
    "rename",
    "unlink",
    "refresh",
    "sync_folder",
    "listdir",
    "survey",
    "stamps",
    "mkdir",
    "touch",
    "open_rw",
    "pread",
    "pwrite",
    "close",
    "exists",
    "process",
)


class Gate:
    """A compile that counts its launches, says when it runs, and ends when told."""

    def __init__(self, result: Any = b"artifact", *, open: bool = False) -> None:
        self.result = result
        self.calls = 0
        self.running = 0
        self.most = 0
        self.cancelled = 0
        self.entered = anyio.Event()
        self.go = anyio.Event()
        if open:
            self.go.set()

    async def __call__(self) -> Any:
        self.calls += 1
        self.running += 1
        self.most = max(self.most, self.running)
        self.entered.set()
        try:
            await self.go.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


async def never() -> bytes:
    """A compile that must not run."""
    raise AssertionError("this had to be a hit")


class Callers:
    """Tasks that want one key; each keeps the artifact, or the exception, that it was given."""

    def __init__(self, cache: acache.Cache, compile: Callable[[], Any], key: acache.Key = KEY) -> None:
        self.cache = cache
        self.compile = compile
        self.key = key
        self.scopes: list[anyio.CancelScope] = []
        self.results: dict[int, Any] = {}

    def start(self, group: Any, count: int = 1, **options: Any) -> None:
        for _ in range(count):
            self.scopes.append(anyio.CancelScope())
            group.start_soon(self._call, len(self.scopes) - 1, options)

    async def _call(self, number: int, options: dict[str, Any]) -> None:
        with self.scopes[number]:
            try:
                self.results[number] = await self.cache.get_or_compile(self.key, self.compile, **options)
            except Exception as error:
                self.results[number] = error

    async def joined(self, count: int) -> None:
        """Wait until that many wait for the flight."""
        await until(lambda: (flight := flights(self.cache).find(self.key)) and flight.callers == count)


def flights(cache: acache.Cache) -> Any:
    assert cache._live is not None
    return cache._live.flights


async def until(fact: Callable[[], Any]) -> Any:
    """Poll until a fact holds; fail when it does not for long."""
    with anyio.fail_after(HANG):
        while not (answer := fact()):  # noqa: ASYNC110  # most facts here are on disk, and tell nobody
            await anyio.sleep(0.002)
    return answer


def leftovers(directory: Path) -> list[str]:
    """Return what no quiet cache directory holds: leases, seals and temporaries but no folder."""
    names = [path.name for path in directory.rglob("*") if not path.is_dir()]
    return sorted(name for name in names if ".lease" in name or name.startswith(".t."))


def only(directory: Path, suffix: str) -> Path:
    """Return the only file of that kind."""
    (found,) = directory.rglob(f"*{suffix}")
    return found


class StubbornFileSystem(OsFileSystem):
    """The real one, but chosen operations block while it hangs, as those of a dead server's mount do."""

    def __init__(self, operations: tuple[str, ...] = OPERATIONS) -> None:
        self.operations = operations
        self.answering = threading.Event()
        self.answering.set()
        self.waiting = 0
        self.calls = 0
        for name in OPERATIONS:
            setattr(self, name, functools.partial(self._perform, name))

    def _perform(self, name: str, *arguments: Any) -> Any:
        self.calls += 1
        if name in self.operations and not self.answering.is_set():
            self.waiting += 1
            self.answering.wait(HANG)
            self.waiting -= 1
        return getattr(super(), name)(*arguments)

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Let the operations hang; all go on when the block ends."""
        self.answering.clear()
        try:
            yield
        finally:
            self.answering.set()


def cache_on(fs: Any, directory: Path, **options: Any) -> acache.Cache:
    """Make a cache whose file operations are those of ``fs``."""
    settings = acache.Settings(**options.pop("settings", {}))
    cache = acache.Cache(directory, settings=settings, **options)
    cache._fs = fs
    return cache


def impatient(monkeypatch: pytest.MonkeyPatch, patience: float, size: int = 8) -> None:
    """Let caches give up on threads that hang after so many seconds."""
    monkeypatch.setattr(_cache, "Workers", functools.partial(Workers, size=size, patience=patience))


def environment() -> dict[str, str]:
    """Return the environment for a script of these tests: this package, and no settings of the caller's."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ACACHE_")}
    return {**kept, "PYTHONPATH": root}
