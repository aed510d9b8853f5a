"""Streaming an entry's part: the very bytes or none, whatever happens to its file or its reader meanwhile."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading

import anyio
import pytest
from blockbuster import BlockingError, blockbuster_ctx

import acache
from acache._fs import OsFileSystem
from acache.integrations.aiofiles import PartStream, open_part, part_of
from tests.backends.worlds import HANG, KEY, NATIVE, cache_on, environment, only, until

BODY = bytes(range(256)) * 4096  # 1 MiB
PARTS = {"cubin": BODY, "map": b"small", "nothing": b""}
WHOLE = acache.Artifact(PARTS, {"registers": 40})


@pytest.fixture
async def published(cache_dir):
    """Publish an artifact with another cache, so that only its file is left of it; returns the file."""
    async with acache.Cache(cache_dir) as cache:
        await cache.put(KEY, WHOLE, label="softmax")
    return only(cache_dir, ".art")


async def read(part):
    return [chunk async for chunk in part]


def change(path, at, data):
    """Write into a file in place, as no program of ours ever does."""
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        file.write(data)


def offset_of(path, part):
    at = path.read_bytes().find(part)
    assert at > 0
    return at


# --- what it yields ----------------------------------------------------------------------------------------


@NATIVE
@pytest.mark.parametrize("size", [1 << 20, 100_000, 1 << 21])
async def test_a_part_comes_in_chunks_and_its_size_is_known_before(published, cache_dir, size):
    async with acache.Cache(cache_dir) as cache:
        async with open_part(cache, KEY, chunk_size=size) as part:
            assert (part.name, part.size, part.metadata) == ("cubin", len(BODY), {"registers": 40})
            assert part.origin is acache.Origin.DISK
            chunks = await read(part)
        assert b"".join(chunks) == BODY
        assert max(map(len, chunks)) <= size
        stats = cache.stats()
        assert (stats.disk_hits, stats.misses, stats.bytes_read) == (1, 0, len(BODY))
        assert cache.get_nowait(KEY) is None


@NATIVE
@pytest.mark.parametrize("name", PARTS)
async def test_every_part_by_name(published, cache_dir, name):
    async with acache.Cache(cache_dir) as cache, open_part(cache, KEY, name) as part:
        assert part.size == len(PARTS[name])
        assert b"".join(await read(part)) == PARTS[name]


@NATIVE
async def test_what_is_in_memory_is_streamed_from_there(published, cache_dir):
    async with acache.Cache(cache_dir) as cache:
        await cache.get(KEY)
        published.unlink()
        async with open_part(cache, KEY, chunk_size=1000) as part:
            assert part.origin is acache.Origin.MEMORY
            chunks = await read(part)
        assert b"".join(chunks) == BODY
        assert {len(chunk) for chunk in chunks[:-1]} == {1000}
        assert cache.stats().memory_hits == 1


async def test_an_artifact_in_memory_needs_no_cache_and_no_asyncio():
    part = part_of(WHOLE, "map", chunk_size=2)
    assert (part.size, part.origin) == (5, None)
    assert await read(part) == [b"sm", b"al", b"l"]
    assert await read(part_of(WHOLE, "nothing")) == []


@NATIVE
async def test_many_readers_at_once(published, cache_dir):
    done = []

    async def one(cache):
        async with open_part(cache, KEY, chunk_size=1 << 16) as part:
            done.append(b"".join(await read(part)) == BODY)

    async with acache.Cache(cache_dir) as cache, anyio.create_task_group() as group:
        for _ in range(40):
            group.start_soon(one, cache)
    assert done == [True] * 40


# --- what it does not find ---------------------------------------------------------------------------------


@NATIVE
async def test_nothing_there_is_none_and_one_miss(cache_dir):
    async with acache.Cache(cache_dir) as cache:
        async with open_part(cache, KEY) as part:
            assert part is None
        assert cache.stats().misses == 1


@NATIVE
@pytest.mark.parametrize("mode", ["off", "readonly"])
async def test_modes(published, cache_dir, mode):
    before = published.stat().st_mtime_ns
    settings = acache.Settings(mode=mode, recency_grain=0)
    async with acache.Cache(cache_dir, settings=settings) as cache, open_part(cache, KEY) as part:
        assert (part is None) == (mode == "off")
    assert published.stat().st_mtime_ns == before


@NATIVE
async def test_a_hit_counts_as_use(published, cache_dir):
    os.utime(published, (1, 1))
    async with acache.Cache(cache_dir) as cache, open_part(cache, KEY):
        assert published.stat().st_mtime > 1


@NATIVE
async def test_another_namespace_is_another_world(published, cache_dir):
    async with acache.Cache(cache_dir, namespace="other") as cache, open_part(cache, KEY) as part:
        assert part is None


@NATIVE
async def test_an_unknown_part_is_named_with_those_that_there_are(published, cache_dir):
    async with acache.Cache(cache_dir) as cache:
        for _ in range(2):  # from the file, then from memory
            with pytest.raises(KeyError, match=r"no part 'ptx'.*'cubin', 'map', 'nothing'"):
                async with open_part(cache, KEY, "ptx"):
                    pass
            await cache.get(KEY)


def _flip(path):
    change(path, offset_of(path, BODY), b"\xff")


def _flip_last(path):
    change(path, offset_of(path, BODY) + len(BODY) - 1, b"\x00")


def _flip_header(path):
    change(path, 100, b"\x00")


def _cut_short(path):
    os.truncate(path, path.stat().st_size - 1)


def _cut_into_the_part(path):
    os.truncate(path, offset_of(path, BODY) + len(BODY) - 1)


def _empty(path):
    os.truncate(path, 0)


def _grow(path):
    with open(path, "ab") as file:
        file.write(b"more")


def _link(path):
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def _pipe(path):
    path.unlink()
    os.mkfifo(path)


def _folder(path):
    path.unlink()
    path.mkdir()


@NATIVE
@pytest.mark.parametrize(
    "damage", [_flip, _flip_last, _flip_header, _cut_short, _empty, _grow, _link, _pipe, _folder]
)
async def test_a_bad_entry_is_none_and_heals(published, cache_dir, damage):
    damage(published)

    async def compile():
        return WHOLE

    async with acache.Cache(cache_dir) as cache:
        async with open_part(cache, KEY) as part:
            assert part is None
        stats = cache.stats()
        assert (stats.corrupt, stats.misses, stats.store_errors) == (1, 1, 0)
        await cache.get_or_compile(KEY, compile)
    async with acache.Cache(cache_dir) as cache, open_part(cache, KEY) as part:
        assert b"".join(await read(part)) == BODY


@NATIVE
async def test_a_strict_cache_raises_for_a_bad_entry(published, cache_dir):
    _flip(published)
    async with acache.Cache(cache_dir, settings=acache.Settings(strict=True)) as cache:
        with pytest.raises(acache.CorruptEntryError):
            async with open_part(cache, KEY):
                pass


@NATIVE
@pytest.mark.root
async def test_an_entry_of_a_stranger_is_not_believed(published, cache_dir):
    os.chown(published, 4711, 4711)
    async with acache.Cache(cache_dir) as cache:
        async with open_part(cache, KEY) as part:
            assert part is None
        assert cache.stats().untrusted == 1


# --- what happens while it streams -------------------------------------------------------------------------


@NATIVE
@pytest.mark.parametrize("damage", [_flip_last, _cut_into_the_part, _empty])
async def test_a_file_that_changes_on_the_way_never_reaches_its_size(published, cache_dir, damage):
    got = []

    async def reader(cache):
        async with open_part(cache, KEY, "cubin", chunk_size=1 << 16) as part:
            async for chunk in part:
                if not got:
                    damage(published)
                got.append(chunk)

    async with acache.Cache(cache_dir) as cache:
        with pytest.raises(acache.CorruptEntryError, match="changed while it was streamed"):
            await reader(cache)
    assert 0 < sum(map(len, got)) < len(BODY)


@NATIVE
@pytest.mark.parametrize("how", ["delete", "replace", "unlink", "clear"])
async def test_an_entry_that_goes_on_the_way_is_delivered_whole(published, cache_dir, how):
    async with acache.Cache(cache_dir) as cache:
        async with open_part(cache, KEY, chunk_size=1 << 16) as part:
            got = []
            async for chunk in part:
                if not got:
                    match how:
                        case "delete":
                            assert await cache.delete(KEY)
                        case "replace":
                            await cache.put(KEY, b"another")
                        case "unlink":
                            published.unlink()
                        case "clear":
                            assert await cache.clear() == 1
                got.append(chunk)
        assert b"".join(got) == BODY
        after = await cache.get(KEY)
        assert (after and after.data) == (b"another" if how == "replace" else None)


def opened(path):
    """Return how often this process has a file open; its name may be gone."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)") == str(path)
        except FileNotFoundError:
            continue
    return found


