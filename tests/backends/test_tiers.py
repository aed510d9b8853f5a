"""Lower tiers: directories that are only read, on every loop."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading

import anyio
import pytest

import acache
from acache import events
from acache._fs import OsFileSystem
from acache._settings import Settings
from acache.integrations.aiofiles import open_part
from tests.backends.worlds import HANG, NATIVE, Gate, until

WRITES = ("create", "link", "rename", "unlink", "mkdir", "touch", "open_rw", "pwrite", "sync_folder")


class Recorder(OsFileSystem):
    """Notes which paths are written, and which are read."""

    def __init__(self):
        self.written, self.read_ = [], []
        for name in [name for name in dir(OsFileSystem) if not name.startswith("_")]:
            setattr(self, name, self._noted(name, getattr(super(), name)))

    def _noted(self, name, operation):
        def perform(*arguments):
            (self.written if name in WRITES else self.read_).extend(
                each for each in arguments if isinstance(each, str)
            )
            return operation(*arguments)

        return perform


def key(number):
    return acache.key(number=number)


def cache(folder, *tiers, on_event=None, namespace=None, **settings):
    chosen = acache.Settings(read_only_directories=tiers, **settings)
    return acache.Cache(folder, settings=chosen, on_event=on_event, namespace=namespace)


@pytest.fixture
def image(tmp_path):
    """Return a folder for a cache that is baked into an image."""
    return tmp_path / "image"


async def bake(folder, numbers, namespace=None, what=b"baked"):
    async with acache.Cache(folder, namespace=namespace) as store:
        for number in numbers:
            await store.put(key(number), what, label="baked")


async def test_what_a_tier_holds_is_served_and_nothing_is_written_there_or_anywhere(cache_dir, image):
    await bake(image, range(4))
    gate, recorder = Gate(open=True), Recorder()
    store = cache(cache_dir, image, recency_grain=0)
    store._fs = recorder
    async with store:
        artifact = await store.get_or_compile(key(0), gate)
        assert (artifact.data, artifact.origin, gate.calls) == (b"baked", acache.Origin.DISK, 0)
        assert (await store.get(key(1))).data == b"baked"
        assert list(await store.get_many([key(2), key(9)])) == [key(2)]
        assert await store.status(key(3)) == acache.Status("present")
        assert (await store.status(key(9))).state == "absent"
        assert store.get_nowait(key(0)) is not None
        assert store.stats().disk_hits == 3
        assert await store.entries() == []  # of its own directory
        await store.get_or_compile(key(8), gate)
        assert gate.calls == 1
    assert [path for path in recorder.written if path.startswith(str(image))] == []
    assert any(path.startswith(str(image)) for path in recorder.read_)
    assert len(list(cache_dir.glob("v1/*/*.art"))) == 1


async def test_a_hit_in_the_cache_s_own_directory_looks_at_no_tier(cache_dir, image):
    await bake(image, [0])
    await bake(cache_dir, [0], what=b"own")
    recorder = Recorder()
    store = cache(cache_dir, image, memory_bytes=0)
    store._fs = recorder
    async with store:
        for _ in range(2):
            assert (await store.get_or_compile(key(0), Gate(open=True))).data == b"own"
            assert (await store.get(key(0))).data == b"own"
    assert [path for path in recorder.read_ if path.startswith(str(image))] == []


async def test_tiers_are_asked_in_order(cache_dir, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    await bake(first, [0], what=b"first")
    await bake(second, [0, 1], what=b"second")
    async with cache(cache_dir, first, second) as store:
        assert (await store.get(key(0))).data == b"first"
        assert (await store.get(key(1))).data == b"second"


@NATIVE
async def test_a_tier_s_artifact_can_be_streamed(cache_dir, image):
    await bake(image, [0])
    async with cache(cache_dir, image) as store, open_part(store, key(0)) as part:
        assert b"".join([chunk async for chunk in part]) == b"baked"


async def test_namespaces_are_apart_below_too(cache_dir, image):
    await bake(image, [0], namespace="other")
    async with cache(cache_dir, image) as store:
        assert await store.get(key(0)) is None
    async with cache(cache_dir, image, namespace="other") as store:
        assert await store.get(key(0)) is not None


async def test_a_bad_entry_below_is_a_miss_that_a_compile_covers(cache_dir, image):
    await bake(image, [0])
    (path,) = image.glob("v1/*/*.art")
    path.write_bytes(b"bad")
    told, gate = [], Gate(open=True)
    async with cache(cache_dir, image, on_event=told.append, memory_bytes=0) as store:
        assert (await store.get_or_compile(key(0), gate)).origin is acache.Origin.COMPILED
        assert (await store.get_or_compile(key(0), gate)).origin is acache.Origin.DISK
        assert (store.stats().corrupt, gate.calls) == (1, 1)
    assert [event.path for event in told if isinstance(event, events.CorruptEntry)] == [str(path)]
    assert path.read_bytes() == b"bad"


async def test_a_tier_that_is_not_there_is_told_once(cache_dir, tmp_path, caplog):
    gone = tmp_path / "gone"
    with caplog.at_level(logging.WARNING, "acache"):
        async with cache(cache_dir, gone) as store:
            assert await store.get(key(0)) is None
            assert await store.get(key(1)) is None
            await store.get_or_compile(key(0), Gate(open=True))
            assert store.stats().store_errors == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"read-only directory {gone}: no cache directory, or one that cannot be read; what it has is compiled"
    ]
    async with cache(cache_dir, gone, strict=True) as store:
        with pytest.raises(acache.StoreError, match="a read-only directory is not usable"):
            await store.get(key(2))


async def test_a_tier_that_cannot_be_read_costs_a_compile(cache_dir, image):
    await bake(image, [0])

    class Odd(OsFileSystem):
        def read(self, path, limit, *more):
            if path.startswith(str(image)):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return super().read(path, limit, *more)

    store = cache(cache_dir, image)
    store._fs = Odd()
    async with store:
        assert (await store.get_or_compile(key(0), Gate(open=True))).origin is acache.Origin.COMPILED
        assert store.stats().store_errors == 1


async def test_a_tier_serves_where_the_directory_itself_cannot_be_read(cache_dir, image):
    """B47: prebuilt artifacts below, and a directory of one's own that is no use."""
    await bake(image, [0, 1, 2])
    cache_dir.mkdir()
    (cache_dir / "v1").write_bytes(b"a file")
    gate = Gate(open=True)
    for mode in ("on", "readonly"):
        async with cache(cache_dir, image, mode=mode, memory_bytes=0) as store:
            assert (await store.get_or_compile(key(0), gate)).data == b"baked"
            assert (await store.get(key(1))).data == b"baked"
            assert len(await store.get_many([key(1), key(2)])) == 2
    assert gate.calls == 0


