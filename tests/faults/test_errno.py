"""Every file operation of the main path fails once, in every way that is known of it, and no call does.

Instances are B11 (clean-up fails after the rename succeeded), B24 (the winner of a race is not to be seen)
and B26 (ESTALE under load) of the field reports.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import acache
from acache import _host, _policy
from acache.compilers import Command
from tests.faults.faulty import CHANGES, ERRNOS, Faulty
from tests.process.procs import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

PATIENCE = 20.0
"""Seconds until a call counts as hung; no aim."""
SETTINGS = acache.Settings(
    heartbeat_interval=0.02, lease_ttl=0.2, poll_min=0.005, poll_max=0.02, recency_grain=0, hedge_after=None
)
KEY = acache.key(source="kernel")
RIGHT = b"artifact " * 500
REFUSAL = acache.CompileFailure("diagnostic", "kernel.x:1: error: no", exit_status=1, deterministic=True)


@dataclass(frozen=True)
class Fault:
    """Which operation fails, and how."""

    at: int
    code: str
    done: bool = False
    lasting: bool = False

    def fs(self) -> Faulty:
        return Faulty(self.at, self.code, done=self.done, lasting=self.lasting)


@asynccontextmanager
async def cache_on(folder: Path, fs: Faulty) -> AsyncIterator[acache.Cache]:
    cache = acache.Cache(folder, settings=SETTINGS)
    cache._fs = fs  # type: ignore[assignment]
    with anyio.fail_after(PATIENCE):
        async with cache:
            yield cache


async def make() -> bytes:
    return RIGHT


async def refuse() -> bytes:
    raise acache.CompileError(REFUSAL)


# --- what may happen to a caller: one function per path, which is right or raises -----------------


async def cold(folder: Path, fs: Faulty) -> None:
    """Miss, compile, publish."""
    async with cache_on(folder, fs) as cache:
        artifact = await cache.get_or_compile(KEY, make, label="label")
        assert artifact.data == RIGHT
        assert artifact.origin == "compiled"
        published = cache.stats().published
    await heals(folder, hit=bool(published))


async def warm(folder: Path, fs: Faulty) -> None:
    """Hit."""
    await cold(folder, Faulty())
    async with cache_on(folder, fs) as cache:
        assert (await cache.get_or_compile(KEY, make)).data == RIGHT
    async with cache_on(folder, fs) as cache:
        assert await cache.get(KEY) in (None, acache.Artifact.of(RIGHT))
        await cache.status(KEY)
    await heals(folder, hit=True)


async def waiting(folder: Path, fs: Faulty) -> None:
    """Wait for a live holder, who publishes."""
    begun, finish = anyio.Event(), anyio.Event()

    async def slowly() -> bytes:
        begun.set()
        await finish.wait()
        return RIGHT

    async def soon(cache: acache.Cache) -> None:
        stats = cache.stats
        await until(lambda: fs.failed or len(fs.seen) > 24 or stats().compiles)
        finish.set()

    async with cache_on(folder, Faulty()) as holder, anyio.create_task_group() as group:
        group.start_soon(holder.get_or_compile, KEY, slowly)
        await begun.wait()
        async with cache_on(folder, fs) as waiter:
            group.start_soon(soon, waiter)
            assert (await waiter.get_or_compile(KEY, make)).data == RIGHT
    await heals(folder, hit=True)


async def failing(folder: Path, fs: Faulty) -> None:
    """Miss, compile error, remembered."""
    async with cache_on(folder, fs) as cache:
        with pytest.raises(acache.CompileError) as caught:
            await cache.get_or_compile(KEY, refuse)
        assert caught.value.failure == REFUSAL
    async with cache_on(folder, Faulty()) as cache:
        with pytest.raises(acache.CompileError) as caught:
            await cache.get_or_compile(KEY, refuse)
        assert caught.value.failure == REFUSAL
        await cache.put(KEY, RIGHT)  # clears the failure
    await heals(folder, hit=True)


async def putting(folder: Path, fs: Faulty) -> None:
    """Put, get and delete."""
    async with cache_on(folder, fs) as cache:
        await cache.put(KEY, RIGHT)
        kept = await cache.get(KEY)
        assert kept is not None
        assert kept.data == RIGHT
        await cache.delete(KEY)
        assert cache.get_nowait(KEY) is None
    await heals(folder, hit=False)


async def heals(folder: Path, *, hit: bool) -> None:
    """The fault is over: whatever it left, the next call answers (a hit, if ``hit``), the one after hits."""
    origins = []
    for _ in range(2):
        async with cache_on(folder, Faulty()) as cache:
            artifact = await cache.get_or_compile(KEY, make)
            assert artifact.data == RIGHT
            origins.append(artifact.origin)
            assert cache.stats().store_errors == 0
    assert origins[1] == "disk", origins
    assert not hit or origins[0] == "disk"


# --- all faults of a path -------------------------------------------------------------------------


async def operations(path: Callable[[Path, Faulty], Awaitable[None]], folder: Path) -> list[str]:
    fs = Faulty()
    await path(folder, fs)
    return fs.seen


def faults_of(operations: list[str], most: int) -> Iterator[Fault]:
    """Yield faults of every operation: ``most`` codes for each, in turn."""
    for at, name in enumerate(operations):
        codes = ERRNOS[name]
        for number in range(min(most, len(codes))):
            yield Fault(at, codes[(at * most + number) % len(codes)])
        if name in CHANGES:
            yield Fault(at, codes[at % len(codes)], done=True)


async def survive(path: Any, faults: list[Fault], tmp_path: Path) -> None:
    met = 0
    for number, fault in zip(count(), faults, strict=False):
        folder, fs = tmp_path / str(number), fault.fs()
        try:
            await path(folder, fs)
        except BaseException as error:
            error.add_note(f"{fault} on operation {fs.failed} after {fs.seen[: fault.at]}")
            raise
        met += bool(fs.failed)
        shutil.rmtree(folder)
    assert met > len(faults) / 2  # some come too late: how often is looked meanwhile depends on time


PATHS = [cold, warm, waiting, failing, putting]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
@pytest.mark.parametrize("anyio_backend", [("asyncio", {})], ids=["asyncio"])
async def test_any_one_fault_costs_at_most_a_compile(anyio_backend, path, tmp_path):
    names = await operations(path, tmp_path / "fine")
    await survive(path, list(faults_of(names, 3)), tmp_path)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
async def test_a_sample_of_faults_on_every_loop(path, tmp_path):
    names = await operations(path, tmp_path / "fine")
    await survive(path, list(faults_of(names, 1))[::7], tmp_path)


@pytest.mark.parametrize("anyio_backend", [("asyncio", {})], ids=["asyncio"])
async def test_a_sample_of_faults_as_on_a_network_mount(anyio_backend, monkeypatch, tmp_path):
    """Folders are opened first there, and that may fail too."""
    monkeypatch.setattr(_policy, "classify_mount", lambda *_: "network")
    for path in (cold, warm, failing, putting):
        names = await operations(path, tmp_path / f"fine-{path.__name__}")
        assert ("refresh" in names) == (path in (cold, failing))  # a hit is one open
        (tmp_path / path.__name__).mkdir()
        faults = [fault for fault in faults_of(names, 2) if names[fault.at] == "refresh"]
        await survive(path, faults + list(faults_of(names, 1))[::9], tmp_path / path.__name__)


@pytest.mark.parametrize("code", ["EIO", "ENOSPC", "ESTALE", "EROFS"])
@pytest.mark.parametrize("anyio_backend", [("asyncio", {})], ids=["asyncio"])
async def test_a_disk_that_goes_away_and_comes_back_costs_at_most_compiles(anyio_backend, code, tmp_path):
    for path in PATHS:
        names = await operations(path, tmp_path / f"fine-{path.__name__}")
        faults = [Fault(at, code, lasting=True) for at in range(0, len(names), 3)]
        (tmp_path / path.__name__).mkdir()
        await survive(path, faults, tmp_path / path.__name__)


# --- no answer at all ----------------------------------------------------------------------------


@pytest.mark.parametrize("trips", range(7))
async def test_workers_that_are_all_stuck_fail_no_call(trips, tmp_path):
    """A mount that hangs after so many trips to it: no thread comes back, and no call waits for one."""
    await cold(tmp_path, Faulty())
    settings = replace(SETTINGS, memory_bytes=0)
    async with acache.Cache(tmp_path, settings=settings) as cache:
        live = cache._live
        assert live is not None
        run, made = live.workers.run, 0

        async def stuck(call: Callable[[], Any], *, abandon: bool = False) -> Any:
            nonlocal made
            made += 1
            if made > trips:
                raise OSError(errno.ETIMEDOUT, "stuck")
            return await run(call, abandon=abandon)

        live.workers.run = stuck
        with anyio.fail_after(PATIENCE):
            assert (await cache.get_or_compile(KEY, make)).data == RIGHT
            assert await cache.get(KEY) in (None, acache.Artifact.of(RIGHT))
            await cache.put(KEY, RIGHT)
            await cache.delete(KEY)
            await cache.status(KEY)
            await cache.clear()
            assert (await cache.get_or_compile(KEY, make)).data == RIGHT
            request = Command(["true"], outputs=["out"]).request("source")
            assert await cache.key_of(request)


async def test_a_mount_that_cannot_be_told_is_used_like_a_network(monkeypatch, tmp_path):
    def refuse(_: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(_host, "mount_of", refuse)
    fs = Faulty()
    await cold(tmp_path, fs)
    assert "refresh" in fs.seen
    assert fs.failed == []
