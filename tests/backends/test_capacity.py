"""Capacity on every loop: publications evict, readers go on, trimming, and roots that cannot be written."""

from __future__ import annotations

import errno
import logging
import os

import anyio
import pytest

import acache
from acache import events
from acache._errors import StoreError
from acache._fs import OsFileSystem
from acache.integrations.aiofiles import open_part
from tests.backends.worlds import NATIVE

pytestmark = pytest.mark.anyio

PIECE = b"x" * 8000
SIZE = 4096 + len(PIECE)
"""Bytes of such an entry's file."""
ROOM_FOR_EIGHT = {"max_bytes": 8 * SIZE, "max_entry_bytes": 4 * SIZE, "memory_bytes": 0}


def cache(folder, on_event=None, **settings):
    return acache.Cache(folder, settings=acache.Settings(**{**ROOM_FOR_EIGHT, **settings}), on_event=on_event)


def key(number):
    return acache.key(number=number)


def entries(folder):
    return sorted(folder.glob("v1/*/*.art"))


def age(path, seconds):
    """Let a file look as if it was used that long ago."""
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


async def fill(store, numbers, folder):
    """Put entries of which each was used a minute before the next."""
    paths = {}
    for number in numbers:
        known = set(entries(folder))
        await store.put(key(number), PIECE)
        (paths[number],) = set(entries(folder)) - known
        for path in paths.values():
            if path.exists():
                age(path, 60)
    return paths


async def present(store, numbers):
    return [number for number in numbers if await store.get(key(number)) is not None]


async def test_a_put_evicts_the_least_recently_used(cache_dir):
    told = []
    async with cache(cache_dir, told.append) as store:
        await fill(store, range(8), cache_dir)
        assert store.stats().evicted == 0
        assert await store.get(key(0)) is not None  # and is now the last that was used
        await store.put(key(8), PIECE)
        assert await present(store, range(9)) == [0, 2, 3, 4, 5, 6, 7, 8]
        assert store.stats().evicted == 1
    assert [event for event in told if isinstance(event, events.Evicted)] == [
        events.Evicted(entries=1, size=SIZE)
    ]


async def test_a_compile_evicts_too_and_its_callers_get_their_artifact(cache_dir):
    async def compiled():
        return PIECE

    async with cache(cache_dir) as store:
        await fill(store, range(8), cache_dir)
        artifact = await store.get_or_compile(key(8), compiled)
        assert (artifact.origin, artifact.data) == (acache.Origin.COMPILED, PIECE)
        assert await present(store, range(9)) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert store.stats().evicted == 1


async def test_compiles_in_parallel_leave_no_more_than_there_is_room_for(cache_dir):
    async def compiled():
        await anyio.lowlevel.checkpoint()
        return PIECE

    async with cache(cache_dir, max_compiles=8) as store, anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(store.get_or_compile, key(number), compiled)
    assert 1 <= len(entries(cache_dir)) <= 8
    async with cache(cache_dir) as store:
        assert all(
            [(await store.get_or_compile(key(number), compiled)).data == PIECE for number in range(50)]
        )


async def test_a_count_is_a_limit_too(cache_dir):
    async with cache(cache_dir, max_bytes=1 << 30, max_entries=5) as store:
        for number in range(20):
            await store.put(key(number), PIECE)
            assert len(entries(cache_dir)) <= 5
        assert await store.get(key(19)) is not None


async def test_who_reads_an_entry_that_is_evicted_reads_on(cache_dir):
    async with cache(cache_dir) as store:
        paths = await fill(store, range(8), cache_dir)
        artifact = await store.get(key(0))
        for path in paths.values():
            age(path, 3600)
        age(paths[0], 3600)
        for number in range(8, 16):
            await store.put(key(number), PIECE)
        assert not paths[0].exists()
        assert artifact.data == PIECE
        assert await store.get(key(0)) is None


@NATIVE
async def test_who_streams_an_entry_that_is_evicted_gets_all_of_it(cache_dir):
    async with cache(cache_dir) as store:
        paths = await fill(store, range(8), cache_dir)
        async with open_part(store, key(0)) as part:
            age(paths[0], 7200)
            await store.put(key(8), PIECE)
            assert not paths[0].exists()
            assert b"".join([chunk async for chunk in part]) == PIECE


async def test_a_smaller_capacity_than_before_is_met_group_by_group(cache_dir):
    async with cache(cache_dir, max_bytes=1 << 30) as store:
        await fill(store, range(30), cache_dir)
    assert len(entries(cache_dir)) == 30
    async with cache(cache_dir) as store:
        await store.put(key(30), PIECE)
        assert len(entries(cache_dir)) == 8
        assert store.stats().evicted == 23