@pytest.mark.parametrize("mode", ["refresh", "off"])
async def test_no_tier_is_asked_when_all_is_to_be_compiled(cache_dir, image, mode):
    await bake(image, [0])
    async with cache(cache_dir, image, mode=mode) as store:
        assert (await store.get_or_compile(key(0), Gate(open=True))).origin is acache.Origin.COMPILED


async def test_the_directory_itself_as_a_tier_is_harmless(cache_dir):
    gate = Gate(open=True)
    async with cache(cache_dir, cache_dir, cache_dir) as store:
        assert (await store.get_or_compile(key(0), gate)).origin is acache.Origin.COMPILED
        assert (await store.get_or_compile(key(0), gate)).origin is acache.Origin.MEMORY


async def test_an_artifact_below_beats_a_failure_that_is_remembered(cache_dir, image):
    async def fail():
        failure = acache.CompileFailure("diagnostic", "k.x:1: error: no", exit_status=1, deterministic=True)
        raise acache.CompileError(failure)

    async with cache(cache_dir) as store:
        with pytest.raises(acache.CompileError):
            await store.get_or_compile(key(0), fail)
    await bake(image, [0])
    async with cache(cache_dir, image) as store:
        assert (await store.get_or_compile(key(0), fail)).data == b"baked"


# --- settings ----------------------------------------------------------------------------------------------


def test_the_variable_is_written_like_a_path():
    settings = Settings().resolve({"ACACHE_READ_ONLY_DIRECTORIES": os.pathsep.join(["/a", "/b"])})
    assert settings.read_only_directories == ("/a", "/b")


@pytest.mark.parametrize("wrong", ["/a", b"/a", 3, None, [""], [3], ["a\0b"]])
def test_what_is_no_list_of_folders_is_refused(wrong):
    with pytest.raises(ValueError, match="read_only_directories"):
        Settings(read_only_directories=wrong)


# --- invalidate --------------------------------------------------------------------------------------------


async def test_a_rejected_artifact_is_compiled_once_more(cache_dir):
    gate = Gate(b"first", open=True)
    async with cache(cache_dir) as store:
        bad = await store.get_or_compile(key(0), gate)
        assert await store.invalidate(key(0), bad)
        assert store.get_nowait(key(0)) is None
        assert await store.get(key(0)) is None
        assert not await store.invalidate(key(0), bad)
        good = await store.get_or_compile(key(0), Gate(b"second", open=True))
        assert (good.data, good.origin) == (b"second", acache.Origin.COMPILED)
        assert not await store.invalidate(key(0), bad)
        assert (await store.get(key(0))).data == b"second"


