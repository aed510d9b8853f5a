"""Every file of a directory is read whole and judged."""

from __future__ import annotations

import os
import shutil

import anyio
import pytest

import acache
from acache._fs import OsFileSystem

REFUSED = acache.CompileFailure("diagnostic", "k.x:1: error: no", exit_status=1, deterministic=True)


def key(number):
    return acache.key(number=number)


def cache(folder, namespace=None, **settings):
    return acache.Cache(folder, settings=acache.Settings(**settings), namespace=namespace)


async def failing():
    raise acache.CompileError(REFUSED)


async def quick():
    return b"quick"


async def lay_out(folder):
    """Lay two artifacts, one in a namespace, a mark and a failure."""
    async with cache(folder, min_compile_seconds=100) as store:
        await store.put(key(0), b"x" * 5000)
        await store.get_or_compile(key(1), quick)
        with pytest.raises(acache.CompileError):
            await store.get_or_compile(key(2), failing)
    async with cache(folder, "team") as store:
        await store.put(key(0), b"y")


def entries(folder):
    return sorted(folder.glob("v1/*/*.art"), key=lambda path: path.stat().st_size)


async def test_all_is_well(cache_dir):
    async with cache(cache_dir) as store:
        assert await store.verify() == acache.VerifyReport()
        await lay_out(cache_dir)
        report = await store.verify()
        assert report.ok
        size = sum(path.stat().st_size for path in entries(cache_dir)[1:])
        assert report == acache.VerifyReport(artifacts=2, size=size, marks=1, failures=1)


@pytest.mark.parametrize("offset", [0, 70, 4096, -1])
async def test_one_flipped_byte_is_found_and_repaired(cache_dir, offset):
    await lay_out(cache_dir)
    path = entries(cache_dir)[-1]
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    async with cache(cache_dir) as store:
        report = await store.verify()
        assert (report.ok, report.artifacts, report.corrupt, report.repaired) == (False, 1, 1, 0)
        assert [where for where, _ in report.faults] == [str(path)]
        assert path.exists()
        report = await store.verify(repair=True)
        assert (report.ok, report.corrupt, report.repaired) == (True, 1, 1)
        assert not path.exists()
        assert (await store.verify()).corrupt == 0
    assert not list(cache_dir.glob("v1/*/.t.*"))


async def test_an_entry_under_another_s_name_is_corrupt(cache_dir):
    await lay_out(cache_dir)
    path = entries(cache_dir)[-1]
    wrong = path.with_name("0" * 62 + ".art")
    shutil.copy(path, wrong)
    shutil.copy(path, path.with_suffix(".err"))
    async with cache(cache_dir) as store:
        report = await store.verify(repair=True)
        assert (report.corrupt, report.repaired, report.artifacts) == (2, 2, 2)
        assert {why for _, why in report.faults} == {"it describes another key than its name"}
    assert path.exists()


async def test_what_is_planted_is_found_and_harmless(cache_dir):
    await lay_out(cache_dir)
    shard = entries(cache_dir)[-1].parent
    os.mkfifo(shard / ("1" * 62 + ".art"))
    (shard / ("2" * 62 + ".art")).symlink_to("/etc/passwd")
    (shard / "readme.art").write_bytes(b"no entry's name")
    with anyio.fail_after(20):
        async with cache(cache_dir) as store:
            report = await store.verify(repair=True)
            assert (report.corrupt, report.repaired, report.artifacts) == (2, 2, 2)
    assert (shard / "readme.art").exists()
    assert os.stat("/etc/passwd").st_size


async def test_what_was_replaced_meanwhile_stays(cache_dir):
    await lay_out(cache_dir)
    path = entries(cache_dir)[-1]
    good = path.read_bytes()
    path.write_bytes(b"bad")

    class Late(OsFileSystem):
        def rename(self, source, target):
            if source == str(path):
                path.write_bytes(good)
            super().rename(source, target)

    store = cache(cache_dir)
    store._fs = Late()
    async with store:
        report = await store.verify(repair=True)
        assert (report.ok, report.corrupt, report.repaired) == (True, 0, 0)
        assert path.read_bytes() == good


@pytest.mark.parametrize("mode", ["readonly", "off"])
async def test_nothing_is_removed_where_nothing_may_be_written(cache_dir, mode):
    await lay_out(cache_dir)
    path = entries(cache_dir)[-1]
    path.write_bytes(b"bad")
    async with cache(cache_dir, mode=mode) as store:
        report = await store.verify(repair=True)
        assert (report.ok, report.corrupt, report.repaired) == (False, 1, 0)
    assert path.exists()


async def test_others_go_on_meanwhile(cache_dir):
    """A repair beside publications and evictions removes nothing that is good."""
    async with (
        cache(cache_dir, max_bytes=40 * 8192, max_entry_bytes=8192, memory_bytes=0) as store,
        cache(cache_dir) as other,
        anyio.create_task_group() as group,
    ):
        done = False

        async def publish():
            nonlocal done
            for number in range(120):
                await store.put(key(number), b"x" * 3000)
            done = True

        group.start_soon(publish)
        while not done:
            report = await other.verify(repair=True)
            assert (report.corrupt, report.unreadable) == (0, 0)
        left = (await other.verify()).artifacts
        assert left == store.stats().published - store.stats().evicted


async def test_cancellation_leaves_between_batches(cache_dir):
    await lay_out(cache_dir)
    async with cache(cache_dir) as store:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.verify()
        assert scope.cancelled_caught
