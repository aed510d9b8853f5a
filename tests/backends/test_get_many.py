"""Many keys in one trip to a thread."""

from __future__ import annotations

import errno
import logging
import os

import anyio
import pytest

import acache
from acache import events
from acache._fs import OsFileSystem
from acache._shelf import MANY


def key(number):
    return acache.key(number=number)


def cache(folder, on_event=None, **settings):
    return acache.Cache(folder, settings=acache.Settings(**settings), on_event=on_event)


async def fill(folder, numbers):
    async with cache(folder) as store:
        for number in numbers:
            await store.put(key(number), b"%d" % number)


def count_trips(store):
    """Count the trips to a worker thread from now on."""
    trips = []
    run = store._live.workers.run

    async def counted(call, **words):
        trips.append(call)
        return await run(call, **words)

    store._live.workers.run = counted
    return trips


async def test_what_is_there_comes_in_the_order_asked_for(cache_dir):
    await fill(cache_dir, range(0, 20, 2))
    async with cache(cache_dir) as store:
        await store.get(key(8))
        found = await store.get_many([key(8), key(3), key(0), key(8), key(18)])
        assert list(found) == [key(8), key(0), key(18)]
        assert [artifact.data for artifact in found.values()] == [b"8", b"0", b"18"]
        assert [artifact.origin.value for artifact in found.values()] == ["memory", "disk", "disk"]
        assert store.get_nowait(key(18)) is not None
        stats = store.stats()
        assert (stats.memory_hits, stats.disk_hits, stats.misses) == (2, 3, 1)


async def test_hundreds_of_keys_take_one_trip_and_one_more_for_their_recency(cache_dir):
    await fill(cache_dir, range(MANY))
    async with cache(cache_dir) as store:
        await store.get(key(MANY))  # the directory is looked at
        trips = count_trips(store)
        assert len(await store.get_many(map(key, range(MANY)))) == MANY
        assert len(trips) == 1
    async with cache(cache_dir, recency_grain=0, memory_bytes=0) as store:
        await store.get(key(MANY))
        trips = count_trips(store)
        await store.get_many([key(number) for number in range(MANY)] * 2)
        assert len(trips) == 2
        for path in cache_dir.glob("v1/*/*.art"):
            os.utime(path, (1000, 1000))
        await store.get_many(map(key, range(MANY)))
        assert all(path.stat().st_mtime > 1000 for path in cache_dir.glob("v1/*/*.art"))


async def test_thousands_of_keys_leave_room_for_others(cache_dir):
    async with cache(cache_dir) as store:
        await store.get(key(0))
        trips = count_trips(store)
        assert await store.get_many(map(key, range(5 * MANY + 1))) == {}
        assert len(trips) == 6
        assert store.stats().misses == 5 * MANY + 2


async def test_what_one_file_is_like_concerns_no_other(cache_dir, caplog):
    await fill(cache_dir, range(10))
    paths = sorted(cache_dir.glob("v1/*/*.art"))
    paths[0].write_bytes(b"bad")

    class Odd(OsFileSystem):
        def read(self, path, limit, *more):
            if path == str(paths[1]):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return super().read(path, limit, *more)

    told = []
    store = cache(cache_dir, told.append)
    store._fs = Odd()
    with caplog.at_level(logging.ERROR, "acache"):
        async with store:
            found = await store.get_many(map(key, range(10)))
            assert len(found) == 8
            assert (store.stats().corrupt, store.stats().store_errors, store.stats().misses) == (1, 1, 2)
    assert {type(event) for event in told} == {
        events.Hit,
        events.Miss,
        events.CorruptEntry,
        events.StoreFault,
    }
    store = cache(cache_dir, strict=True)
    store._fs = Odd()
    async with store:
        with pytest.raises(acache.StoreError):
            await store.get_many(map(key, range(10)))


async def test_what_is_no_key_is_said_before_anything_is_looked_up(cache_dir):
    async with cache(cache_dir) as store:
        with pytest.raises(TypeError, match=r"key must be an acache\.Key, made by"):
            await store.get_many([key(1), "key"])
        assert store.stats().misses == 0
        assert await store.get_many([]) == {}


async def test_when_the_cache_is_off_nothing_is_there(cache_dir):
    await fill(cache_dir, range(3))
    async with cache(cache_dir, mode="off") as store:
        assert await store.get_many(map(key, range(3))) == {}


async def test_cancellation_leaves_at_once(cache_dir):
    async with cache(cache_dir) as store:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.get_many([key(1)])
        assert scope.cancelled_caught