@NATIVE
@pytest.mark.parametrize("how", ["scope", "task", "error", "break"])
async def test_a_reader_that_leaves_closes_the_file(published, cache_dir, how):
    started = anyio.Event()

    async def reader(cache):
        async with open_part(cache, KEY, chunk_size=1 << 12) as part:
            async for _ in part:
                assert opened(published) == 1
                started.set()
                if how == "error":
                    raise ConnectionResetError
                if how == "break":
                    break
                await anyio.sleep(HANG)

    async with acache.Cache(cache_dir) as cache:
        match how:
            case "scope":
                async with anyio.create_task_group() as group:
                    group.start_soon(reader, cache)
                    await started.wait()
                    group.cancel_scope.cancel()
            case "task":
                task = asyncio.create_task(reader(cache))
                await started.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            case "error":
                with pytest.raises(ConnectionResetError):
                    await reader(cache)
            case "break":
                await reader(cache)
        await until(lambda: not opened(published))


@NATIVE
async def test_a_stream_outlives_the_cache(published, cache_dir):
    async with acache.Cache(cache_dir) as cache:
        context = open_part(cache, KEY, chunk_size=1 << 16)
        part = await context.__aenter__()
    assert b"".join(await read(part)) == BODY
    await context.__aexit__(None, None, None)
    await until(lambda: not opened(published))