async def test_only_that_very_artifact_goes(cache_dir):
    async with cache(cache_dir, memory_bytes=0) as store, cache(cache_dir, memory_bytes=0) as other:
        bad = await store.get_or_compile(key(0), Gate(b"same", open=True))
        await other.put(key(0), b"same")  # equal bytes, another publication
        assert not await store.invalidate(key(0), bad)
        assert (await store.get(key(0))).data == b"same"


async def test_what_was_renamed_in_between_look_and_removal_stays(cache_dir):
    async with cache(cache_dir) as other:
        store = cache(cache_dir)

        class Late(OsFileSystem):
            spare = None

            def rename(self, source, target):
                if source.endswith(".art") and self.spare:
                    shutil.move(self.spare, source)
                    self.spare = None
                super().rename(source, target)

        store._fs = fs = Late()
        async with store:
            bad = await store.get_or_compile(key(0), Gate(b"bad", open=True))
            (path,) = cache_dir.glob("v1/*/*.art")
            os.link(path, tmp := f"{cache_dir}/old")
            await other.put(key(0), b"newer")
            shutil.copy(path, f"{cache_dir}/newer")
            os.replace(tmp, path)
            fs.spare = f"{cache_dir}/newer"
            await store.invalidate(key(0), bad)
            assert fs.spare is None
            assert (await store.get(key(0))).data == b"newer"
        assert not list(cache_dir.glob("v1/*/.t.*"))


async def test_a_tier_that_still_holds_the_rejected_one_is_passed_over(cache_dir, image):
    await bake(image, [0], what=b"bad")
    gate = Gate(b"good", open=True)
    async with cache(cache_dir, image) as store:
        bad = await store.get(key(0))
        assert await store.invalidate(key(0), bad)
        assert await store.get(key(0)) is None
        assert await store.get_many([key(0)]) == {}
        assert (await store.status(key(0))).state == "absent"
        assert (await store.get_or_compile(key(0), gate)).data == b"good"
    async with cache(cache_dir, image) as another:
        assert (await another.get_or_compile(key(0), gate)).data == b"good"
    assert gate.calls == 1
    assert len(list(image.glob("v1/*/*.art"))) == 1


async def test_a_flight_that_read_the_rejected_one_before_it_was_rejected_does_not_serve_it(cache_dir):
    async with cache(cache_dir) as store:
        await store.put(key(0), b"bad")
        bad = await store.get(key(0))

    class Slow(OsFileSystem):
        def __init__(self):
            self.has_read, self.go = threading.Event(), threading.Event()

        def read(self, path, limit, *more):
            file = super().read(path, limit, *more)
            self.has_read.set()
            assert self.go.wait(HANG)
            return file

    store = cache(cache_dir)
    store._fs = fs = Slow()
    async with store, anyio.create_task_group() as group:
        found = []

        async def ask():
            found.append(await store.get_or_compile(key(0), Gate(b"good", open=True)))

        group.start_soon(ask)
        await until(fs.has_read.is_set)
        group.start_soon(store.invalidate, key(0), bad)
        await until(lambda: bad._identity in store._live.rejected)
        fs.go.set()
        await until(lambda: found)
        assert (found[0].data, found[0].origin) == (b"good", acache.Origin.COMPILED)
        assert store.get_nowait(key(0)).data == b"good"


async def test_what_was_never_on_disk_is_rejected_in_memory(cache_dir):
    async with cache(cache_dir, min_compile_seconds=100) as store:
        cheap = await store.get_or_compile(key(0), Gate(open=True))
        assert store.get_nowait(key(0)) is not None
        assert await store.invalidate(key(0), cheap)
        assert store.get_nowait(key(0)) is None


async def test_a_reader_rejects_for_itself(cache_dir):
    await bake(cache_dir, [0])
    async with cache(cache_dir, mode="readonly") as store:
        bad = await store.get(key(0))
        assert await store.invalidate(key(0), bad)
        assert await store.get(key(0)) is None
    assert len(list(cache_dir.glob("v1/*/*.art"))) == 1


async def test_what_nobody_handed_out_cannot_be_rejected(cache_dir):
    async with cache(cache_dir) as store:
        with pytest.raises(ValueError, match="invalidate takes what a cache handed out"):
            await store.invalidate(key(0), acache.Artifact.of(b"x"))
        with pytest.raises(TypeError, match=r"must be an acache\.Artifact"):
            await store.invalidate(key(0), b"x")
