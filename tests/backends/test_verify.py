"""Every file of a directory is read whole and judged."""

from __future__ import annotations

import errno
import os
import shutil
import tracemalloc

import anyio
import pytest

import acache
from acache import _verify
from acache._fs import OsFileSystem, perform
from acache._host import my_identity
from acache._store import Layout
from tests.cli.test_ls import later_version

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


async def test_what_vanished_meanwhile_is_nothing(cache_dir):
    await lay_out(cache_dir)
    path = entries(cache_dir)[-1]
    path.write_bytes(b"bad")

    class Quicker(OsFileSystem):
        def rename(self, source, target):
            if source == str(path):
                path.unlink()
            super().rename(source, target)

    store = cache(cache_dir)
    store._fs = Quicker()
    async with store:
        report = await store.verify(repair=True)
        assert (report.ok, report.artifacts, report.corrupt) == (True, 1, 0)


async def test_what_cannot_be_read_any_more_is_put_back_and_counted(cache_dir):
    await lay_out(cache_dir)
    path = entries(cache_dir)[-1]
    path.write_bytes(b"bad")

    class Failing(OsFileSystem):
        def link(self, source, target):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), source)  # nor are there links

        def read(self, where, *more):
            if "/.t." in where:
                raise OSError(errno.EIO, os.strerror(errno.EIO), where)
            return super().read(where, *more)

    store = cache(cache_dir)
    store._fs = Failing()
    async with store:
        report = await store.verify(repair=True)
        assert (report.ok, report.unreadable, report.corrupt, report.repaired) == (False, 1, 0, 0)
    assert path.read_bytes() == b"bad"


@pytest.mark.root
@pytest.mark.parametrize("what", ["bad", "good", "later"])
async def test_a_stranger_s_file_is_counted_not_read_and_left(cache_dir, what):
    await lay_out(cache_dir)
    path = entries(cache_dir)[-1]
    if what != "good":
        path.write_bytes(b"bad" if what == "bad" else later_version(path.read_bytes()))
    os.chown(path, 12345, 12345)
    before, taken = path.read_bytes(), []

    class Watching(OsFileSystem):
        def read(self, where, *more):
            file = super().read(where, *more)
            taken.append((where, len(file.data)))
            return file

    store = cache(cache_dir)
    store._fs = Watching()
    async with store:
        report = await store.verify(repair=True)
        assert (report.ok, report.untrusted, report.artifacts) == (True, 1, 1)
        assert (report.corrupt, report.repaired, report.later) == (0, 0, 0)
    assert path.read_bytes() == before
    assert (str(path), 0) in taken


def test_one_file_is_in_memory_at_a_time(cache_dir):
    size, files = 4 << 20, 6

    async def fill():
        async with cache(cache_dir) as store:
            for number in range(files):
                await store.put(key(number), os.urandom(size))

    anyio.run(fill)
    layout = Layout.on(str(cache_dir), acache.Settings(), None, my_identity())
    shards = {}
    for path in entries(cache_dir):  # all in one batch
        shards.setdefault(path.parent.name, []).append(path.name)
    one = max(shards, key=lambda shard: len(shards[shard]))
    names = [name for shard in shards for name in shards[shard]]
    for shard, several in shards.items():
        for name in several if shard != one else ():
            os.rename(cache_dir / "v1" / shard / name, cache_dir / "v1" / one / name)
    findings = _verify.Findings()
    tracemalloc.start()
    try:
        perform(_verify.verify(layout, one, names, findings, repair=False), OsFileSystem())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    report = findings.report()
    assert report.artifacts + report.corrupt == files  # those in another's shard are misplaced
    assert size < peak < 1.5 * size


async def test_cancellation_leaves_between_batches(cache_dir):
    async with cache(cache_dir) as store:
        for number in range(40):
            await store.put(key(number), b"x")
        shard = entries(cache_dir)[0].parent
        for path in entries(cache_dir):
            path.replace(shard / path.name)
        token, scope = anyio.lowlevel.current_token(), anyio.CancelScope()

        class Counting(OsFileSystem):
            seen = 0

            def read(self, where, *more):
                Counting.seen += where.endswith(".art")
                if Counting.seen == 3:
                    anyio.from_thread.run_sync(scope.cancel, token=token)
                return super().read(where, *more)

        store._live.directory.fs = Counting()
        with scope:
            await store.verify(repair=True)
        assert scope.cancelled_caught
        assert 3 <= Counting.seen <= 2 * _verify.BATCH  # a misplaced one is looked at again