async def test_folders_of_others_are_a_fault_that_is_told_and_no_more(cache_dir, caplog):
    class Refusing(OsFileSystem):
        def unlink(self, path):
            if path.endswith(".art"):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
            super().unlink(path)

    store = cache(cache_dir)
    store._fs = Refusing()
    with caplog.at_level(logging.WARNING, "acache"):
        async with store:
            for number in range(12):
                await store.put(key(number), PIECE)
            assert await present(store, range(12)) == list(range(12))
            assert store.stats().evicted == 0
            assert store.stats().store_errors > 0
    assert [record.getMessage() for record in caplog.records if "evict" in record.getMessage()] == [
        f"cache directory {cache_dir}: evict failed: Permission denied; what it cannot hold is compiled again"
    ]
    store = cache(cache_dir, strict=True)
    store._fs = Refusing()
    async with store:
        with pytest.raises(StoreError, match="evict failed"):
            await store.put(key(12), PIECE)
        assert await store.get(key(12)) is not None


# --- trim --------------------------------------------------------------------------------------------------


async def test_trim_removes_the_least_recently_used_of_all_namespaces(cache_dir):
    async with cache(cache_dir, max_bytes=1 << 30) as store:
        await fill(store, range(6), cache_dir)
    async with acache.Cache(cache_dir, namespace="other", settings=acache.Settings(memory_bytes=0)) as other:
        await other.put(key(0), PIECE)
        report = await other.trim(max_bytes=3 * SIZE)
        assert report == acache.TrimReport(7, 7 * SIZE, 4, 4 * SIZE)
        assert (report.kept, report.kept_size) == (3, 3 * SIZE)
        assert other.stats().evicted == 4
        assert await other.get(key(0)) is not None
    async with cache(cache_dir) as store:
        assert await present(store, range(6)) == [4, 5]


async def test_trim_by_age(cache_dir):
    async with cache(cache_dir, max_bytes=1 << 30) as store:
        await fill(store, range(5), cache_dir)  # 5, 4, 3, 2, 1 minutes old
        report = await store.trim(max_age=150)
        assert (report.evicted, report.kept) == (3, 2)
        assert await present(store, range(5)) == [3, 4]
        assert (await store.trim(max_age=1e6)).evicted == 0


async def test_trim_without_arguments_is_the_capacity_of_the_settings(cache_dir):
    async with cache(cache_dir, max_bytes=1 << 30) as store:
        await fill(store, range(12), cache_dir)
        assert (await store.trim()).evicted == 0
    async with cache(cache_dir) as store:
        assert (await store.trim()).evicted == 4
    async with cache(cache_dir, max_entries=3) as store:
        assert (await store.trim()).evicted == 5


async def test_trim_of_nothing(cache_dir):
    async with cache(cache_dir) as store:
        assert await store.trim(max_bytes=0) == acache.TrimReport()


@pytest.mark.parametrize("mode", ["readonly", "off"])
async def test_trim_only_says_what_would_go_where_nothing_may_be_written(cache_dir, mode):
    async with cache(cache_dir, max_bytes=1 << 30) as store:
        await fill(store, range(3), cache_dir)
    async with cache(cache_dir, mode=mode) as store:
        report = await store.trim(max_bytes=SIZE)
        assert (report.evicted, report.dry_run) == (2, True)
        assert store.stats().evicted == 0
    assert len(entries(cache_dir)) == 3


async def test_trim_can_be_cancelled_between_batches(cache_dir):
    async with cache(cache_dir, max_bytes=1 << 30) as store:
        for number in range(200):
            await store.put(key(number), PIECE)
        with anyio.CancelScope() as scope:

            class Counting(OsFileSystem):
                gone = 0

                def unlink(self, path):
                    super().unlink(path)
                    Counting.gone += path.endswith(".art")
                    if Counting.gone == 10:
                        anyio_cancel()

            token = anyio.lowlevel.current_token()

            def anyio_cancel():
                anyio.from_thread.run_sync(scope.cancel, token=token)

            store._live.directory.fs = Counting()
            await store.trim(max_bytes=0)
        assert scope.cancelled_caught
        assert 10 <= Counting.gone <= 64
        assert len(entries(cache_dir)) == 200 - Counting.gone
        assert store.stats().evicted == Counting.gone


async def test_what_trim_is_asked_must_make_sense(cache_dir):
    async with cache(cache_dir) as store:
        for wrong in (-1, 1.5, True, "1MiB"):
            with pytest.raises(ValueError, match="max_bytes must be a whole number of bytes"):
                await store.trim(max_bytes=wrong)
        for wrong in (-1, float("nan"), "1d", True):
            with pytest.raises(ValueError, match="max_age must be seconds"):
                await store.trim(max_age=wrong)


async def test_an_entry_above_the_limit_pushes_nothing_out(cache_dir):
    async def compiled():
        return b"x" * (5 * SIZE)

    async with cache(cache_dir) as store:
        await fill(store, range(8), cache_dir)
        assert (await store.get_or_compile(key(8), compiled)).size == 5 * SIZE
        assert len(await present(store, range(8))) >= 7  # its mark is small, and takes room
        with pytest.raises(ValueError, match="max_entry_bytes allows"):
            await store.put(key(9), b"x" * (5 * SIZE))
