"""Limits: of time, of patience and of processes."""

from __future__ import annotations

import errno

import anyio
import pytest

import acache
from acache._fs import OsFileSystem
from acache._probe import Level
from tests.faults import worker
from tests.faults.leases import leftovers
from tests.process.fleet import Fleet, launches
from tests.process.procs import alive, until_now


def test_a_timeout_is_shared_with_the_waiters_and_not_remembered(anyio_backend, cache_dir, tmp_path, token):
    """B38: a compiler that never ends and ignores TERM is stopped once for all who wait."""
    log = tmp_path / "log"
    settings = {"compile_timeout": 1.5, "kill_grace": 0.2, "hedge_after": None}
    orders = {"directory": str(cache_dir), "log": str(log), "mode": "stubborn", "settings": settings}
    env = {"ACACHE_TEST_TOKEN": token}
    with (
        Fleet(1, anyio_backend, env=env, **orders) as holder,
        Fleet(2, anyio_backend, env=env, **orders) as waiters,
    ):
        waiters.wait_ready()
        holder.release()
        until_now(lambda: launches(log) == 1)
        reports = [*waiters.run(), holder.workers[0].report()]
    assert launches(log) == 1
    assert {(each["error"]["type"], each["error"]["reason"]) for each in reports} == {
        ("CompileTimeoutError", "timeout")
    }
    until_now(lambda: not alive(token))
    assert leftovers(cache_dir) == []
    with Fleet(1, anyio_backend, env=env, **orders) as later:
        (report,) = later.run()
    assert report["origin"] == "compiled"


async def test_a_timeout_counts_from_the_start_and_not_from_the_queue(cache_dir):
    """B38: too many compiles at once must not time each other out."""
    settings = acache.Settings(max_compiles=1, compile_timeout=2)

    async def slowly() -> bytes:
        await anyio.sleep(0.6)
        return b"made"

    async with acache.Cache(cache_dir, settings=settings) as cache, anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(cache.get_or_compile, acache.key(number=number), slowly)
    assert cache.stats().compiles == 4
    assert cache.stats().compile_failures == 0


def test_a_healthy_compile_longer_than_the_wait_fails_nobody(anyio_backend, cache_dir, tmp_path):
    """B5: a 30 s limit meant to expose deadlocks broke healthy builds. Here waiters fall back, by policy."""
    log = tmp_path / "log"
    orders = {"directory": str(cache_dir), "log": str(log), "seconds": 3, "mode": "busy", "max_wait": 1}
    with Fleet(1, anyio_backend, **orders) as holder, Fleet(3, anyio_backend, **orders) as waiters:
        waiters.wait_ready()  # or they come late
        holder.release()
        until_now(lambda: launches(log) == 1)
        reports = [*waiters.run(), holder.workers[0].report()]
    assert launches(log) == 4
    assert len({report["digest"] for report in reports}) == 1
    assert sum(report["stats"]["deadline_compiles"] for report in reports) == 3
    assert leftovers(cache_dir) == []


STRANGER = 54321


@pytest.mark.root
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_want_of_processes_fails_no_compile_that_needs_none(anyio_backend, processes, place):
    """B2: threads count as processes. Without one the cache has no beats and no off-loop reads."""
    place.chmod(0o777)
    orders = {"directory": str(place / "cache"), "uid": STRANGER, "calls": 2, "processes": processes}
    with Fleet(1, anyio_backend, prefix=worker.COMMAND, **orders) as fleet:
        (report,) = fleet.run()
    assert report["errors"] == []
    assert len(report["warnings"]) <= 1
    assert len(report["spans"]) == 1


@pytest.mark.root
def test_a_compiler_that_cannot_be_started_gives_the_lease_back(anyio_backend, place, interpreter):
    """B2: the first builds die on the limit of processes; the next one, elsewhere, compiles at once."""
    place.chmod(0o777)
    orders = {"directory": str(place / "cache"), "uid": STRANGER, "log": str(place / "log")}
    orders |= {"job": "command", "interpreter": interpreter}
    env = {"TMPDIR": str(place)}
    ends = []
    for processes in (1, 2, 3):
        with Fleet(1, anyio_backend, env=env, prefix=worker.COMMAND, processes=processes, **orders) as fleet:
            ends += fleet.run()[0]["errors"]
        assert leftovers(place) == []
    assert len(ends) == 3
    assert all(end.startswith("CompilerCrashedError: the compiler could not be started") for end in ends)
    with Fleet(1, anyio_backend, env=env, prefix=worker.COMMAND, **orders) as fleet:
        (report,) = fleet.run()
    assert (report["origin"], report["errors"]) == ("compiled", [])
    assert report["stats"]["takeovers"] == 0
    assert launches(place / "log") == 1


async def test_a_probe_that_met_a_passing_fault_is_made_again(cache_dir, monkeypatch):
    class NoDescriptors(OsFileSystem):
        out = True

        def create(self, path, chunks, durable):
            if self.out:
                raise OSError(errno.EMFILE, "Too many open files", path)
            super().create(path, chunks, durable)

    async def compile():
        return b"artifact"

    fs = NoDescriptors()
    cache = acache.Cache(cache_dir)
    cache._fs = fs
    async with cache:
        await cache.get_or_compile(acache.key(number=1), compile)
        assert cache.stats().uncoordinated_compiles == 1
        fs.out = False
        await cache.get_or_compile(acache.key(number=2), compile)
        assert cache.stats().uncoordinated_compiles == 2  # not asked again at once
        monkeypatch.setattr(cache._live.directory, "_probe_again", 0.0)
        await cache.get_or_compile(acache.key(number=3), compile)
        assert cache.stats().uncoordinated_compiles == 2
        assert cache._live.directory.level is Level.SHARED