# --- a disk that fails or hangs ----------------------------------------------------------------------------


class Disk(OsFileSystem):
    """Fails or hangs when an entry is opened to be held."""

    def __init__(self, *codes):
        self.codes = list(codes)
        self.answering = threading.Event()
        self.answering.set()
        self.asked = 0

    def hold(self, path, limit):
        self.asked += 1
        self.answering.wait(HANG)
        if self.codes:
            raise OSError(self.codes.pop(0), "the disk says no", path)
        return super().hold(path, limit)


@NATIVE
async def test_a_disk_that_fails_is_a_miss(published, cache_dir):
    async with cache_on(Disk(errno.EIO), cache_dir) as cache:
        async with open_part(cache, KEY) as part:
            assert part is None
        stats = cache.stats()
        assert (stats.store_errors, stats.misses) == (1, 1)


@NATIVE
async def test_a_disk_that_fails_raises_in_a_strict_cache(published, cache_dir):
    async with cache_on(Disk(errno.EIO), cache_dir, settings={"strict": True}) as cache:
        with pytest.raises(acache.StoreError):
            async with open_part(cache, KEY):
                pass


@NATIVE
async def test_a_stale_handle_is_opened_anew(published, cache_dir):
    async with cache_on(Disk(errno.ESTALE), cache_dir) as cache, open_part(cache, KEY) as part:
        assert part.size == len(BODY)


@NATIVE
async def test_a_disk_that_hangs_holds_up_neither_loop_nor_cancellation(published, cache_dir):
    disk = Disk()
    async with cache_on(disk, cache_dir) as cache:
        disk.answering.clear()
        try:
            async with anyio.create_task_group() as group:

                async def reader():
                    async with open_part(cache, KEY):
                        raise AssertionError("opened by a disk that hangs")

                group.start_soon(reader)
                await until(lambda: disk.asked)  # the loop goes on
                group.cancel_scope.cancel()
            assert not opened(published)
        finally:
            disk.answering.set()
    await until(lambda: not opened(published))


@NATIVE
async def test_no_file_is_touched_on_the_loop_s_thread(published, cache_dir):
    async with acache.Cache(cache_dir) as cache:
        with blockbuster_ctx():
            with pytest.raises(BlockingError):
                published.read_bytes()
            async with open_part(cache, KEY) as part:
                chunks = await read(part)
            async with open_part(cache, acache.key(of="absent")) as absent:
                assert absent is None
            async with open_part(cache, KEY) as part:
                pass  # left unread
    assert b"".join(chunks) == BODY


# --- wrong calls -------------------------------------------------------------------------------------------


@NATIVE
async def test_a_part_is_streamed_once_and_only_while_it_is_open(published, cache_dir):
    async with acache.Cache(cache_dir) as cache:
        async with open_part(cache, KEY) as part:
            await read(part)
            with pytest.raises(RuntimeError, match="streamed once"):
                await read(part)
        async with open_part(cache, KEY) as part:
            assert repr(part) == "<PartStream 'cubin', 1048576 bytes>"
        with pytest.raises(RuntimeError, match="inside `async with"):
            await read(part)


@NATIVE
@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"chunk_size": 0}, ValueError, "chunk_size must be bytes, 1 or more, not 0"),
        ({"chunk_size": 1.5}, ValueError, "not 1.5"),
        ({"chunk_size": True}, ValueError, "not True"),
        ({"part": b"cubin"}, TypeError, "part must be the name of a part"),
        ({"key": "cubin"}, TypeError, "made by acache.key"),
    ],
)
async def test_wrong_arguments(cache_dir, arguments, error, says):
    async with acache.Cache(cache_dir) as cache:
        with pytest.raises(error, match=says):
            async with open_part(cache, **{"key": KEY, **arguments}):
                pass


@NATIVE
async def test_a_cache_that_is_not_open(cache_dir):
    with pytest.raises(acache.CacheClosedError, match="not entered"):
        async with open_part(acache.Cache(cache_dir), KEY):
            pass


@pytest.mark.parametrize("anyio_backend", [pytest.param(("trio", {}), id="trio")])
async def test_on_trio_it_says_what_to_do(cache_dir, anyio_backend):
    async with acache.Cache(cache_dir) as cache:
        with pytest.raises(RuntimeError, match=r"on asyncio only.*on trio, send the view\(\)"):
            async with open_part(cache, KEY):
                pass


def test_part_stream_is_public():
    assert isinstance(part_of(WHOLE), PartStream)


def run(code):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )


def test_without_the_extra_it_says_what_to_install():
    done = run("import sys; sys.modules['aiofiles'] = None\nimport acache.integrations.aiofiles")
    assert done.stderr.splitlines()[-1] == (
        'ModuleNotFoundError: acache.integrations.aiofiles needs aiofiles: pip install "acache[aiofiles]"'
    )


def test_nothing_else_imports_it():
    done = run("import sys, acache; acache.Cache, acache.compilers\nassert 'aiofiles' not in sys.modules")
    assert done.returncode == 0, done.stderr
